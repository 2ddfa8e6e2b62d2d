"""What a first start shows: a live demo run on real files, and one imported transcript.

Source: docs/terminal.md, "up".
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from django.conf import settings

from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import read_root_task_anchor
from cyberagent.core.errors import NotFound
from traces import commands
from traces.models import Trace
from traces.transfer import import_file


def _packed(name: str) -> Any:
    found = resources.files("cyberagent.prompts")
    for part in name.split("/"):
        found = found.joinpath(part)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A built-in script and what belongs to it, all by their names in ``cyberagent/prompts``.
    ``context_window`` in tokens; ``files``: the folder that it works on a copy of; ``writes``:
    what it writes there beside ``known``, a file of that folder; ``anchor``: of a recursive
    run, else ""."""

    script: str
    mission: str
    preset: str
    context_window: int | None
    files: str
    known: str
    writes: str
    anchor: str = ""

    @property
    def root_anchor(self) -> RootTaskAnchor | None:
        if not self.anchor:
            return None
        return read_root_task_anchor(_packed(self.anchor).read_text(encoding="utf-8"))


DEMOS = {
    d.script: d
    for d in (
        Demo(
            script="demo",
            mission=(
                "Look through this small project: say what it does and where it is weak, count "
                "the TODOs, and write what you find into NOTES.md."
            ),
            preset="cyber",
            # Small enough for its closed goals to be cleared from the window before it ends.
            context_window=12_000,
            files="demo_workspace",
            known="notes.py",
            writes="NOTES.md",
        ),
        Demo(
            script="recursive",
            mission=(
                "Help people move from Lantern 1 to Lantern 2: have a guide for their settings "
                "written, and find what still uses settings that are gone."
            ),
            preset="recursive",
            context_window=64_000,
            files="recursive_workspace",
            known="settings/v1.conf",
            writes="MIGRATION.md",
            anchor="recursive_anchor.json",
        ),
    )
}

SAMPLE = "samples/claude-code-sample.jsonl"


def furnish(owner: Any) -> None:
    """Put the demo run and the sample into an installation that has no trace yet; nothing into
    any other."""
    if Trace.objects.exists():
        return
    import_sample(owner)
    start_demo(owner)


def start_demo(owner: Any, name: str = "demo") -> Trace:
    """Start a scripted demo on a fresh copy of its files. The model is a script and says so;
    its tools really run. ``name``: one of DEMOS; raises NotFound."""
    if name not in DEMOS:
        raise NotFound("demo", name)
    demo = DEMOS[name]
    config = demo_config(demo_workspace(name), name)
    return commands.start(owner, demo.mission, config, anchor=demo.root_anchor)


def demo_config(workspace: Path, name: str = "demo") -> RunConfig:
    demo = DEMOS[name]
    return RunConfig(
        provider="scripted",
        preset=demo.preset,
        context_window=demo.context_window,
        workspace=str(workspace),
        provider_options={"script": name},
    )


def demo_workspace(name: str = "demo") -> Path:
    """A new folder with a copy of a demo's files, in the data folder."""
    folder = settings.DATA_DIR / "workspaces" / f"demo-{secrets.token_hex(4)}"
    with resources.as_file(_packed(DEMOS[name].files)) as files:
        shutil.copytree(files, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def import_sample(owner: Any) -> Trace:
    """The sample transcript, written for this purpose in another agent's format."""
    with resources.as_file(_packed(SAMPLE)) as file:
        return import_file(file, owner=owner)[0].trace
