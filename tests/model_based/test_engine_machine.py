"""Random operations on a real runner, crashes included, against an engine so plain that it can be
read at once (``naive.py``). What must hold after each of them stands in ``world.py``."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.config import Limits, RunConfig
from tests.examples import examples
from tests.model_based.world import Call, Go, Operation, Rewind, Turn, Undo, World

_goals = st.sampled_from(["1", "1", "2", "1.1", "1.2", "2.1", "3", "9"])
_plan_calls = st.one_of(
    st.builds(lambda g: {"add": f"goal {g}"}, _goals),
    st.builds(lambda g: {"focus": g}, _goals),
    st.builds(lambda g: {"done": g, "summary": ""}, _goals),
    st.builds(lambda g: {"abandon": g, "summary": ""}, _goals),
).map(lambda arguments: Call("goal", arguments))
_other_calls = st.sampled_from(
    [
        *[Call("read_file", {"path": f"f{n}"}) for n in range(4)],
        *[Call("read_file", {"path": f"f{n}"}) for n in range(2, 4)],
        Call("read_file", {"path": "../../etc/passwd"}),
        Call("read_file", '{"path": '),
        Call("no_such_tool", {}),
        Call("edit_file", {"path": "notes", "old": "one", "new": "one one"}),
        Call("skill", {"name": "plan-well"}),
        Call("skill", {"name": "no-such-skill"}),
        Call("compress_context", {}),
        Call("get_current_context", {}),
        Call("goal", '{"done'),
    ]
)
_turns = st.builds(
    Turn,
    calls=st.lists(st.one_of(_plan_calls, _other_calls, _other_calls), max_size=3).map(tuple),
    words=st.sampled_from([0, 3, 3, 60, 200]),
    kind=st.sampled_from(["ok"] * 20 + ["too_long", "fails"]),
    signed=st.booleans(),
    reuses_ids=st.booleans(),
    usage=st.sampled_from([None, None, 0.0, 0.9, 1.6]),
)


def _goal_work(goal: str, reads: list[Turn], end: str) -> list[Turn]:
    """A goal that is added, worked on and closed."""

    def plan(**arguments: str) -> Turn:
        return Turn((Call("goal", arguments),))

    return [plan(add="work"), plan(focus=goal), *reads, plan(**{end: goal, "summary": ""})]


_reads = st.sampled_from(["f1", "f2", "f3", "f3"]).map(
    lambda path: Turn((Call("read_file", {"path": path}),))
)
_segments = st.one_of(
    _turns.map(lambda turn: [turn]),
    _turns.map(lambda turn: [turn]),
    _reads.map(lambda turn: [turn]),
    st.builds(
        _goal_work,
        st.sampled_from(["1", "1", "2", "1.1"]),
        st.lists(_reads, min_size=1, max_size=4),
        st.sampled_from(["done", "done", "abandon"]),
    ),
)
_scripts = st.lists(_segments, max_size=5).map(lambda parts: tuple(t for p in parts for t in p))
_sides = st.sampled_from(
    ["good", "good", "good", "empty", "error", "goes_on", "calls", "fails", "long"]
)
_commands = st.tuples(
    st.integers(1, 30),
    st.sampled_from(["say", "say", "pause", "stop", "compact", "policy", "fork"]),
    st.sampled_from(["cyber", "layered", "opencode", "off", "micro, summary", "snip"]),
)
_goes = st.builds(
    Go,
    says=st.sampled_from([None, 3, 3, 150]),
    turns=_scripts,
    sides=st.lists(_sides, max_size=3).map(tuple),
    commands=st.lists(_commands, max_size=2).map(tuple),
    crash=st.one_of(st.none(), st.none(), st.integers(1, 40)),
    skill=st.sampled_from([False, False, True]),
)
_rewinds = st.builds(Rewind, st.integers(0, 12), st.sampled_from([False, False, True]))
operations: st.SearchStrategy[list[Operation]] = st.lists(
    st.one_of(_goes, _goes, _goes, _rewinds, st.just(Undo())), min_size=2, max_size=8
)
_limits = st.builds(
    Limits,
    max_steps=st.sampled_from([200, 200, 4]),
    max_messages=st.sampled_from([0, 8]),
    token_soft_limit=st.sampled_from([0, 1_500]),
)
configs = st.builds(
    RunConfig,
    context_window=st.sampled_from([None, 2_600, 3_600, 3_600, 5_000]),
    policy=st.sampled_from(
        [None, None, None, "layered", "opencode", "off", "snip, micro, goal, summary"]
    ),
    goal_compression=st.sampled_from(["on_overflow", "on_complete", "none"]),
    goal_compression_form=st.sampled_from(["keep_goal_calls", "summary_line"]),
    language=st.sampled_from(["en", "zh"]),
    enable_extraction=st.sampled_from([False, False, True]),
    limits=_limits,
    provider_options=st.sampled_from([{}, {"thinking": 2_000}]),
)
_providers = st.sampled_from(
    [("openai/1", "openai"), ("openai/1", "deepseek"), ("openai/1", "gemini"),
     ("openai/1", "qwen"), ("anthropic/1", "openai")]
)  # fmt: skip


@examples(150)
@given(configs, _providers, operations)
def test_whatever_is_done_the_engine_is_where_the_naive_one_is(
    config: RunConfig, provider: tuple[str, str], plan: list[Any]
):
    world = World(config, *provider)
    for operation in plan:
        world.do(operation)
    if world.trace_id:
        world.check_all()
