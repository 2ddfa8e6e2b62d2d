"""Scripts for trees of agents: whose turn it is, what a turn takes from the window, and the
built-in tree, which is run by the real engine."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor, normalize_task_brief
from cyberagent.core.errors import InvalidScript
from cyberagent.core.events import Done
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.ports import Answer, ModelRequest, TreeTrace
from cyberagent.core.types import Json, Message, ToolCall, canonical_json
from cyberagent.presets import build_runner, resolve
from cyberagent.providers.finding import MAX_PLACES, MAX_SEARCHED, MAX_WORD, Find
from cyberagent.providers.script import KINDS, Script
from cyberagent.providers.scripted import SCRIPT_OVER, ScriptedProvider, load_script
from tests.providers.windows import assistant, result, user, window

TREE = """
turns:
  - say: I am the root.
  - say: I am done.
agents:
  - match: '"objective":"Write the parser"'
    kind: validator
    turns:
      - say: The parser is good.
  - match: Write the parser
    turns:
      - say: First round.
      - say: Second round.
    branches:
      compression:
        - say: I wrote the parser.
  - match: [Write, the lexer]
    kind: agent
    turns:
      - say: I write the lexer.
  - match: Where is it called
    kind: explore
    turns:
      - say: In main.
"""


def payload(*messages: tuple[str, str]) -> bytes:
    return canonical_json({"messages": [{"role": r, "content": c} for r, c in messages]})


async def answer(
    script: Script | str, sent: bytes, answers_before: int = 0, *, kind: str = "", branch: Any = ""
) -> Answer:
    loaded = script if isinstance(script, Script) else load_script(script)
    provider = ScriptedProvider(loaded, speed=0, kind=kind)
    request = ModelRequest(
        payload=sent, answers_before=answers_before, branch_type=branch, call=answers_before + 1
    )
    items = [item async for item in provider.stream(request)]
    assert isinstance(items[-1], Answer)
    return items[-1]


async def said(*args: Any, **more: Any) -> str:
    made = await answer(*args, **more)
    return "".join(getattr(p, "text", "") for p in made.parts)


def calls_of(made: Answer) -> list[tuple[str, Any]]:
    return [(p.name, json.loads(p.arguments)) for p in made.parts if isinstance(p, ToolCall)]


# Whose turn it is ----------------------------------------------------------------------------

PARSER = payload(("system", "Write the lexer"), ("user", "# Contract\nWrite the parser, please"))


async def test_the_root_plays_the_scripts_own_turns():
    assert await said(TREE, PARSER) == "I am the root."
    assert await said(TREE, PARSER, 1) == "I am done."
    assert await said(TREE, b"no payload at all") == "I am the root."


async def test_a_child_plays_the_first_entry_whose_text_stands_in_its_first_user_message():
    assert await said(TREE, PARSER, kind="agent") == "First round."
    later = payload(("user", "Write code"), ("assistant", "?"), ("user", "Write the parser"))
    assert "The script has nothing for this agent" in await said(TREE, later, kind="agent")


async def test_all_texts_of_a_list_have_to_occur():
    both = payload(("user", "Write, if you can, the lexer"))
    assert await said(TREE, both, kind="agent") == "I write the lexer."
    one = payload(("user", "Write something"))
    assert "nothing for this agent" in await said(TREE, one, kind="agent")


async def test_a_child_that_is_revised_goes_on_at_its_next_turn():
    revised = payload(
        ("user", "Write the parser"),
        ("assistant", "First round."),
        ("user", "Contract, version 2: now with comments"),
    )
    assert await said(TREE, revised, 1, kind="agent") == "Second round."
    assert await said(TREE, revised, 2, kind="agent") == SCRIPT_OVER


async def test_an_entry_of_a_kind_plays_for_that_kind_alone():
    packet = '# TaskBrief\n{"objective":"Write the parser"}\n\n# Messages, newest first\n'
    sent = payload(("user", packet))
    assert await said(TREE, sent, kind="validator") == "The parser is good."
    assert await said(TREE, sent, kind="agent") == "First round."
    # An entry that names no kind plays for any, so this one's packet finds the child's.
    loose = payload(("user", packet.replace('"', '\\"')))
    assert await said(TREE, loose, kind="validator") == "First round."


async def test_what_a_packet_quotes_as_a_value_is_not_found_in_the_messages_below_it():
    """A packet's lines are JSON, so a text inside a message is escaped once more."""
    message = canonical_json({"text": '{"objective":"Write the parser"}'}).decode()
    sent = payload(("user", f"# TaskBrief\nnull\n\n# Messages, newest first\n{message}"))
    entries: list[Json] = [
        {"match": '"objective":"Write the parser"', "turns": [{"say": "the child's"}]},
        {"match": "# TaskBrief\nnull", "turns": [{"say": "the root's"}]},
    ]
    script = load_script({"turns": [{"say": "x"}], "agents": entries})
    assert await said(script, sent, kind="validator") == "the root's"


