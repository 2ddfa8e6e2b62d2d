"""Nothing leaks between the agents of a tree: canaries are planted wherever an agent must not look,
and every payload of every agent is searched for them. Which canary may sing where stands here,
agent by agent, and follows from docs/protocol.md alone."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from cyberagent.core.config import Limits
from cyberagent.core.delegation import delegate
from cyberagent.core.events import Compacted, ToolResult
from cyberagent.core.inmemory import InMemoryStore
from cyberagent.core.lineage import open_protocol
from cyberagent.core.ports import Skill, ToolContext
from cyberagent.core.types import Reasoning
from cyberagent.tools.builtin.agents import agent as AGENT
from cyberagent.tools.builtin.context import read_context_ref
from cyberagent.tools.builtin.explore import read_conclusion
from cyberagent.tools.registry import tool
from tests.core.trees import agent, calls, report, say
from tests.core.watching import Extras, WatchedTree, at_work, canaries, canary
from tests.tools.helpers import call

TOOLS = (
    "goal", "agent", "review_child", "read_context_ref", "read_file", "search_files", "skill",
    "get_current_context", "explore", "delegate_research", "read_conclusion",
)  # fmt: skip
ANCHOR = {
    "objective": f"Have the parts written {canary('anchor_objective')}",
    "completion_criteria": [f"All parts are there {canary('anchor_criterion')}"],
    "constraints": [f"Write nothing down twice {canary('anchor_constraint')}"],
}
ANCHOR_SEEN = {"anchor_objective", "anchor_criterion", "anchor_constraint"}

OBJECTIVES = {
    "s1": "Write part one", "s2": "Write part two", "s3": "Write part three",
    "a": "Write part A", "b": "Write part B", "c": "Write part C", "r": "Write part R",
    "r2": "Write part R",
}  # fmt: skip
"""The contracts: s1, s2, s3, a and r are the root's children, b is a's child and c is b's; r2 is
r's revised contract."""

QUESTIONS = {
    "e": f"Where is it? {canary('e_question')}",
    "q": f"Who has it? {canary('q_question')}",
}
"""What a asks: e explores, q researches."""

LABELS = {text: label for label, text in {**OBJECTIVES, **QUESTIONS}.items() if label != "r2"}


@tool
def plant(context: ToolContext) -> str:
    """Plant a notification and a collaborator."""
    context.state.notifications.append(canary("root_notification"))
    context.state.collaborators.append(("c1", canary("root_collaborator"), "busy"))
    return "planted"


# What the agents are given and do ----------------------------------------------------------------


def brief(label: str, **more: Any) -> dict[str, Any]:
    """The brief of ``label``, with a canary in every field that takes a text of one's own."""
    return {
        "objective": OBJECTIVES.get(label, "Write something else"),
        "reason": canary(f"{label}_reason"),
        "completion_criteria": [f"{label}: done {canary(f'{label}_criterion')}"],
        "expected_outputs": [canary(f"{label}_expected")],
        "parent_findings": [{"found": canary(f"{label}_finding")}],
        "context": {"deep": [canary(f"{label}_context")]},
        "constraints": [canary(f"{label}_constraint")],
        **more,
    }


BRIEF = ("reason", "criterion", "expected", "finding", "context", "constraint")


def given(*labels: str) -> set[str]:
    """What the briefs of these agents sing."""
    return {f"{label}_{part}" for label in labels for part in BRIEF}


def did(*labels: str) -> set[str]:
    """What these agents leave on their own main paths but for their reasoning."""
    return {f"{label}_{part}" for label in labels for part in ("say", "goal", "call", "result")}


def came_of(*labels: str) -> set[str]:
    """What whoever asked is told of an agent with a contract: its report, and the verdict."""
    return {f"{label}_{part}" for label in labels for part in ("report", "verdict", "judged")}


def work(label: str) -> dict[str, Any]:
    """A turn that leaves a canary of ``label`` in each kind of thing that a path holds."""
    return {
        "think": canary(f"{label}_think"),
        "say": canary(f"{label}_say"),
        "calls": [
            {"goal": {"add": canary(f"{label}_goal"), "focus": "1"}},
            {"search_files": {"pattern": canary(f"{label}_call"), "path": f"{label}.txt"}},
            {"read_file": {"path": f"{label}.txt"}},
        ],
    }


