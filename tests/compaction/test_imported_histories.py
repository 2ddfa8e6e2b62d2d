"""Real sessions of other agents under every policy and every projection; where the corpus is
absent, the project's own samples in those formats."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cyberagent.compaction.keep import said_in
from cyberagent.compaction.passes import complete, run_policy
from cyberagent.compaction.policy import POLICIES, policy_from, policy_named
from cyberagent.compaction.summary import settled, stub_summary
from cyberagent.compaction.values import Facts, Items, is_said
from cyberagent.core.errors import WindowTooLarge
from cyberagent.core.guards import Budget, raw_size
from cyberagent.core.tokens import count_message
from cyberagent.core.window import Item, Window
from cyberagent.providers.anthropic import project_anthropic
from cyberagent.providers.check_anthropic import problems_anthropic
from cyberagent.providers.check_openai import problems_openai
from cyberagent.providers.openai import DIALECTS, project_openai
from cyberagent.trace.formats import read_transcript
from cyberagent.trace.goals import replay
from cyberagent.trace.tree import path_of
from tests.compaction.histories import COUNTER
from tests.providers.windows import READ

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "fixtures" / "transcripts"
CORPUS = ROOT.parent / "shared" / "corpus"
REAL = (
    "claude-code/*258c7280-ae70-4798-800f-63464d01a85d.jsonl",
    "claude-code/*fa812bfe-b295-4cca-9c2f-fdf01028cb46.jsonl",
    "claude-code/*fe5e1c67-53e7-4862-81ae-d0e013e3270b.jsonl",
    "claude-code/*fa812bfe*agent-aa84377.jsonl",
    "chat-completions/*tau-bench*.json",
    "mini-swe-agent/*django-11138.traj.json",
)
MOST = 1_500
"""Messages of one session that are looked at: the first."""

EVERY = [*(policy_named(name) for name in POLICIES), policy_from(["snip", "micro", "summary"])]


@cache
def session(path: Path) -> tuple[Items, str]:
    """The main path of the longest conversation in a file, and its mission."""
    found = max(read_transcript(path), key=lambda imported: len(imported.trace.messages))
    messages = {m.sequence: m for m in found.trace.messages}
    line = path_of(messages, found.trace.state.head_sequence)[:MOST]
    counted = (replace(m, tokens=count_message(COUNTER, m)) for m in line)
    return tuple(Item(m) for m in counted), found.trace.state.mission


def real(pattern: str) -> Path:
    if not CORPUS.is_dir():
        pytest.skip(f"the corpus of real transcripts is not at {CORPUS.name}")
    found = sorted(CORPUS.glob(pattern))
    if not found:
        pytest.skip(f"the corpus has no {pattern}")
    return found[0]


def samples() -> list[Path]:
    return sorted(p for p in SAMPLES.rglob("*") if p.suffix in (".json", ".jsonl"))


def check(items: Items, mission: str, policy, share: float) -> None:
    """One pass under a threshold of ``share`` of the history, every projection of what it left,
    and a second pass."""
    facts = Facts(counter=COUNTER, plan=replay([i.message for i in items], mission))
    size = raw_size(items)
    budget = Budget(
        fixed=50, reserve=50, window=2 * size + 60_000, threshold=max(1, int(size * share)),
        target=int(size * share * 0.7),
    )  # fmt: skip
    for _ in range(2):
        try:
            state = run_policy(policy, items, budget, facts)
        except WindowTooLarge as error:
            assert error.floor is not None
            return
        state = complete(state, lambda _: stub_summary(facts.plan, characters=2_000))
        after = state.result()
        accept(after)
        people_stay(items, after)
        draft = next((i.message for i in after if i.kind == "inserted" and
                      i.message.source == "summary"), None)  # fmt: skip
        items = after if draft is None else settled(after, replace(draft, sequence=10**6))


def accept(items: Items) -> None:
    for dialect in DIALECTS:
        chat = Window(
            system="s", items=items, tools=(READ,), params={"model": "m", "dialect": dialect}
        )
        assert problems_openai(project_openai(chat), dialect) == []
    for thinking in (None, 2_000):
        params = {"model": "m", "thinking": thinking, "max_output_tokens": 4_000}
        talk = Window(system="s", items=items, tools=(READ,), params=params)
        assert problems_anthropic(project_anthropic(talk)) == []


def people_stay(before: Items, after: Items) -> None:
    said = [s.sequence for s in said_in(before)]
    back = {s.sequence: s for s in said_in(after)}
    assert sorted(back) == sorted(said)
    first = next((i for i in before if is_said(i.message)), None)
    if first is not None:
        assert back[first.message.sequence].whole


@pytest.mark.parametrize("policy", EVERY, ids=[p.name for p in EVERY])
@pytest.mark.parametrize("pattern", REAL)
def test_a_real_session_keeps_its_people_and_no_provider_refuses_it(pattern, policy):
    items, mission = session(real(pattern))
    for share in (0.5, 0.1):
        check(items, mission, policy, share)


def test_the_projects_own_samples_are_there():
    assert samples()


@pytest.mark.parametrize("policy", EVERY, ids=[p.name for p in EVERY])
@pytest.mark.parametrize("path", samples(), ids=lambda p: p.name)
def test_a_sample_keeps_its_people_and_no_provider_refuses_it(path, policy):
    items, mission = session(path)
    for share in (0.5, 0.1):
        check(items, mission, policy, share)