async def test_who_explores_may_begin_with_the_conversation_above():
    inherited = payload(
        ("user", "Clean this up"), ("assistant", "Well"), ("user", "Task: Where is it called?")
    )
    assert await said(TREE, inherited, kind="explore") == "In main."
    assert "nothing for this research" in await said(TREE, inherited, kind="research")


async def test_an_agent_has_side_branches_of_its_own():
    assert await said(TREE, PARSER, kind="agent", branch="compression") == "I wrote the parser."
    assert await said(TREE, PARSER, branch="compression") == SCRIPT_OVER


async def test_where_nothing_fits_the_answer_says_what_was_looked_for():
    long = "Sweep the\n\n floor " + "x" * 1_000
    made = await answer(TREE, payload(("user", long)), kind="agent")
    text = await said(TREE, payload(("user", long)), kind="agent")
    assert text.startswith('The script has nothing for this agent: no entry of its agents fits "')
    assert "Sweep the floor xxx" in text and len(text) < 300
    assert made.finish_reason == "stop"


async def test_a_task_may_come_in_blocks():
    sent = canonical_json(
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                        {"type": "text", "text": "Write the parser"},
                    ],
                }
            ]
        }
    )
    assert await said(TREE, sent, kind="agent") == "First round."


async def test_what_is_matched_is_what_the_provider_itself_projects():
    provider = ScriptedProvider(load_script(TREE), speed=0, kind="agent")
    sent = canonical_json(provider.project(window(user("Write the parser"), assistant("Hm"))))
    assert await said(TREE, sent, 1, kind="agent") == "Second round."


# What a turn takes from the window -------------------------------------------------------------


def turn(**fields: Json) -> Script:
    return load_script({"turns": [{"say": "x", **fields}]})


REVIEW = turn(
    find={"child": "Child {} ended: "},
    think="Is {child} good?",
    say="{child} is good, and {this} is no place.",
    calls=[{"review_child": {"child": "{child}", "n": 1, "next": [{"for": "<{child}>"}]}}],
)


async def test_a_word_is_put_into_every_text_of_the_turn():
    sent = payload(("user", "go"), ("tool", "Child ab12 ended: completed.\nVerdict: passed"))
    made = await answer(REVIEW, sent)
    assert calls_of(made) == [
        ("review_child", {"child": "ab12", "n": 1, "next": [{"for": "<ab12>"}]})
    ]
    texts = [getattr(p, "text", "") for p in made.parts]
    assert texts[:2] == ["Is ab12 good?", "ab12 is good, and {this} is no place."]


async def test_the_newest_place_counts_and_in_one_text_the_last():
    sent = payload(
        ("tool", "Child a1 ended: completed."),
        ("tool", "Child b2 ended: failed. Child c3 ended: completed."),
        ("user", "Children that ended: none else"),
    )
    assert (await said(REVIEW, sent)).endswith("c3 is good, and {this} is no place.")


@pytest.mark.parametrize(("nth", "word"), [(1, "b"), (2, "a")])
async def test_the_nth_of_different_words_can_be_asked_for(nth: int, word: str):
    script = turn(find={"child": {"text": "Child {} ended", "nth": nth}}, say="{child}")
    sent = payload(("tool", "Child a ended\nChild b ended\nChild a ended\nChild b ended\n"))
    assert await said(script, sent) == word