def submit(label: str, contract: str = "", **more: Any) -> dict[str, Any]:
    criterion = brief(contract or label)["completion_criteria"][0]
    told = report(criterion, summary=canary(f"{label}_report"), **more)
    return calls({"submit_report": {"report": told}})


def judge(label: str, word: str = "passed", *, match: Any = None, evidence: Any = '"count"') -> Any:
    """Who validates ``label``; R1 is the root's criterion, B1 anybody else's."""
    one = "R1" if label == "root" else "B1"
    answer = (
        f'{{"verdict": "{word}", "reason": "{canary(f"{label}_verdict")}", "criteria": ['
        f'{{"criterion": "{one}", "verdict": "{word}", "reason": "{canary(f"{label}_judged")}", '
        f'"evidence": [{evidence}]}}]}}'
    )
    turn: dict[str, Any] = {"think": canary(f"{label}_v_think"), "say": answer}
    if label == "root":
        turn["find"] = {"seq": '# CandidateAnswer\n{"sequence":{},'}
    return agent(match or f'"objective":"{OBJECTIVES[label]}"', "validator", turn)


S2_REF = {"s2": "- {}: Write part two", "v2": "result:{s2} version {} "}
S3_REF = {"s3": "- {}: Write part three", "v3": "result:{s3} version {} "}


def ref(name: str) -> dict[str, str]:
    return {"ref_id": f"reviewed_task_result:{{s{name}}}", "version": f"{{v{name}}}"}


def accept(label: str) -> dict[str, Any]:
    reason = canary(f"{label}_review")
    return {"review_child": {"child": f"{{{label}}}", "decision": "ACCEPT", "reason": reason}}


def root_turns() -> list[Any]:
    begin, look = work("root"), calls({"get_current_context": {}})
    reviewed = [accept(n) for n in ("s1", "s2", "s3")]
    revision = {
        "child": "{r}",
        "decision": "REVISE_CHILD",
        "reason": canary("r_review"),
        "next_brief": brief("r2"),
    }
    return [
        {**begin, "calls": [{"plant": {}}, *begin["calls"], {"skill": {"name": "secret"}}]},
        calls({"goal": {"done": "1", "summary": canary("root_goal_summary")}}, *look["calls"]),
        calls(*({"agent": {"task_brief": brief(n)}} for n in ("s1", "s2", "s3"))),
        look,
        calls(*reviewed, s1="- {}: Write part one", s2=S2_REF["s2"], s3=S3_REF["s3"]),
        look,
        calls(
            {"agent": {"task_brief": brief("a", context_refs=[ref("2"), ref("3")])}},
            {"agent": {"task_brief": brief("r", context_refs=[ref("2")])}},
            **S2_REF,
            **S3_REF,
        ),
        look,
        calls(
            accept("a"),
            {"review_child": revision},
            a="- {}: Write part A",
            r="- {}: Write part R",
        ),
        look,
        calls({"agent": {"task_brief": brief("r2"), "child": "{r}"}}, r="- {}: Write part R"),
        look,
        calls(
            {"review_child": {"child": "{r}", "decision": "ACCEPT", "reason": "good"}},
            r="- {}: Write part R",
        ),
        say(f"All parts are written. {canary('root_answer')}"),
    ]  # fmt: skip


