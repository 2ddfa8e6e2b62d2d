"""``get_current_context``: what it shows, and that no provider can break or hold up a run."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from cyberagent.core.ports import ToolContext
from cyberagent.tools.builtin import context as module
from cyberagent.tools.builtin.context import PublicState, get_current_context
from cyberagent.trace.goals import GoalOperation
from tests.tools.helpers import call, make_context, ok


def plan(context: ToolContext, **operation: Any) -> None:
    context.state.goals, _ = context.state.goals.apply(GoalOperation(**operation))


async def test_without_a_plan_it_asks_for_one() -> None:
    text = await ok(get_current_context, make_context())
    assert text.startswith("# Current context\nTime: 2026-05-01T10:00:00+00:00\n")
    assert "There is no plan yet." in text


async def test_it_reminds_of_the_focus_and_of_its_absence() -> None:
    context = make_context()
    plan(context, add=["Read {all}", "Write"])
    assert "No goal is in focus." in await ok(get_current_context, context)
    plan(context, focus="1")
    text = await ok(get_current_context, context)
    assert "[→] 1. Read {all}" in text
    assert "You are working on goal 1: Read {all}." in text
    plan(context, done="1", summary="read")
    plan(context, abandon="2", summary="not needed")
    assert "Every goal is done or abandoned." in await ok(get_current_context, context)


async def test_it_speaks_chinese() -> None:
    context = make_context(language="zh")
    plan(context, add=["测试"], focus="1")
    text = await ok(get_current_context, context)
    assert "# 当前上下文" in text and "你正在做目标 1：测试。" in text and "## 当前计划" in text


async def test_collaborators_are_listed() -> None:
    context = make_context()
    context.state.collaborators = [("t2", "Search the logs", "running")]
    text = await ok(get_current_context, context)
    assert "## Collaborators\n- t2: Search the logs (running)" in text


async def test_notifications_are_told_once_twenty_at_a_time() -> None:
    context = make_context()
    context.state.notifications = [f"news {n}" for n in range(25)]
    first = await ok(get_current_context, context)
    assert "- news 19" in first and "- news 20" not in first
    second = await ok(get_current_context, context)
    assert "- news 20" in second and "- news 19" not in second
    assert "Notifications" not in await ok(get_current_context, context)


async def test_providers_add_sections_in_order() -> None:
    seen: list[PublicState] = []

    def quick(state: PublicState) -> tuple[str, str]:
        seen.append(state)
        return "Disk", "90 % full"

    async def slow(state: PublicState) -> tuple[str, str]:
        await asyncio.sleep(0)
        return "Queue\nof jobs", "x" * 2_001

    context = make_context()
    context.state.context_providers = [quick, slow, lambda state: None]
    outcome = await call(get_current_context, context)
    assert outcome.text.endswith(
        "## Disk\n90 % full\n\n## Queue of jobs\n" + "x" * 2_000 + " [1 characters left out]"
    )
    assert outcome.shorten is False
    assert (seen[0].trace_id, seen[0].goals["goals"], seen[0].language) == ("t1", [], "en")


async def test_a_provider_that_fails_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def failing(state: PublicState) -> tuple[str, str]:
        raise KeyError("secret")

    context = make_context()
    context.state.context_providers = [failing, lambda state: ("a", 3), lambda state: ("B", "b")]
    text = await ok(get_current_context, context)
    assert text.endswith("[not available: KeyError]\n\n[not available: TypeError]\n\n## B\nb")
    assert "secret" not in text and "secret" in caplog.text


async def test_a_provider_that_hangs_is_left_behind_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROVIDER_SECONDS", 0.05)
    release = threading.Event()
    asked: list[int] = []

    def hanging(state: PublicState) -> None:
        asked.append(1)
        release.wait()

    async def also_hanging(state: PublicState) -> None:
        asked.append(2)
        await asyncio.Event().wait()

    context = make_context()
    context.state.context_providers = [hanging, also_hanging]
    try:
        text = await ok(get_current_context, context)
        assert text.count("[not available: TimeoutError]") == 2
        await ok(get_current_context, context)
        assert sorted(asked) == [1, 2]
    finally:
        release.set()


async def test_the_clock_is_read_where_the_run_gives_no_time() -> None:
    text = await ok(get_current_context, replace(make_context(), now=""))
    assert "\nTime: 20" in text