async def test_what_the_model_said_itself_and_the_system_prompt_are_not_searched():
    sent = payload(
        ("system", "Child s ended: x"),
        ("tool", "Child a ended: x"),
        ("assistant", "Child m ended: x"),
    )
    assert "a is good" in await said(REVIEW, sent)


async def test_a_later_text_may_use_an_earlier_word():
    listing = (
        f"- reviewed_task_result:aa version {'1' * 64} (reviewed_task_result, 10 characters)\n"
        f"- reviewed_task_result:bb version {'2' * 64} (reviewed_task_result, 10 characters)\n"
        f"- task_brief:cc version {'3' * 64} (task_brief, 10 characters)"
    )
    script = turn(
        find={
            "child": {"text": "- reviewed_task_result:{} version ", "nth": 2},
            "version": "- reviewed_task_result:{child} version {} (",
        },
        say="{version}",
    )
    assert await said(script, payload(("tool", listing))) == "1" * 64


async def test_a_sequence_is_found_in_the_line_of_its_message():
    """The keys of a packet's line are sorted, and all of them stand there."""
    lines = [
        {"name": "read_file", "role": "tool", "sequence": 57, "source": "tool", "text": "it"},
        {"name": "terminal", "role": "tool", "sequence": 55, "source": "tool", "text": "6"},
    ]
    packet = "# Messages, newest first\n" + "\n".join(canonical_json(v).decode() for v in lines)
    script = turn(
        find={"read": '"name":"read_file","role":"tool","sequence":{},"source"'},
        say='{"evidence": [{read}]}',
    )
    assert await said(script, payload(("user", packet))) == '{"evidence": [57]}'


async def test_with_no_text_after_it_a_word_ends_at_white_space():
    script = turn(find={"id": "id: {}"}, say="{id}")
    assert await said(script, payload(("tool", "id: a-b.\nid:  c"))) == "a-b."
    assert await said(script, payload(("tool", "id: last"))) == "last"


async def test_a_word_is_put_into_arguments_as_text_whatever_it_is_made_of():
    script = turn(find={"x": "<<{}>>"}, calls=[{"note": {"text": "{x}", "keep": "{}{y} \\ {x}"}}])
    made = await answer(script, payload(("tool", '<<a"b\\c}{x}>>')))
    word = 'a"b\\c}{x}'
    assert calls_of(made) == [("note", {"text": word, "keep": "{}{y} \\ " + word})]


async def test_what_cannot_be_found_is_said_and_nothing_is_called():
    for sent in (payload(("tool", "Child two words ended: x")), payload(), b"[", b"\xff"):
        made = await answer(REVIEW, sent)
        text = "".join(getattr(p, "text", "") for p in made.parts)
        assert text == ("The script cannot go on: nothing in the window reads 'Child {} ended: '.")
        assert (calls_of(made), made.finish_reason) == ([], "stop")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<" + "a" * MAX_WORD + ">", "a" * MAX_WORD),
        ("<" + "a" * (MAX_WORD + 1) + ">", None),
        ("<>", None),
        ("<a b>", None),
        ("<a\n>", None),
        ("<a", None),
        ("<a<b>", "b"),
        ("<a><b c>", "a"),
        ("<<a>", "a"),
    ],
)
def test_a_word_is_one_word_of_bounded_length(text: str, word: str | None):
    assert Find("x", "<{}>").word([text], {}) == word


def test_a_search_looks_at_a_bounded_part_of_the_window():
    assert Find("x", "<{}>").word(["<old>", "-" * (MAX_SEARCHED - 5)], {}) == "old"
    assert Find("x", "<{}>").word(["<old>", "-" * (MAX_SEARCHED - 4)], {}) is None
    assert Find("x", "<{}>").word(["<old>" + "< " * (MAX_PLACES - 1)], {}) == "old"
    assert Find("x", "<{}>").word(["<old>" + "< " * MAX_PLACES], {}) is None