def agents(other: dict[str, str] | None = None) -> list[Any]:
    """The children. ``other``: ids and versions of another user's tree, which are tried."""
    other = other or {"trace": "0" * 12, "version": "0" * 64}
    trace, version = other["trace"], other["version"]
    foreign = [
        {"read_conclusion": {"child": trace}},
        {"read_context_ref": {"ref_id": f"task_brief:{trace}", "version": version}},
        {"agent": {"task_brief": brief("x"), "child": trace}},
    ]
    upwards = {"above": "the root first\n{}", "sibling": "- reviewed_task_result:{} version "}
    asked = "background"
    return [
        agent("Write part one", "agent", work("s1"), submit("s1")),
        agent("Write part two", "agent", work("s2"), submit("s2", outputs=[
            {"name": "count", "text": "2"}, {"name": "file", "artifact": "made.txt"}])),
        agent("Write part three", "agent", work("s3"), submit("s3")),
        agent("Write part A", "agent",
            work("a"),
            calls(
                {"read_context_ref": ref("2")},
                *foreign,
                {"read_conclusion": {"child": "{above}"}},
                {"read_conclusion": {"child": "{sibling}"}},
                s2={"text": "- reviewed_task_result:{} version ", "nth": 2},
                v2="result:{s2} version {} ", **upwards),
            calls({"agent": {"task_brief": brief("b")}}),
            calls({"review_child": {"child": "{b}", "decision": "ACCEPT"}}, b="Child {} ended"),
            calls(
                {"explore": {"branches": [QUESTIONS["e"]], asked: canary("a_background")}},
                {"delegate_research": {"task": QUESTIONS["q"], "context": canary("a_told")}}),
            submit("a")),
        agent("Write part B", "agent",
            work("b"),
            calls({"read_context_ref": {"ref_id": "task_brief:{a}", "version": "{v}"}},
                a="- task_brief:{} version", v="task_brief:{a} version {} "),
            calls({"agent": {"task_brief": brief("c")}}),
            calls({"review_child": {"child": "{c}", "decision": "ACCEPT"}}, c="Child {} ended"),
            submit("b")),
        agent("Write part C", "agent",
            work("c"),
            calls({"read_context_ref": {"ref_id": "task_brief:{b}", "version": "{v}"}},
                {"read_context_ref": {"ref_id": "task_brief:{a}", "version": "{v}"}},
                {"read_conclusion": {"child": "{a}"}},
                b="- task_brief:{} version", v="task_brief:{b} version {} ", a="→ {} →"),
            submit("c")),
        agent("Write part R", "agent",
            work("r"),
            submit("r"),
            calls({"read_context_ref": ref("2")},
                s2="- reviewed_task_result:{} version ", v2="result:{s2} version {} "),
            submit("r2")),
        agent(canary("e_question"), "explore", work("e"), say(canary("e_answer"))),
        agent(canary("q_question"), "research", work("q"), say(canary("q_answer"))),
        judge("root", match="# TaskBrief\nnull", evidence="{seq}"),
        judge("r2", match=canary("r2_reason")),
        judge("r", "failed"),
        *(judge(n) for n in ("s1", "s2", "s3", "a", "b", "c")),
    ]  # fmt: skip


# Who may see what --------------------------------------------------------------------------------

HANDED_S2 = came_of("s2") | {"s2_review", "s2_criterion"}
"""The reviewed result of s2 as its ref has it: report, verdict with the criteria, review."""

ROOT = {
    "root_system", "root_mission", "root_said", "root_notification", "root_collaborator",
    "root_provider_title", "root_provider", "root_skill", "root_goal_summary",
    "r_review", "a_review", "s1_review", "s2_review", "s3_review",
}  # fmt: skip
BELOW_A = did("a") | given("b") | came_of("b") | {
    "e_question", "q_question", "a_background", "a_told", "e_answer", "q_answer"
}  # fmt: skip

MAY_SEE: dict[str, set[str]] = {
    "root": ANCHOR_SEEN | ROOT | did("root") | given("s1", "s2", "s3", "a", "r", "r2")
        | came_of("s1", "s2", "s3", "a", "r", "r2"),
    "s1": ANCHOR_SEEN | given("s1") | did("s1"),
    "s2": ANCHOR_SEEN | given("s2") | did("s2"),
    "s3": ANCHOR_SEEN | given("s3") | did("s3"),
    "a": ANCHOR_SEEN | given("a") | HANDED_S2 | BELOW_A | given("x"),
    "b": ANCHOR_SEEN | given("b", "a") | did("b") | given("c") | came_of("c"),
    "c": ANCHOR_SEEN | given("c", "b") | {"a_constraint"} | did("c"),
    "r": ANCHOR_SEEN | given("r", "r2") | did("r") | {"r_report", "r_verdict"},
    "e": {"e_question", "a_background"} | did("e"),
    "q": {"q_question", "a_told"} | did("q"),
}  # fmt: skip
MAY_SEE |= {
    # The packet: anchor, brief, report, artifacts, the judged run's main path.
    "s1.v": MAY_SEE["s1"] | {"s1_report"},
    "s2.v": MAY_SEE["s2"] | {"s2_report", "s2_artifact"},
    "s3.v": MAY_SEE["s3"] | {"s3_report"},
    "a.v": MAY_SEE["a"] | {"a_report"},
    "b.v": MAY_SEE["b"] | {"b_report"},
    "c.v": MAY_SEE["c"] | {"c_report"},
    "r.v": ANCHOR_SEEN | given("r") | did("r") | {"r_report"},
    "r.v2": MAY_SEE["r"] | {"r2_report"},
    "root.v": MAY_SEE["root"] - {"root_system"} | {"root_answer"},
}


