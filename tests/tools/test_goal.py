"""The goal tools as a model meets them: arguments in, the changed plan out."""

from __future__ import annotations

import json
import types

import pytest

from cyberagent.core.config import RunConfig
from cyberagent.core.ports import ToolContext, ToolOutcome
from cyberagent.core.types import Json
from cyberagent.tools.builtin.goal import goal, todo_write
from cyberagent.tools.registry import Registry
from cyberagent.trace.goals import GoalTree

TOOLS = Registry([goal, todo_write])


def context(language: str = "en", mission: str = "实现用户认证功能") -> ToolContext:
    config = RunConfig(language="zh" if language == "zh" else "en")
    state = types.SimpleNamespace(goals=GoalTree(mission=mission))
    return ToolContext(trace_id="t", config=config, state=state)


async def use(where: ToolContext, name: str = "goal", **arguments: Json) -> ToolOutcome:
    return await TOOLS.call(name, json.dumps(arguments), where)


async def test_the_result_tells_the_changes_then_the_plan():
    where = context("zh")
    await use(where, add="分析代码, 测试")
    await use(where, add="读模型", under="1")
    outcome = await use(where, focus="1.1")
    assert outcome.text == (
        "## 更新\n- 焦点切换到: 1.1\n\n"
        "## 当前计划\n**任务**: 实现用户认证功能\n**当前**: 1.1 读模型\n**进度**:\n"
        "[→] 1. 分析代码\n    [→] 1.1 读模型  ← 当前\n[ ] 2. 测试"
    )
    assert (outcome.status, outcome.shorten) == ("ok", False)


async def test_one_line_a_change():
    where = context(mission="m")
    await use(where, add="a, b", focus="1")
    outcome = await use(where, done="1", summary="found", focus="2")
    assert outcome.text.startswith(
        "## Updated\n- Completed: 1\n- Focus moved to: 2\n\n## Current Plan\n**Mission**: m\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"focus": "9"}, "there is no goal 9"),
        ({"focus": 1}, "argument `focus`"),
        ({"goal": "x"}, "unknown argument `goal`"),
        ({}, "nothing was asked for"),
    ],
)
async def test_a_wrong_use_is_an_error_and_the_plan_stays(arguments: Json, words: str):
    where = context()
    await use(where, add="a")
    before = where.state.goals
    outcome = await use(where, **arguments)
    assert outcome.status == "error"
    assert words in outcome.text
    assert where.state.goals is before


async def test_the_result_of_a_huge_plan_is_bounded():
    where = context()
    outcome = await use(where, add=[f"goal {n}" for n in range(5_000)], focus="2500")
    shown = outcome.text.split("\n\n", 1)[1]
    assert len(shown) < 13_000
    assert "[→] 2500. goal 2499  ← current" in shown


async def test_todo_write_writes_the_plan_and_keeps_priorities():
    where = context(mission="m")
    outcome = await use(
        where,
        "todo_write",
        todos=[
            {"content": "a", "status": "in_progress", "priority": "high"},
            {"content": "b", "status": "pending"},
        ],
    )
    assert outcome.text == (
        "## Updated\n- Added: 1 a\n- Added: 2 b\n- Focus moved to: 1\n\n"
        "## Current Plan\n**Mission**: m\n**Current**: 1. a\n**Progress**:\n"
        "[→] 1. a  ← current\n[ ] 2. b"
    )
    assert where.state.goals.get("1").priority == "high"


async def test_a_malformed_todo_is_an_error_that_says_which():
    outcome = await use(context(), "todo_write", todos=[{"content": "a", "status": "done"}])
    assert outcome.status == "error"
    assert "todos[0].status" in outcome.text
