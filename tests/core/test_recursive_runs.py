"""The recursive task protocol in a run: scripted models, real tools, a store in memory."""

from __future__ import annotations

from pathlib import Path

from cyberagent.core.events import ChildEnded, ChildStarted, Reviewed, Verdict
from cyberagent.core.lineage import open_protocol
from tests.core.trees import ANCHOR, Tree, agent, brief, calls, report, say, verdict

COUNT = brief("Count a.md")
CRITERION = "Count a.md: done"
CHILD = "Child {} ended"

CHILD_TURNS = (
    calls({"read_file": {"path": "a.md"}}),
    calls({"submit_report": {"report": report(CRITERION)}}),
)
ROOT_TURNS = [
    calls({"agent": {"task_brief": COUNT}}),
    calls({"review_child": {"child": "{id}", "decision": "ACCEPT"}}, id=CHILD),
    say("a.md has 2 lines."),
]


def passing(*turns: object) -> list[object]:
    return [
        agent("Count a.md", "agent", *(turns or CHILD_TURNS)),
        agent('"CandidateAnswer"', "validator", say("never")),
        agent("a.md has 2 lines.", "validator", say(verdict("passed", "R1", evidence=9))),
        agent("# TaskReport", "validator", say(verdict("passed", "B1"))),
    ]


async def test_a_child_reports_is_validated_and_reviewed_and_the_root_is_validated(tmp_path: Path):
    tree = await Tree(tmp_path, ROOT_TURNS, passing()).go()
    assert tree.done.status == "completed"
