"""A tree of agents on real workers: whoever drives it is killed again and again, and the next one
goes on with the same sub-agents."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psycopg

from tests.cluster.test_workers import Cluster, cluster, wait_for
from tests.core.flows import (
    ACCEPT,
    ANSWER,
    BOTH,
    FAST,
    ONE,
    PASSING,
    READ,
    slow,
    submit,
    works_as,
)
from tests.core.trees import ANCHOR, agent, calls, say, verdict

START = """
import json, sys, django
django.setup()
from cyberagent.core.config import RunConfig
from cyberagent.core.context_policy import normalize_root_task_anchor
from traces import commands
config, anchor = json.loads(sys.argv[1]), json.loads(sys.argv[2])
run = commands.start(None, "Count the notes.", RunConfig.from_json(config),
                     anchor=normalize_root_task_anchor(anchor))
print(run.pk)
"""

SCRIPT: dict[str, Any] = {
    "turns": [calls({"agent": {"task_brief": BOTH}}), ACCEPT, ANSWER],
    "agents": [
        works_as("Count both", calls({"agent": {"task_brief": ONE}}), ACCEPT, submit("Count both")),
        works_as("Count a.md", slow(READ, 3), submit("Count a.md")),
        PASSING[0],
        agent(
            ["# TaskReport", '"objective":"Count a.md"'],
            "validator",
            slow(say(verdict("passed", "B1")), 3),
        ),
        PASSING[1],
    ],
}

CALLS = (
    "SELECT count(*) FROM traces_modelcall c JOIN traces_trace t ON t.id = c.trace_id"
    " WHERE t.mission = %s AND c.status = 'sent'"
)
MARK = '"protocol":'
TREE = "SELECT mission, status, lease_owner, last_event, id FROM traces_trace ORDER BY created_at"


def killed(made: Cluster, root: str) -> None:
    """Kill whoever drives the run, in the middle of whatever it does."""
    owner = made.row("SELECT lease_owner FROM traces_trace WHERE id = %s", root)[0]
    driver = int(owner.split(":")[1])
    (process,) = [p for p in made.processes if p.pid == driver]
    os.kill(driver, signal.SIGKILL)
    process.wait()


def rows(made: Cluster, query: str, *params: Any) -> list[Any]:
    with psycopg.connect(made.database) as connection:
        return connection.execute(query, params).fetchall()


def test_a_tree_outlives_every_worker_that_drove_it(
    postgres_database: str, redis_url: str, tmp_path: Path, unused_tcp_port: int
):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.md").write_text("one\ntwo\n")
    config = {
        "provider": "scripted",
        "preset": "recursive",
        "workspace": str(tmp_path / "work"),
        "provider_options": {"script": SCRIPT, "speed": FAST},
    }
    with cluster(postgres_database, redis_url, tmp_path) as made:
        made.worker("first")
        root = made.run("-c", START, json.dumps(config), json.dumps(ANCHOR))
        wait_for(lambda: made.row(CALLS, "Count a.md")[0] == 1, "the grandchild's model call")
        killed(made, root)
        made.worker("second")
        made.spawn("web", "daphne", "-p", str(unused_tcp_port), "cyberagent.asgi:application")
        judge = "Validate: Count a.md"
        wait_for(lambda: made.row(CALLS, judge)[0] == 1, "the call of the validator")
        killed(made, root)
        made.worker("third")
        state = "SELECT status FROM traces_trace WHERE id = %s"
        wait_for(lambda: made.row(state, root)[0] != "running", "the end of the run")

        tree = rows(made, TREE)
        assert [(mission, status, owner) for mission, status, owner, *_ in tree] == [
            ("Count the notes.", "completed", ""),
            ("Count both", "completed", ""),
            ("Count a.md", "completed", ""),
            (judge, "completed", ""),
            ("Validate: Count both", "completed", ""),
            ("Validate: Have the two notes counted", "completed", ""),
        ]
        for _, _, _, last, trace in tree:
            told = "SELECT count(*), max(number) FROM traces_event WHERE trace_id = %s"
            assert made.row(told, trace) == (last, last)
        named = "SELECT name, count(*) FROM traces_message WHERE role = 'tool' GROUP BY 1"
        results = rows(made, named)
        assert dict(results) == {"agent": 2, "review_child": 2, "read_file": 1, "submit_report": 2}
        recorded = (
            "SELECT metadata FROM traces_message WHERE position('\"protocol\"' in metadata) > 0"
        )
        kept = rows(made, recorded)
        entries = [e["entry"] for (text,) in kept for e in json.loads(text)["protocol"]]
        assert {e: entries.count(e) for e in set(entries)} == {
            "briefed": 2,
            "delegated": 2,
            "child_ended": 2,
            "reported": 2,
            "validated": 3,
            "reviewed": 2,
        }
        verdicts = made.row("SELECT count(*) FROM traces_validationresult WHERE verdict = 'passed'")
        assert verdicts == (3,)
