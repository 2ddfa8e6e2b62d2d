"""Starting a run for somebody: everything that can be known to fail is refused first.

Source: docs/access.md, "Starting runs".
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import transaction

from cyberagent import presets
from cyberagent.core.anchor import RootTaskAnchor
from cyberagent.core.config import RunConfig
from cyberagent.core.errors import InvalidConfig, NotFound
from cyberagent.core.types import Json
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
    anchor: RootTaskAnchor | None = None,
) -> Trace:
    """A new run of ``user``, checked and queued. Raises RoleNeeded (not an operator, or a
    workspace that only an admin may name), InvalidInput and NotFound; then nothing is stored.
    ``anchor``: of a run whose preset is recursive."""
    access.require(user, "operator")
    _check_kinds(config)
    config = _with_script(config)
    _check_workspace(user, config.workspace)
    _check_provider(user, config.provider, config.provider_options)
    _check_validator(user, config)
    check(config, skills, anchor)
    config = _with_workspace(presets.resolve(config, runs.environment()))
    return commands.start(user, mission, config, skills=skills, shared=shared, anchor=anchor)


def check(
    config: RunConfig, skills: Sequence[str] = (), anchor: RootTaskAnchor | None = None
) -> None:
    """Raises InvalidInput or NotFound where a run could not begin: an unknown preset, provider,
    script or skill, a workspace that is no folder, an anchor that is missing or not taken, a
    validator that cannot be asked."""
    commands.check_anchor(config, anchor)
    if not presets.preset_named(config.preset).offered:
        raise InvalidConfig(f"preset {config.preset} is not for runs of their own")
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


def _check_kinds(config: RunConfig) -> None:
    """Raises InvalidConfig where a setting that came as JSON is of another kind than what is
    read of it before the run is built."""
    for name in ("provider", "preset", "model", "workspace"):
        _check_kind(name, getattr(config, name), str)
    for name in ("provider_options", "validator"):
        _check_kind(name, getattr(config, name), dict)
    for name, kind in (("provider", str), ("model", str), ("provider_options", dict)):
        _check_kind(f"validator: {name}", config.validator.get(name) or kind(), kind)


def _check_kind(name: str, value: object, kind: type[str] | type[dict[str, Json]]) -> None:
    if not isinstance(value, kind):
        raise InvalidConfig(f"{name} must be {'a text' if kind is str else 'an object'}")


def _check_provider(user: Any, provider: str, options: Mapping[str, Json]) -> None:
    """What a run reaches through its provider, or its validator's, is for those who may."""
    if provider == "replay":
        # A replay shows what another run's model said: only to those who may see that run.
        access.find_trace(user, str(options.get("trace") or ""))
    if options.get("base_url") and not access.has_role(user, "admin"):
        raise access.RoleNeeded(
            "only an admin may name a provider's address; set OPENAI_BASE_URL or "
            "ANTHROPIC_BASE_URL for everybody"
        )


def _check_validator(user: Any, config: RunConfig) -> None:
    """The same for the model that validates."""
    own = config.validator
    provider = own.get("provider") or config.provider
    same = {} if provider != config.provider else config.provider_options
    _check_provider(user, provider, own.get("provider_options") or same)


def _with_script(config: RunConfig) -> RunConfig:
    """A scripted run that names no script plays the built-in one for its preset."""
    if config.provider != "scripted" or config.provider_options.get("script"):
        return config
    recursive = presets.preset_named(config.preset).recursive
    script = "recursive" if recursive else "demo"
    return config.with_(provider_options={**config.provider_options, "script": script})


def _with_workspace(config: RunConfig) -> RunConfig:
    """A run that names no folder gets a new one of its own, with a demo's files in it where
    it plays a built-in script."""
    if config.workspace:
        return config
    if demo := _demo(config):
        return config.with_(workspace=str(first_run.demo_workspace(demo.script)))
    folder = settings.DATA_DIR / "workspaces" / f"run-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    return config.with_(workspace=str(folder))


def _demo(config: RunConfig) -> first_run.Demo | None:
    """The built-in script that the run plays, if it does."""
    script = config.provider_options.get("script") or "demo"
    played = config.provider == "scripted" and isinstance(script, str)
    return first_run.DEMOS.get(script) if played else None


def _check_demo(config: RunConfig) -> None:
    """A built-in script does its own small job, and would write over what has that name."""
    demo = _demo(config)
    if demo is None or not config.workspace:
        return
    folder = Path(config.workspace)
    if (folder / demo.writes).exists() and not (folder / demo.known).exists():
        raise InvalidConfig(
            f"the built-in script works on its own files and would overwrite {demo.writes} there: "
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