@given(
    st.lists(st.text("<>ab \n", max_size=30), max_size=4),
    st.sampled_from(["<", "a<", "<<", "ab"]),
    st.sampled_from([">", "b>", " ", "a", "<"]),
    st.integers(1, 3),
)
def test_words_are_those_that_a_simple_search_of_every_place_finds(
    texts: list[str], before: str, after: str, nth: int
):
    found: list[str] = []
    for text in reversed(texts):
        for start in range(len(text) - 1, -1, -1):
            if text.startswith(before, start):
                word, ended, _ = text[start + len(before) :].partition(after)
                if ended and re.fullmatch(r"\S+", word) and word not in found:
                    found.append(word)
    expected = found[nth - 1] if len(found) >= nth else None
    assert Find("x", before + "{}" + after, nth).word(texts, {}) == expected


# Refusals --------------------------------------------------------------------------------------

ROOT = "turns:\n - say: hi\n"
ONE = ROOT + "agents:\n - match: a\n   turns:\n    - say: hi\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROOT + "agents: {}\nagent: []\n", "unknown key 'agent'"),
        (ROOT + "agents: {a: 1}\n", "agents: must be a list"),
        (ROOT + "agents: [1]\n", "agent 1 must be a mapping"),
        (ROOT + "agents: [{turns: [{say: hi}]}]\n", "agent 1, match: must be a text"),
        (ROOT + "agents: [{match: '', turns: [{say: hi}]}]\n", "agent 1, match"),
        (ROOT + "agents: [{match: [], turns: [{say: hi}]}]\n", "agent 1, match"),
        (ROOT + "agents: [{match: [a, 1], turns: [{say: hi}]}]\n", "agent 1, match"),
        (ROOT + f"agents: [{{match: {'a' * 501}, turns: [{{say: hi}}]}}]\n", "500 characters fit"),
        (ROOT + f"agents: [{{match: {['a'] * 9}, turns: [{{say: hi}}]}}]\n", "8 texts"),
        (
            ONE + " - match: b\n   kind: judge\n   turns: [{say: hi}]\n",
            "agent 2, kind: must be one",
        ),
        (ONE + " - match: b\n   turns: []\n", "agent 2, turns: must be a list of at least one"),
        (ONE + " - match: b\n   turns: [{say: 3}]\n", "agent 2, turn 1, say: must be a text"),
        (ONE + " - match: b\n   turns: [{say: hi, to: b}]\n", "agent 2, turn 1: unknown key 'to'"),
        (ONE + " - match: b\n   agents: []\n", "agent 2: unknown key 'agents'"),
        (ONE + "   branches: {other: []}\n", "agent 1, branches: unknown key 'other'"),
        (ONE + "   branches: {reflection: [{}]}\n", "agent 1, reflection turn 1 says nothing"),
        (ONE + "   speed: 3\n", "agent 1: unknown key 'speed'"),
        (ROOT + "   find: [a]\n", "turn 1, find: must be a mapping"),
        (ROOT + "   find: {A: 'x {}'}\n", "turn 1, find: 'A' is not a name"),
        (ROOT + "   find: {1: 'x {}'}\n", "turn 1, find: 1 is not a name"),
        (ROOT + "   find: {a: 3}\n", r"turn 1, find\.a: must be a text with {} once"),
        (ROOT + "   find: {a: x}\n", r"turn 1, find\.a: must be a text with {} once"),
        (ROOT + "   find: {a: 'x {} {}'}\n", r"turn 1, find\.a: must be a text with {} once"),
        (ROOT + "   find: {a: '{} x'}\n", r"turn 1, find\.a: needs some text before"),
        (ROOT + f"   find: {{a: '{'x' * 199}{{}}'}}\n", "201 characters; 200 fit"),
        (ROOT + "   find: {a: 'x {b} {}'}\n", r"turn 1, find\.a: uses {b}, which no find"),
        (ROOT + "   find: {a: {text: 'x {}', nth: 0}}\n", r"turn 1, find\.a, nth: must be a whole"),
        (ROOT + "   find: {a: {text: 'x {}', nth: true}}\n", r"find\.a, nth"),
        (ROOT + "   find: {a: {text: 'x {}', last: 1}}\n", r"find\.a: unknown key 'last'"),
        (ROOT + "   find: {a: 'x {}'}\n", r"turn 1, find\.a: is not used as {a}"),
        (
            ROOT + "   find: {" + ", ".join(f"a{n}: 'x {{}}'" for n in range(9)) + "}\n",
            "turn 1, find: has 9 names; 8 fit",
        ),
    ],
)
def test_a_malformed_entry_is_refused_by_agent_turn_and_field(text: str, words: str):
    with pytest.raises(InvalidScript, match=words):
        load_script(text)