def planted(folder: Path, filler: int) -> None:
    for label in ("root", "s1", "s2", "s3", "a", "b", "c", "r", "e", "q"):
        count = filler if label in ("root", "a", "b", "c") else 0
        lines = [f"{label} line {n} holds a fact that fills the window" for n in range(count)]
        (folder / f"{label}.txt").write_text("\n".join([canary(f"{label}_result"), *lines]))
    (folder / "made.txt").write_text(canary("s2_artifact"))


async def another_users_tree(folder: Path, store: InMemoryStore) -> dict[str, str]:
    """A tree of somebody else in the same store: its child's id, and its contract's version."""
    folder.mkdir()
    planted(folder, 0)
    begin = calls({"agent": {"task_brief": brief("o")}})
    turns = [
        {**begin, "think": canary("other_think"), "say": canary("other_say")},
        calls(accept("o"), o="Child {} ended"),
        say("Done."),
    ]
    children = [
        agent("Write something else", "agent", submit("other", contract="o")),
        agent("Write something else", "validator", say("None of yours.")),
        judge("root", match="# TaskBrief\nnull", evidence="{seq}"),
    ]
    other = WatchedTree(folder, turns, children)
    other.store = store
    await other.go(
        [{"role": "user", "content": canary("other_mission")}],
        root_task_anchor={**ANCHOR, "objective": canary("other_anchor")},
    )
    [child] = await other.traces("agent")
    state = await open_protocol(store, child, await store.path(child.id))
    assert state is not None and state.brief is not None and state.report is not None
    return {"trace": child.id, "version": state.brief.sha256}


async def grown(folder: Path, filler: int = 0, **config: Any) -> WatchedTree:
    store = InMemoryStore()
    other = await another_users_tree(folder / "other", store)
    planted(folder, filler)
    branches = config.pop("branches", None)
    tree = WatchedTree(
        folder,
        root_turns(),
        config.pop("agents", None) or agents(other),
        branches=branches,
        tools=TOOLS,
        system_prompt=canary("root_system"),
        **config,
    )
    tree.store = store
    skill = Skill(name="secret", description="How to do it", text=canary("root_skill"))
    extras = Extras(
        tools=(plant,),
        context_providers=(lambda _: (canary("root_provider_title"), canary("root_provider")),),
        skills={"secret": skill},
        say=canary("root_said"),
    )
    await tree.go(
        [{"role": "user", "content": canary("root_mission")}],
        extras=extras,
        root_task_anchor=ANCHOR,
    )
    return tree


PASSED = ("completed", "the validator found the answer passed")


# The whole tree ----------------------------------------------------------------------------------


@pytest.mark.parametrize("children", ["serial", "parallel"])
async def test_each_agent_sees_what_the_protocol_gives_it_and_nothing_else(
    tmp_path: Path, children: str
):
    tree = await grown(tmp_path, children=children)
    assert (tree.done.status, tree.done.why) == PASSED
    labels = await tree.labels(LABELS)
    assert {label: tree.seen(trace) for label, trace in labels.items()} == MAY_SEE
    await tree.assert_every_call_was_watched()
    # All the places where nobody at all may look were planted.
    everything = "".join([await stored_text(tree), json.dumps(tree.config.to_json())])
    unseen = {f"{n}_think" for n in ("root", "s1", "a", "b", "c", "r", "e", "q")}
    unseen |= {"root_v_think", "a_v_think"}
    assert unseen <= canaries(everything)


