"""Starting a run for somebody: everything that can be known to fail is refused first.

Source: docs/access.md, "Starting runs".
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import transaction

from cyberagent import presets
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidConfig, NotFound
from traces import access, commands, first_run, ports, runs
from traces.models import Trace
from traces.store import OrmStore


def start_for(
    user: Any,
    mission: str,
    config: RunConfig,
    *,
    skills: Sequence[str] = (),
    shared: bool = False,
) -> Trace:
    """A new run of ``user``, checked and queued. Raises RoleNeeded (not an operator, or a
    workspace that only an admin may name), InvalidInput and NotFound; then nothing is stored."""
    access.require(user, "operator")
    _check_workspace(user, config.workspace)
    if config.provider == "replay":
        # A replay shows what another run's model said: only to those who may see that run.
        access.find_trace(user, str(config.provider_options.get("trace") or ""))
    if config.provider_options.get("base_url") and not access.has_role(user, "admin"):
        raise access.RoleNeeded(
            "only an admin may name a provider's address; set OPENAI_BASE_URL or "
            "ANTHROPIC_BASE_URL for everybody"
        )
    check(config, skills)
    config = _with_workspace(presets.resolve(config, runs.environment()))
    return commands.start(user, mission, config, skills=skills, shared=shared)


def check(config: RunConfig, skills: Sequence[str] = ()) -> None:
    """Raises InvalidConfig, InvalidScript or NotFound where a run could not begin: an unknown
    preset, provider, script or skill, a workspace that is no folder."""
    if "\0" in config.workspace:
        raise InvalidConfig("workspace: a path must not hold NUL")
    if config.workspace and not Path(config.workspace).is_dir():
        raise InvalidConfig(f"workspace: {config.workspace!r} is not a folder")
    _check_demo(config)
    async_to_sync(presets.validate)(config, store=OrmStore(), environment=runs.environment())
    if skills:
        with transaction.atomic():
            known = ports.current_skills()
        for name in skills:
            if name not in known:
                raise NotFound("skill", name)


def _with_workspace(config: RunConfig) -> RunConfig:
    """A run that names no folder gets a new one of its own, with the demo's files in it where
    it plays the built-in script."""
    if config.workspace:
        return config
    if config.provider == "scripted" and _is_demo(config):
        return config.with_(workspace=str(first_run.demo_workspace()))
    folder = settings.DATA_DIR / "workspaces" / f"run-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    return config.with_(workspace=str(folder))


def _is_demo(config: RunConfig) -> bool:
    return (config.provider_options.get("script") or "demo") == "demo"


def _check_demo(config: RunConfig) -> None:
    """The built-in script does its own small job, and would write over a NOTES.md."""
    if config.provider != "scripted" or not _is_demo(config) or not config.workspace:
        return
    folder = Path(config.workspace)
    if (folder / "NOTES.md").exists() and not (folder / "notes.py").exists():
        raise InvalidConfig(
            "the built-in script works on its own files and would overwrite NOTES.md there: "
            "leave the workspace out, or give a script of your own"
        )


def _check_workspace(user: Any, workspace: str) -> None:
    """The file tools of a run read what the server's own account can read: which folder that
    is, is an admin's choice. Others work below the data folder."""
    if not workspace or "\0" in workspace or access.has_role(user, "admin"):
        return
    below = settings.DATA_DIR / "workspaces"
    if not Path(workspace).resolve().is_relative_to(below.resolve()):
        raise access.RoleNeeded(
            f"only an admin may name a workspace outside of {below}; yours is "
            f"{access.role_of(user)}"
        )
