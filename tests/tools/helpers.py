"""What the tool tests share: a run's context, and a call as a model makes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyberagent.core.config import Limits, RunConfig
from cyberagent.core.ports import Skill, ToolContext, ToolOutcome
from cyberagent.tools.registry import Registry, Tool
from cyberagent.trace.goals import GoalTree


class State:
    """The part of a run's state that tools use."""

    def __init__(self, mission: str = "Test the tools") -> None:
        self.goals = GoalTree(mission=mission)
        self.protocol: Any = None
        self.terminal_cwd = ""
        self.collaborators: list[tuple[str, str, str]] = []
        self.notifications: list[str] = []
        self.context_providers: list[Any] = []


def make_context(
    workspace: Path | None = None,
    *,
    seconds: float = 20,
    skills: Mapping[str, Skill] | None = None,
    language: Any = "en",
) -> ToolContext:
    limits = Limits(tool_timeout_seconds=seconds)
    return ToolContext(
        trace_id="t1",
        config=RunConfig(limits=limits, language=language),
        state=State(),
        workspace=workspace,
        skills=skills or {},
        now="2026-05-01T10:00:00+00:00",
    )


async def call(tool: Tool, context: ToolContext, **arguments: Any) -> ToolOutcome:
    return await Registry([tool]).call(tool.name, json.dumps(arguments), context)


async def ok(tool: Tool, context: ToolContext, **arguments: Any) -> str:
    outcome = await call(tool, context, **arguments)
    assert outcome.status == "ok", outcome.text
    return outcome.text


async def error(tool: Tool, context: ToolContext, **arguments: Any) -> str:
    outcome = await call(tool, context, **arguments)
    assert outcome.status == "error", outcome.text
    return outcome.text