async def stored_text(tree: WatchedTree) -> str:
    """All that the tree's traces have stored, reasoning included."""
    found: list[str] = []
    for one in await tree.store.tree(tree.done.trace):
        rows = await tree.store.messages(one.state.id, range(1, one.state.last_sequence + 1))
        found += [json.dumps(m.to_json()) for m in rows.values()]
    return "".join(found)


LONG_PACKETS = ("root.v", "a.v", "b.v", "c.v")
"""Whose packets would need the whole of a file that fills a window."""


def with_branches(agents: list[Any]) -> list[Any]:
    """The agents, with what they say when they compact: each under its own name."""
    labels = {text: label for label, text in OBJECTIVES.items() if label != "r2"}
    return [
        {**one, "branches": branches_of(labels[one["match"]])} if one["match"] in labels else one
        for one in agents
    ]


def branches_of(label: str) -> dict[str, Any]:
    def said(kind: str) -> list[Any]:
        text = f"[1-5] Lines of facts were read. {canary(f'{label}_{kind}')}"
        return [{"think": canary(f"{label}_{kind}_think"), "say": text}] * 20

    return {kind: said(kind) for kind in ("reflection", "knowledge_eval", "compression")}


@pytest.mark.parametrize("children", ["serial", "parallel"])
async def test_compactions_of_parent_and_child_open_no_way_between_them(
    tmp_path: Path, children: str
):
    tree = await grown(
        tmp_path,
        filler=1_200,
        children=children,
        agents=with_branches(agents()),
        branches=branches_of("root"),
        context_window=40_000,
        enable_extraction=True,
        limits=Limits(max_tool_output_chars=0),
        validator={"model": "of its own"},
    )
    assert (tree.done.status, tree.done.why) == PASSED
    labels = await tree.labels(LABELS)
    for label, trace in labels.items():
        compacted = label in ("root", "a", "b", "c")
        passes = [e for e in await tree.store.events(trace, 0, 10_000) if isinstance(e, Compacted)]
        assert [p.success for p in passes] == [True] * compacted
        # What it says on side branches is its own affair; the summary alone comes into its window,
        # and none of both to anybody else. A result of 60,000 characters fits into no packet.
        own = {f"{label}_compression", f"{label}_reflection"} if compacted else set[str]()
        too_long = {f"{label.removesuffix('.v')}_result"} if label in LONG_PACKETS else set[str]()
        assert tree.seen(trace) == (MAY_SEE[label] | own) - too_long, label
        assert f"{label}_reflection" not in "".join(tree.payloads([trace], side=False))
        # What it was made for still stands in the last window, and once.
        if label in ("a", "b", "c"):
            last = tree.payloads([trace], side=False)[-1]
            assert last.count("# Your contract, version 1") == 1
    await tree.assert_every_call_was_watched()


# What no tool gives ------------------------------------------------------------------------------

HOLDS: dict[str, set[str]] = {
    "root": {f"reviewed_task_result:{n}" for n in ("s1", "s2", "s3", "a", "r")},
    "a": {f"reviewed_task_result:{n}" for n in ("s2", "s3", "b")},
    "b": {"task_brief:a", "reviewed_task_result:c"},
    "c": {"task_brief:b"},
}
"""Which refs each agent holds at the end, by whose contract or result they are."""

HANDED_OVER = {"root": {"s1", "s2", "s3", "a", "r"}, "a": {"b", "e", "q"}, "b": {"c"}}
"""Whose report or conclusion each agent may read in slices: its own sub-agents' that have one."""


async def test_a_ref_is_read_by_who_holds_that_very_pair_and_by_nobody_else(tmp_path: Path):
    tree = await grown(tmp_path)
    labels = await tree.labels(LABELS)
    named = {trace: label for label, trace in labels.items()}
    contexts = {label: await at_work(tree, trace) for label, trace in labels.items()}
    pairs: dict[tuple[str, str], str] = {}
    for context in contexts.values():
        protocol = context.state.protocol
        for grant in protocol.catalogue.grants if protocol else ():
            kind, _, whose = grant.snapshot.ref_id.partition(":")
            pairs[grant.snapshot.ref_id, grant.snapshot.version] = f"{kind}:{named[whose]}"
    assert set(pairs.values()) == set.union(*HOLDS.values())
    for label, context in contexts.items():
        for (ref_id, version), what in pairs.items():
            found = await call(read_context_ref, context, ref_id=ref_id, version=version)
            assert (found.status == "ok") is (what in HOLDS.get(label, ())), (label, what)
            wrong = version[::-1]
            found = await call(read_context_ref, context, ref_id=ref_id, version=wrong)
            assert found.status == "error"