def test_a_script_holds_a_bounded_number_of_agents():
    entry: Json = {"match": "a", "turns": [{"say": "hi"}]}
    assert len(load_script({"turns": [{"say": "x"}], "agents": [entry] * 100}).agents) == 100
    with pytest.raises(InvalidScript, match="101 entries; 100 fit"):
        load_script({"turns": [{"say": "x"}], "agents": [entry] * 101})


def test_a_word_that_only_another_word_needs_counts_as_used():
    script = turn(find={"a": "x {}", "b": "{a} y {}"}, say="{b}")
    assert [f.name for f in script.turns[0].find] == ["a", "b"]


# Whatever is sent ------------------------------------------------------------------------------

_texts = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(
    ["{a}", "{}", "Child {} ", "x {a} {}", "Child b ended", '"', "\\", "\ud800"]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
    max_leaves=4,
)
_turns = st.fixed_dictionaries(
    {"say": _texts | st.just("{a} and {b}")},
    optional={
        "think": _texts,
        "calls": st.lists(
            st.dictionaries(
                st.sampled_from(["agent", "goal"]),
                st.dictionaries(_texts, _values, max_size=2),
                min_size=1,
                max_size=1,
            ),
            max_size=2,
        ),
        "find": st.fixed_dictionaries(
            {"a": st.sampled_from(["Child {} ended", "{", "x{}", "\ud800{}", "Child {}"])},
            optional={"b": st.sampled_from(["{a}{}", "{a} {}{b}", 'n":{}'])},
        ),
    },
)
_agents = st.fixed_dictionaries(
    {"match": _texts | st.lists(_texts, max_size=2), "turns": st.lists(_turns, max_size=2)},
    optional={
        "kind": st.sampled_from(KINDS),
        "branches": st.fixed_dictionaries({}, optional={"compression": st.lists(_turns)}),
    },
)
_scripts = st.fixed_dictionaries(
    {"turns": st.lists(_turns, min_size=1, max_size=3)},
    optional={"agents": st.lists(_agents, max_size=3)},
)
_windows = st.lists(
    st.one_of(
        st.builds(user, _texts),
        st.builds(assistant, _texts),
        st.builds(result, st.just("c"), _texts | st.just("Child b ended x")),
    ),
    max_size=4,
)
_payloads = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [b"{}", b'{"messages": {"role": 1}}', b'{"messages": [1, null, {"role": []}]}']
    ),
    st.builds(
        lambda messages: canonical_json(
            ScriptedProvider(load_script(TREE)).project(window(*messages))
        ),
        _windows,
    ),
)


@given(
    _scripts,
    _payloads,
    st.integers(0, 4),
    st.sampled_from(["", *KINDS, "something"]),
    st.sampled_from(["", "compression"]),
)
def test_a_script_that_loads_has_an_answer_to_whatever_is_sent(
    value: dict[str, Any], sent: bytes, before: int, kind: str, branch: str
):
    try:
        script = load_script(value)
    except InvalidScript:
        return
    made = asyncio.run(answer(script, sent, before, kind=kind, branch=branch))
    texts = [p for p in made.parts if getattr(p, "text", "")]
    assert texts or calls_of(made)
    assert made.finish_reason == ("tool_calls" if calls_of(made) else "stop")
    assert all(isinstance(arguments, dict) for _, arguments in calls_of(made))


# The built-in tree -----------------------------------------------------------------------------

PROMPTS = Path(__file__).parents[2] / "cyberagent" / "prompts"
ANCHOR = json.loads((PROMPTS / "recursive_anchor.json").read_text(encoding="utf-8"))


