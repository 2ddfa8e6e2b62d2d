"""The lab in terminal and API: the same numbers, the promised keys, clear errors."""

from __future__ import annotations

import json

import pytest

from tests.traces.made import forked, planned
from tests.traces.people import Api, person
from tests.traces.terminal import Terminal
from traces.bundle import store_bundle
from traces.lab import lab, lines
from traces.models import Event, Message, Trace

KEYS = {
    "peak_tokens", "mean_tokens", "passes", "summary_calls", "prefix_share", "price", "recall",
    "user_messages_kept", "violations", "seconds",
}  # fmt: skip


def chat() -> bytes:
    """Ten turns of a user, each with one tool call."""
    messages = []
    for n in range(10):
        call = {"name": "read_file", "arguments": json.dumps({"path": f"notes/{n}.md"})}
        messages += [
            {"role": "user", "content": f"Read note {n}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{n}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"notes/{n}.md: " + "word " * 200},
            {"role": "assistant", "content": f"notes/{n}.md holds words."},
        ]
    return json.dumps(messages).encode()


# In the terminal -------------------------------------------------------------------------------


@pytest.mark.xdist_group("terminal")
def test_the_command_compares_policies(tmp_path):
    terminal = Terminal(tmp_path, used=True)
    imported = terminal("import_trace", "-", "--json", given=chat())
    assert imported.code == 0, imported.err
    trace = imported.json()["trace"]

    told = terminal("lab", trace, "--policies", "cyber,off", "--window", "2000", "--json")
    assert told.code == 0, told.err
    result = told.json()
    assert list(result["policies"]) == ["cyber", "off"]
    assert all(p.keys() >= KEYS for p in result["policies"].values())
    cyber, off = result["policies"]["cyber"], result["policies"]["off"]
    assert result["segmented"] == "user turns" and result["window"] == 2000
    assert off["peak_tokens"] == result["raw_peak_tokens"] > 2000
    assert off["recall"] == 1.0 and off["passes"] == 0
    assert cyber["passes"] > 0 and cyber["peak_tokens"] <= 1000
    assert cyber["violations"] == 0 and cyber["user_messages_kept"] == 10

    table = terminal("lab", trace)
    assert table.code == 0, table.err
    assert [line.split()[0] for line in table.out.splitlines()[:6]] == [
        "policy", "cyber", "cyber_recent", "opencode", "layered", "off",
    ]  # fmt: skip
    assert "made of its users' turns" in table.out

    for arguments, problem in (
        ((trace, "--policies", "cyber,nope"), "nope"),
        ((trace, "--window", "0"), "window"),
        (("nosuchtrace",), "nosuchtrace"),
    ):
        refused = terminal("lab", *arguments)
        assert refused.code == 2
        assert refused.err.startswith("error: ") and problem in refused.err
        assert "Traceback" not in refused.err


# On rows ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_lab_changes_nothing():
    trace = planned(30).store(None)
    before = list(Trace.objects.values()), list(Message.objects.values()), Event.objects.count()
    lab(trace, window=200)
    after = list(Trace.objects.values()), list(Message.objects.values()), Event.objects.count()
    assert after == before


@pytest.mark.django_db
def test_originals_are_replayed_and_not_their_summary():
    trace = store_bundle(forked(), None)
    result = lab(trace, ["off"])
    # Mission, spawn and its result, four messages that the summary stands for, the operator's
    # message, the last answer. Not the summary, the side branch, the wrong turn.
    assert result.messages == 9
    assert result.reports[0].user_messages == 2


@pytest.mark.django_db
def test_a_trace_with_a_plan_is_replayed_with_its_own_goals():
    result = lab(planned().store(None))
    assert result.segmented == "goals"
    assert "the trace's own" in "\n".join(lines(result))


# In the API ------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_api_tells_the_same():
    ann = person("ann", "viewer")
    trace = planned(30).store(ann)
    answer = Api(ann).get(f"/traces/{trace.pk}/lab", policies="cyber,layered", window=200)
    assert answer.status_code == 200
    told, own = answer.json(), lab(trace, ["cyber", "layered"], 200).to_json()
    for result in (told, own):
        for policy in result["policies"].values():
            policy["seconds"] = 0
    assert told == json.loads(json.dumps(own))


@pytest.mark.django_db
def test_the_api_refuses_in_words():
    ann, bob = person("ann", "viewer"), person("bob", "viewer")
    path = f"/traces/{planned().store(ann).pk}/lab"
    unknown = Api(ann).get(path, policies="nope")
    assert unknown.status_code == 422 and "nope" in unknown.json()["detail"]
    assert Api(ann).get(path, window=0).status_code == 422
    assert Api(bob).get(path).status_code == 404
    assert Api().get(path).status_code == 401