async def test_nothing_can_be_read_by_a_traces_id_but_what_ones_own_sub_agents_handed_over(
    tmp_path: Path,
):
    tree = await grown(tmp_path)
    labels = await tree.labels(LABELS)
    strangers = {t for t in tree.store._traces if t not in labels.values()}
    assert len(strangers) == 4, "another user's root, child and two validators"
    refusals: set[str] = set()
    for label, trace in labels.items():
        context = await at_work(tree, trace)
        for target in (*labels.values(), *strangers, "0" * 12):
            found = await call(read_conclusion, context, child=target)
            whose = next((n for n, t in labels.items() if t == target), "")
            assert (found.status == "ok") is (whose in HANDED_OVER.get(label, ())), (label, whose)
            if found.status == "error":
                refusals.add(found.text.replace(target, "…"))
            # Nor can another's run be had to go on.
            asked = await call(AGENT, context, task_brief=brief("x"), child=target)
            assert asked.status == "error" and canaries(asked.text) == set()
            if whose not in HANDED_OVER.get(label, ()) and context.state.protocol:
                refusals.add(asked.text.replace(target, "…"))
    # A trace that there is, is refused in the same words as one that there is not.
    assert len(refusals) == 2, refusals


async def test_the_last_words_of_a_child_without_a_report_reach_nobody(tmp_path: Path):
    words = say(canary("last_words"))
    turns = [
        calls({"agent": {"task_brief": brief("a")}}),
        calls({"read_conclusion": {"child": "{a}"}}, a="Child {} ended"),
        calls({"review_child": {"child": "{a}", "decision": "ABANDON"}}, a="Child {} ended"),
        calls({"read_conclusion": {"child": "{a}"}}, a="Child {} ended"),
        say("Nothing came of it."),
    ]
    tree = WatchedTree(tmp_path, turns, [agent("Write part A", "agent", words, words, words)])
    await tree.go()
    labels = await tree.labels(LABELS)
    assert "last_words" in tree.seen(labels["a"]), "two reminders came after the first"
    assert "last_words" not in tree.seen(labels["root"], labels["root.v"])
    told = [e for e in tree.events if isinstance(e, ToolResult) and e.name == "read_conclusion"]
    assert [e.status for e in told] == ["error", "error"]


async def test_an_unreviewed_report_can_neither_be_passed_on_nor_reported_on(tmp_path: Path):
    turns = [
        calls({"agent": {"task_brief": brief("a")}}),
        calls({"review_child": {"child": "{a}", "decision": "ACCEPT"}}, a="Child {} ended"),
        say("Done."),
    ]
    unreviewed = {"ref_id": "reviewed_task_result:{b}", "version": "0" * 64}
    children = [
        agent(
            "Write part A",
            "agent",
            calls({"agent": {"task_brief": brief("b")}}),
            calls({"agent": {"task_brief": brief("c", context_refs=[unreviewed])}}, b="Child {} "),
            submit("a"),
            calls({"review_child": {"child": "{b}", "decision": "ACCEPT"}}, b="Child {} ended"),
            submit("a"),
        ),
        agent("Write part B", "agent", submit("b")),
        judge("a"),
        judge("b"),
        judge("root", match="# TaskBrief\nnull", evidence="{seq}"),
    ]
    tree = await WatchedTree(tmp_path, turns, children).go()
    assert (tree.done.status, tree.done.why) == PASSED
    labels = await tree.labels(LABELS)
    assert "c" not in labels and "a.v2" not in labels
    texts = [m.text for m in await tree.store.path(labels["a"]) if m.role == "tool"]
    assert "does not hold the ref" in texts[1] and "review your sub-agents first" in texts[2]