class Tree:
    """What a run of the built-in script left behind."""

    def __init__(self, traces: list[TreeTrace], paths: dict[str, list[Message]]) -> None:
        self.states = [t.state for t in traces]
        self.paths = paths
        self.messages = [m for path in paths.values() for m in path]

    def entries(self, kind: str) -> list[dict[str, Any]]:
        """Records of the protocol, in the order of the traces and their paths."""
        recorded = [e for m in self.messages for e in m.metadata.get("protocol") or []]
        return [e for e in recorded if e["entry"] == kind]

    def kinds(self) -> list[str]:
        return [s.context.get("spawned", {}).get("kind", "root") for s in self.states]


async def play(folder: Path) -> tuple[Done, Tree]:
    """The whole tree, run by the engine on a copy of its files, with no waiting."""
    shutil.copytree(PROMPTS / "recursive_workspace", folder)
    store = InMemoryStore()
    config = RunConfig(
        provider="scripted",
        preset="recursive",
        workspace=str(folder),
        provider_options={"script": "recursive", "speed": 0},
    )
    config = resolve(config, {})
    runner = await build_runner(config, store=store, environment={})
    mission: dict[str, Json] = {"role": "user", "content": "Write the guide."}
    *_, last = [e async for e in runner.run([mission], config, root_task_anchor=ANCHOR)]
    assert isinstance(last, Done)
    traces = await store.tree(last.trace)
    return last, Tree(traces, {t.state.id: await store.path(t.state.id) for t in traces})


async def test_the_tree_really_runs(tmp_path: Path):
    done, tree = await play(tmp_path / "work")
    assert done.status == "completed" and done.answer.startswith("**Done.**")
    assert [m.text for m in tree.messages if m.is_error] == []
    assert not [m.text for m in tree.messages if m.text.startswith("The script")]
    assert {s.status for s in tree.states} == {"completed"}
    assert sorted(tree.kinds()) == sorted(
        ["root"] + ["agent"] * 3 + ["validator"] * 5 + ["explore"] * 2
    )
    by_id = {s.id: s for s in tree.states}
    agents = [s for s, kind in zip(tree.states, tree.kinds(), strict=True) if kind == "agent"]
    assert [len(s.context["lineage"]) for s in agents] == [1, 2, 2]
    assert by_id[agents[1].parent_trace or ""] == agents[0]


async def test_a_child_is_sent_back_once_and_its_second_report_passes(tmp_path: Path):
    _, tree = await play(tmp_path / "work")
    verdicts = [
        [e["result"]["verdict"] for m in path for e in m.metadata.get("protocol") or []
         if e["entry"] == "validated"]
        for path in tree.paths.values()
    ]  # fmt: skip
    assert [v for v in verdicts if v] == [["passed"], ["passed"], ["failed", "passed"], ["passed"]]
    decisions = [
        [e["review"]["decision"] for m in path for e in m.metadata.get("protocol") or []
         if e["entry"] == "reviewed"]
        for path in tree.paths.values()
    ]  # fmt: skip
    assert [d for d in decisions if d] == [["ACCEPT"], ["REVISE_CHILD", "ACCEPT", "ACCEPT"]]
    failed = next(
        c
        for e in tree.entries("validated")
        for c in e["result"]["criteria"]
        if c["verdict"] == "failed"
    )
    path = next(p for p in tree.paths.values() if sum("briefed" in str(m.metadata) for m in p) == 2)
    shown = {m.sequence: m.text for m in path}
    assert "list" in failed["evidence"] and "retry_limit" in failed["reason"]
    texts = [shown[n] for n in failed["evidence"] if isinstance(n, int)]
    assert [("retry_limit" in t, t.split("\n")[0].endswith("# Lantern 1")) for t in texts] == [
        (True, True),
        (False, False),
    ]


async def test_the_second_grandchild_reads_what_was_handed_down(tmp_path: Path):
    _, tree = await play(tmp_path / "work")
    reads = [m for m in tree.messages if m.name == "read_context_ref"]
    assert len(reads) == 1
    head, text = reads[0].text.split("\n", 1)
    assert json.loads(head)["kind"] == "reviewed_task_result"
    reviewed = json.loads(text)
    assert reviewed["review"]["decision"] == "ACCEPT"
    assert reviewed["result"]["verdict"] == "passed"
    assert "six changes" in reviewed["report"]["summary"]


