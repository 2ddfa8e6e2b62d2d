"""What a first start shows: a live demo run on real files, and one imported transcript.

Source: docs/terminal.md, "up".
"""

from __future__ import annotations

import secrets
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from django.conf import settings

from cyberagent.core.config import RunConfig
from traces import commands
from traces.models import Trace
from traces.transfer import import_file

DEMO_MISSION = (
    "Look through this small project: say what it does and where it is weak, count the TODOs, "
    "and write what you find into NOTES.md."
)

SAMPLE = "samples/claude-code-sample.jsonl"


def furnish(owner: Any) -> None:
    """Put the demo run and the sample into an installation that has no trace yet; nothing into
    any other."""
    if Trace.objects.exists():
        return
    import_sample(owner)
    start_demo(owner)


def start_demo(owner: Any) -> Trace:
    """Start the scripted demo on a fresh copy of its files. The model is a script and says so;
    its tools really run."""
    return commands.start(owner, DEMO_MISSION, demo_config(demo_workspace()))


def demo_config(workspace: Path) -> RunConfig:
    return RunConfig(
        provider="scripted",
        preset="cyber",
        # Small enough for its closed goals to be cleared from the window before it ends.
        context_window=12_000,
        workspace=str(workspace),
        provider_options={"script": "demo"},
    )


def demo_workspace() -> Path:
    """A new folder with a copy of the demo's files, in the data folder."""
    folder = settings.DATA_DIR / "workspaces" / f"demo-{secrets.token_hex(4)}"
    with resources.as_file(_packed("demo_workspace")) as files:
        shutil.copytree(files, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def import_sample(owner: Any) -> Trace:
    """The sample transcript, written for this purpose in another agent's format."""
    with resources.as_file(_packed(SAMPLE)) as file:
        return import_file(file, owner=owner)[0].trace


def _packed(name: str) -> Any:
    found = resources.files("cyberagent.prompts")
    for part in name.split("/"):
        found = found.joinpath(part)
    return found