# agent() and explore() ---------------------------------------------------------------------------


def test_agent_takes_a_brief_and_the_child_to_revise_and_no_messages():
    assert set(AGENT.parameters["properties"]) == {"task_brief", "child"}
    assert AGENT.parameters["additionalProperties"] is False
    parameters = inspect.signature(delegate).parameters
    assert list(parameters) == ["context", "task_brief", "child"]


@pytest.mark.parametrize("name", ["messages", "history", "system_prompt", "inherit", "trace"])
async def test_nothing_beside_the_contract_can_be_slipped_to_a_child(tmp_path: Path, name: str):
    extra = {name: [{"role": "user", "content": canary("slipped")}]}
    turns = [
        calls({"agent": {"task_brief": brief("a"), **extra}}),
        calls({"agent": {"task_brief": {**brief("a"), **extra}}}),
        say("It was refused."),
    ]
    tree = await WatchedTree(tmp_path, turns, [agent("Write part A", "agent", submit("a"))]).go()
    told = [e for e in tree.events if isinstance(e, ToolResult) and e.name == "agent"]
    assert [e.status for e in told] == ["error", "error"]
    assert all(name in e.preview for e in told)
    assert await tree.traces("agent") == []


def exploring(*turns: Any) -> list[Any]:
    return [{**work("root"), "calls": work("root")["calls"]}, *turns, say("The end.")]


EXPLORERS = [
    agent(canary("e_question"), "explore", work("e"), say(canary("e_answer"))),
    agent(canary("q_question"), "research", work("q"), say(canary("q_answer"))),
]


@pytest.mark.parametrize("background", ["", " \n"])
async def test_in_a_recursive_run_nobody_explores_without_a_background(
    tmp_path: Path, background: str
):
    planted(tmp_path, 0)
    asked = {"explore": {"branches": [QUESTIONS["e"]], "background": background}}
    turns = [calls(asked), calls({"agent": {"task_brief": brief("a")}}), say("The end.")]
    children = [agent("Write part A", "agent", calls(asked), submit("a")), *EXPLORERS]
    tree = await WatchedTree(tmp_path, turns, children).go()
    [child] = await tree.traces("agent")
    for trace in (tree.done.trace, child.id):
        [text] = [m.text for m in await tree.store.path(trace) if m.name == "explore"]
        assert "background is needed" in text
    assert await tree.traces("explore") == []


@pytest.mark.parametrize("children", ["serial", "parallel"])
async def test_who_explores_in_a_run_of_one_agent_inherits_its_conversation_if_it_may(
    tmp_path: Path, children: str
):
    """By design: without a background the questions are asked on the whole conversation, but for
    its reasoning, and of what stands beside the conversation nothing."""
    planted(tmp_path, 0)
    explore = {"branches": [QUESTIONS["e"]]}
    turns = exploring(
        calls({"explore": explore}),
        calls({"explore": {**explore, "background": canary("a_background")}}),
        calls({"delegate_research": {"task": QUESTIONS["q"], "context": canary("a_told")}}),
        calls({"delegate_research": {"task": QUESTIONS["q"]}}),
    )
    tree = WatchedTree(
        tmp_path,
        turns,
        EXPLORERS,
        preset="cyber",
        children=children,
        system_prompt=canary("root_system"),
    )
    await tree.go([{"role": "user", "content": canary("root_mission")}], None)
    assert tree.done.status == "completed"
    whole, told = [t.id for t in await tree.traces("explore")]
    helped, alone = [t.id for t in await tree.traces("research")]
    assert tree.seen(whole) == {"root_mission", "e_question"} | did("root") | did("e")
    assert tree.seen(told) == {"a_background", "e_question"} | did("e")
    assert tree.seen(helped) == {"a_told", "q_question"} | did("q")
    assert tree.seen(alone) == {"q_question"} | did("q")
    answers = {"e_answer", "q_answer"}
    assert tree.seen(tree.done.trace) >= answers and not tree.seen(tree.done.trace) & did("e")
    copies = await tree.store.path(whole)
    assert not any(isinstance(p, Reasoning) for m in copies[:5] for p in m.parts)