def names_of(file: Path) -> set[str]:
    return set(re.findall(r"^([a-z_]+) = ", file.read_text(encoding="utf-8"), re.MULTILINE))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


async def test_what_the_tree_says_of_its_files_is_true(tmp_path: Path):
    done, _ = await play(tmp_path / "work")
    work = tmp_path / "work"
    old, new = names_of(work / "settings/v1.conf"), names_of(work / "settings/v2.conf")
    assert (len(old - new), len(new - old)) == (4, 4)
    for file in ("MIGRATION.md", "notes/changed-settings.md"):
        text = (work / file).read_text(encoding="utf-8")
        assert {name for name in old | new if f"`{name}" in text} == old ^ new
    rows = (work / "MIGRATION.md").read_text(encoding="utf-8").splitlines()[4:]
    assert len(rows) == 6 and all(row.split("|")[3].strip().endswith(".") for row in rows)
    places = [
        (name, number)
        for name, data in files_of(PROMPTS / "recursive_workspace").items()
        if not name.startswith(("settings/", "CHANGES"))
        for number, line in enumerate(data.decode().splitlines(), start=1)
        if any(re.search(rf"\b{gone}\b", line) for gone in old - new)
    ]
    assert sorted(places) == [("README.md", 8), ("bin/lantern", 9)]
    for name, number in places:
        assert f"`{name}`, line {number}," in done.answer
    changes = (work / "CHANGES.md").read_text(encoding="utf-8")
    assert {name for name in old ^ new if f"`{name}`" not in changes} == {"retry_limit"}


async def test_the_tree_keeps_to_the_constraints_of_its_anchor(tmp_path: Path):
    await play(tmp_path / "work")
    before, after = files_of(PROMPTS / "recursive_workspace"), files_of(tmp_path / "work")
    assert {k: v for k, v in after.items() if k in before} == before
    assert after.keys() - before.keys() == {"MIGRATION.md", "notes/changed-settings.md"}


async def test_the_model_says_the_same_every_time(tmp_path: Path):
    """But for ids of traces, and hashes of what holds them and the time."""
    told: list[str] = []
    for name in ("one", "two"):
        _, tree = await play(tmp_path / name)
        said_by_model = [m for m in tree.messages if m.source == "model"]
        text = json.dumps([[m.text, [c.arguments for c in m.tool_calls]] for m in said_by_model])
        for number, state in enumerate(tree.states):
            text = text.replace(state.id, f"trace {number}")
        told.append(re.sub(r"\b[0-9a-f]{64}\b", "version", text))
    assert told[0] == told[1]


def test_the_anchor_of_the_tree_is_in_normal_form():
    anchor = normalize_root_task_anchor(ANCHOR)
    assert anchor.to_json() == ANCHOR
    assert (len(anchor.completion_criteria), len(anchor.constraints)) == (3, 2)


def test_the_brief_that_is_approved_is_the_brief_that_is_called():
    anchor = normalize_root_task_anchor(ANCHOR)
    value = yaml.safe_load((PROMPTS / "recursive.yaml").read_text(encoding="utf-8"))
    given = [c for a in value["agents"] for t in a["turns"] for c in t.get("calls", ())]
    (approved,) = [
        c["review_child"]["next_brief"] for c in given if "next_brief" in c.get("review_child", {})
    ]
    (called,) = [c["agent"]["task_brief"] for c in given if "child" in c.get("agent", {})]
    assert normalize_task_brief(approved, anchor) == normalize_task_brief(called, anchor)


def test_a_person_can_watch_the_tree():
    script = load_script("recursive")
    turns = [*script.turns, *(t for a in script.agents for t in a.turns)]
    characters = sum(len(t.say) + len(t.think) for t in turns)
    seconds = characters / script.speed + sum(t.delay for t in turns)
    assert 60 <= seconds <= 120
    assert {a.kind for a in script.agents} == {"agent", "validator", "explore"}
