"""The pages of a tree over the test client: the board, the task, sub-agents in the merged view, and
the same over the API and in the terminal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from cyberagent.core.events import AnchorRevised
from cyberagent.core.lineage import root_opening
from cyberagent.core.types import CallRecord, Message, ToolCall, text_message
from cyberagent.core.window import Recorder, Window
from tests.core.protocol_values import anchor_json
from tests.traces.families import Family
from tests.traces.made import planned
from tests.traces.people import Api, person
from tests.traces.test_pages import EVIL, cost, harmless, signed_in
from traces import anchors, write
from traces.api_tree import BoardOut, ProtocolOut, TreeOut
from traces.models import Message as MessageRow
from traces.models import Trace, ValidationResult
from traces.picture import Picture
from traces.rows import message_columns, moment_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> User:
    return person("olga", "operator")


def text_of(html: str) -> str:
    """What a reader sees, on one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def page(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, address
    return answer.content.decode()


def row_of(board: str, trace: str) -> str:
    found = re.search(rf'<tr id="agent-{trace}".*?</tr>', board, re.DOTALL)
    assert found, trace
    return found[0]


def cells(board: str, trace: str) -> dict[str, str]:
    """The text of each cell of a sub-agent's row, by the name of its column."""
    found = re.findall(r'<td data-label="([^"]+)">(.*?)</td>', row_of(board, trace), re.DOTALL)
    return {name: text_of(html) for name, html in found}


def links(html: str) -> list[str]:
    return re.findall(r'href="(/[^"#?]*)', html)


# The board -------------------------------------------------------------------------------------


def test_the_board_tells_the_whole_way_of_a_sub_agent(owner: User) -> None:
    family = Family(owner)
    child, call = family.delegate(family.root, objective="Write the refund call")
    claims = [{"criterion": "A refund reaches the bank", "met": True, "evidence": [1]}]
    report, result, judge = family.report(child, criteria=claims, reason="I saw it arrive")
    delivered = family.deliver(family.root, child, call, report, result)
    reviewed = family.review(family.root, child, "ACCEPT", reason="Good work")
    mine = signed_in(owner)
    board = page(mine, f"/runs/{family.root}/agents/")
    told = cells(board, child)
    sha = family.state(child).briefs[-1].brief.sha256
    assert told["Contract"] == f"version 1 {sha[:8]}…"
    assert told["Refs"] == "–"
    assert told["Report"] == "completed 1 of 1 met"
    assert told["Verdict"] == "Passed I saw it arrive validator"
    assert told["Review"] == "accepted by its parent Good work"
    assert told["Delivered"] == f"message {delivered} reviewed in {reviewed}"
    verdict = ValidationResult.objects.get(trace=child)
    found = links(row_of(board, child))
    for address in (
        f"/runs/{child}/", f"/runs/{child}/task/", f"/verdicts/{verdict.pk}/", f"/runs/{judge}/",
        f"/runs/{family.root}/messages/{delivered}/", f"/runs/{family.root}/messages/{reviewed}/",
    ):  # fmt: skip
        assert address in found
        assert mine.get(address).status_code == 200, address
    # The validator has no line of its own.
    assert f'id="agent-{judge}"' not in board


def test_those_below_stand_below_and_are_counted(owner: User) -> None:
    family = Family(owner)
    child, _ = family.delegate(family.root, objective="First part")
    inner, _ = family.delegate(child, objective="A part of it")
    other, _ = family.explore(family.root)
    board = page(signed_in(owner), f"/runs/{family.root}/agents/")
    order = re.findall(r'<tr id="agent-(\w+)" class="in-(\d)', board)
    assert order == [(child, "0"), (inner, "1"), (other, "0")]
    assert "3 sub-agents 3 at work" in text_of(board)
    # From the middle of the tree only what is below is seen.
    below = page(signed_in(owner), f"/runs/{child}/agents/")
    assert re.findall(r'<tr id="agent-(\w+)" class="in-(\d)', below) == [(inner, "0")]


def test_a_new_contract_leads_to_what_changed(owner: User) -> None:
    family = Family(owner)
    child, call = family.delegate(family.root)
    report, result, _ = family.report(child, "failed", "The bank saw nothing")
    family.deliver(family.root, child, call, report, result)
    better = {"objective": "Write the refund call", "reason": "Nothing arrived"}
    family.review(
        family.root, child, "REVISE_CHILD",
        next_brief=family.brief(family.root, **better).to_json(),
    )  # fmt: skip
    mine = signed_in(owner)
    told = cells(page(mine, f"/runs/{family.root}/agents/"), child)
    assert told["Review"] == "to be revised by its parent"
    family.status(child, "running")
    family.delegate(family.root, child, **better)
    board = page(mine, f"/runs/{family.root}/agents/")
    told = cells(board, child)
    assert told["Contract"].startswith("version 2 ")
    assert told["Contract"].endswith("what changed")
    assert (told["Report"], told["Verdict"].split()[0], told["Review"]) == ("–", "–", "–")
    assert f'href="/runs/{child}/task/#changes-2"' in board
    task = page(mine, f"/runs/{child}/task/")
    changed = re.search(r'id="changes-2".*?</dl>', task, re.DOTALL)
    assert changed
    assert text_of(changed[0]).endswith("Reason added: Nothing arrived")
    assert "Contract, version 1" in text_of(task)
    assert "The bank saw nothing" in task


def test_refs_are_told_with_their_sizes_and_where_they_were_read(owner: User) -> None:
    family = Family(owner)
    family.accepted(family.root)
    (grant,) = family.state(family.root).catalogue.grants
    ref, size = grant.snapshot.ref, len(grant.snapshot.text)
    child, _ = family.delegate(family.root, objective="Use it", context_refs=[ref.to_json()])
    read = family.read(child, ref.ref_id, ref.version, size)
    mine = signed_in(owner)
    board = page(mine, f"/runs/{family.root}/agents/")
    told = cells(board, child)["Refs"]
    assert told == (
        f"1 given, 1 read {ref.ref_id} {ref.version[:8]}… {size:,} characters · read in {read}"
    )
    task = text_of(page(mine, f"/runs/{child}/task/"))
    held = f"{ref.ref_id} reviewed result {ref.version[:12]}… {size:,} message 1 with its contract"
    assert f"{held} {read}" in task
    own = text_of(page(mine, f"/runs/{family.root}/task/"))
    assert "by its own review not read" in own
    # What is read on a path that a rewind left does not count.
    write.move_head(child, 1, expected_head=read)
    again = cells(page(mine, f"/runs/{family.root}/agents/"), child)["Refs"]
    assert again.startswith("1 given, 0 read")


def alarm_of(client: Client, family: Family, child: str) -> str:
    row = row_of(page(client, f"/runs/{family.root}/agents/"), child)
    found = re.findall(r'<span class="alarm[^"]*">(.*?)</span>', row, re.DOTALL)
    return " ".join(map(text_of, found))


def test_alarms_are_said_in_plain_words(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    child, call = family.delegate(family.root)
    assert alarm_of(mine, family, child) == ""
    family.status(child, "paused")
    assert alarm_of(mine, family, child) == "It is paused while its parent is live."
    family.status(child, "running")
    family.status(family.root, "stopped")
    orphan = "It works, but nobody waits for it: its run, or the call that asked for it, is over."
    assert alarm_of(mine, family, child) == orphan
    family.status(family.root, "running")
    report, result, _ = family.report(child, "failed", "No")
    family.status(child, "completed")
    assert alarm_of(mine, family, child) == ""  # its result is on its way
    answered = family.answer(family.root, call, "agent", "interrupted")
    assert alarm_of(mine, family, child) == "It ended, and its parent goes on without its result."
    write.move_head(family.root, answered - 1, expected_head=answered)
    family.deliver(family.root, child, call, report, result)
    assert alarm_of(mine, family, child) == "Its result waits for a review. Review it"
    family.review(family.root, child, "ACCEPT", by="olga", reason="I saw it myself")
    assert alarm_of(mine, family, child) == "It was accepted against its verdict."
    told = cells(page(mine, f"/runs/{family.root}/agents/"), child)["Review"]
    assert told == "accepted by olga against the verdict “Failed” I saw it myself"


def test_a_sub_agent_whose_call_a_rewind_left_says_so(owner: User) -> None:
    family = Family(owner)
    child, _ = family.delegate(family.root)
    family.status(child, "stopped")
    head = Trace.objects.get(pk=family.root).head_sequence
    write.move_head(family.root, 1, expected_head=head)
    row = row_of(page(signed_in(owner), f"/runs/{family.root}/agents/"), child)
    assert "left by a rewind" in text_of(row)
    assert "alarm" not in row


def test_a_damaged_record_is_told_and_breaks_no_page(owner: User) -> None:
    family = Family(owner)
    child, _ = family.delegate(family.root)
    inner, _ = family.delegate(child, objective="Below it")
    broken = text_message("user", "!", source="framework", metadata={"protocol": [{"entry": "?"}]})
    sequence = family.tell(child, text_message("user", "?", source="framework"))
    columns = message_columns(broken, moment_of("2026-05-01T10:00:00Z"))
    MessageRow.objects.filter(trace=child, sequence=sequence).update(metadata=columns["metadata"])
    family.status(child, "running")
    mine = signed_in(owner)
    board = page(mine, f"/runs/{family.root}/agents/")
    assert "is of no known kind" in row_of(board, child)
    assert row_of(board, inner)
    assert "is of no known kind" in page(mine, f"/runs/{child}/task/")


def test_what_happened_is_told_newest_first_by_pages(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    for n in range(12):
        family.accepted(family.root, objective=f"Part {n}")
    log = re.search(r'<ol class="card log">.*?</ol>', page(mine, f"/runs/{family.root}/agents/"),
                    re.DOTALL)  # fmt: skip
    assert log
    lines = [text_of(line) for line in re.findall(r"<li.*?</li>", log[0], re.DOTALL)]
    assert len(lines) == 30
    assert [line.split(" · ")[0].rsplit(" ", 1)[0] for line in lines[:3]] == [
        "Reviewed by this run (accepted): Part 11", "Agent ended (completed): Part 11",
        "Agent begins: Part 11",
    ]  # fmt: skip
    older = re.search(r'rel="next" href="(\?at=\d+)"', page(mine, f"/runs/{family.root}/agents/"))
    assert older
    rest = page(mine, f"/runs/{family.root}/agents/{older[1]}")
    assert "Agent begins: Part 0" in text_of(rest)
    assert "Part 11" not in rest[rest.index('class="card log"') :]


def started_call(trace: str) -> None:
    recorded = Recorder().record(1, Window(system="", items=()))
    record = CallRecord(
        number=1, provider="scripted", model="", projection="openai/1",
        manifest=recorded.manifest, sha256="0" * 64, estimated_tokens=50, exact=False,
    )  # fmt: skip
    write.start_call(trace, record, recorded.blobs)


def test_the_marks_of_the_timeline_lead_to_the_log(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    started_call(family.root)
    child, _ = family.delegate(family.root)
    started_call(child)
    family.report(child, "failed", "No")
    for trace, title in ((family.root, "Sub-agent: Write the refund call, after call 1"),
                         (child, "Verdict: failed, after call 1")):  # fmt: skip
        line = page(mine, f"/runs/{trace}/timeline/")
        # Validators are no marks; what they found is.
        (mark,) = re.findall(r'<a href="([^"]+)" aria-label="([^"]+)"', line)
        assert mark[1] == title
        address, _, place = mark[0].partition("#")
        assert f'id="{place}"' in page(mine, address)


def test_a_run_without_sub_agents_says_what_will_stand_there(owner: User) -> None:
    trace = planned().store(owner)
    mine = signed_in(owner)
    assert "No sub-agents" in page(mine, f"/runs/{trace.pk}/agents/")
    task = text_of(page(mine, f"/runs/{trace.pk}/task/"))
    assert "This run has no root anchor: start one with the preset recursive." in task


# The task --------------------------------------------------------------------------------------


def test_the_task_of_a_root_is_its_anchor_with_its_revisions(owner: User) -> None:
    family = Family(owner)
    admin = person("ada", "admin")
    root = Trace.objects.get(pk=family.root)
    revised = anchor_json(constraints=["No card number is logged", "No downtime"])
    anchors.revise(root, revised, by=admin, why="Sales asked for it")
    told = text_of(page(signed_in(owner), f"/runs/{family.root}/task/"))
    assert "Move the shop to the new payment service" in told
    assert "Orders can be paid The old service is switched off" in told
    assert "No card number is logged No downtime" in told
    assert "revision 2 · " in told
    assert "2 revisions Revision 2" in told
    assert "by ada" in told and "Sales asked for it" in told
    assert "Constraints added: No downtime" in told
    log = text_of(page(signed_in(owner), f"/runs/{family.root}/agents/"))
    assert "The root anchor was revised by ada Sales asked for it" in log


def test_a_constraint_says_where_it_comes_from(owner: User) -> None:
    family = Family(owner)
    child, _ = family.delegate(family.root, constraints=["Only in src/"])
    inner, _ = family.delegate(child, constraints=["No new library"])
    told = text_of(page(signed_in(owner), f"/runs/{inner}/task/"))
    for constraint in (
        "No card number is logged root anchor", "Only in src/ contract above",
        "No new library its own",
    ):  # fmt: skip
        assert constraint in told


def test_a_sub_agents_page_leads_up_to_its_root(owner: User) -> None:
    family = Family(owner, mission="The whole shop")
    child, _ = family.delegate(family.root, objective="The payments")
    inner, _ = family.delegate(child, objective="The refunds")
    shown = page(signed_in(owner), f"/runs/{inner}/")
    crumbs = re.search(r'<nav class="crumbs lineage".*?</nav>', shown, re.DOTALL)
    assert crumbs
    assert text_of(crumbs[0]) == "The whole shop The payments Agent at depth 2"
    above = Trace.objects.get(pk=child)
    assert links(crumbs[0]) == [
        f"/runs/{family.root}/messages/{above.parent_message}/",
        f"/runs/{child}/messages/{Trace.objects.get(pk=inner).parent_message}/",
    ]


def test_a_validator_has_no_contract_and_says_so(owner: User) -> None:
    family = Family(owner)
    child, _ = family.delegate(family.root)
    _, _, judge = family.report(child)
    mine = signed_in(owner)
    told = text_of(page(mine, f"/runs/{judge}/task/"))
    assert "No contract" in told and "The task of the run above it" in told
    assert "Validator at depth 2" in text_of(page(mine, f"/runs/{judge}/"))


def test_outputs_are_told_as_the_framework_found_them(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    child, _ = family.delegate(family.root)
    found = [
        {"name": "code", "kind": "file", "location": "refund.py", "sha256": "a1" * 32,
         "size": 12_345, "problem": "", "content": None},
        {"name": "notes", "kind": "file", "location": "notes.md", "sha256": "", "size": None,
         "problem": "notes.md does not exist", "content": None},
    ]  # fmt: skip
    family.report(
        child,
        packet=f"# Artifacts\n{json.dumps(found)}",
        outputs=[{"name": o["name"], "artifact": o["location"]} for o in found],
    )
    told = text_of(page(mine, f"/runs/{child}/task/"))
    assert "code file refund.py 12,345 bytes a1a1a1a1a1a1…" in told
    assert "notes file notes.md notes.md does not exist" in told


# The merged view ---------------------------------------------------------------------------------


def lines_of(client: Client, trace: str) -> list[str]:
    """The rows of no goal, each with what it says and the tags at its end."""
    html = page(client, f"/runs/{trace}/rows/?goal=&start=0&count=100")
    return [text_of(row) for row in re.findall(r"<a class=\"r .*?</a>", html, re.DOTALL)]


def test_sub_agents_hang_below_the_call_that_asked_for_them(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    child, call = family.delegate(family.root, objective="Write the refund call")
    told = lines_of(mine, family.root)
    place = next(n for n, line in enumerate(told) if line.startswith("agent ("))
    assert told[place + 1] == "Agent Write the refund call Live"
    report, result, _ = family.report(child, "failed", "The bank saw nothing")
    assert "Verdict: failed The bank saw nothing" in lines_of(mine, child)
    handed = next(line for line in lines_of(mine, child) if line.startswith("submit_report"))
    assert "report: completed verdict: failed" in handed
    family.deliver(family.root, child, call, report, result)
    told = lines_of(mine, family.root)
    assert told[place + 1] == "Agent Write the refund call Failed Completed 1 step"
    family.review(family.root, child, "ACCEPT", by="olga", reason="Seen")
    told = lines_of(mine, family.root)
    assert told[-1].startswith("Review by olga Seen")
    assert "accepted against the verdict “Failed”" in told[-1]


def test_a_contract_and_an_anchor_are_called_by_their_names(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    child, _ = family.delegate(family.root, objective="Write the refund call")
    assert lines_of(mine, child)[0] == "Contract Write the refund call 1"
    family.tell(family.root, root_opening(family.anchor, "en"))
    told = lines_of(mine, family.root)[-1]
    assert told.startswith("Root anchor Move the shop to the new payment service")


def test_two_calls_of_one_answer_have_their_own_sub_agents(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    asked = tuple(ToolCall(f"c{n}", "explore", f'{{"branches": ["{n}"]}}') for n in "ab")
    at = family.tell(family.root, Message(role="assistant", source="model", parts=asked))
    family.spawn(family.root, "explore", "second", at, "cb")
    family.spawn(family.root, "explore", "first", at, "ca")
    told = [line.split()[0:2] for line in lines_of(mine, family.root)[1:]]
    assert told == [["explore", "(1"], ["Explorer", "first"], ["explore", "(1"],
                    ["Explorer", "second"]]  # fmt: skip


def test_a_page_of_rows_costs_the_same_with_many_sub_agents(owner: User) -> None:
    few, many = Family(owner), Family(owner)
    for family, count in ((few, 2), (many, 12)):
        for n in range(count):
            family.explore(family.root, f"Question {n}")
    mine = signed_in(owner)
    address = "/runs/{}/rows/?goal=&start=0&count=50"
    first, _ = cost(mine, address.format(few.root))
    second, _ = cost(mine, address.format(many.root))
    assert first == second


def test_the_first_paint_of_a_root_with_sub_agents_costs_what_any_does(owner: User) -> None:
    family = Family(owner)
    for n in range(8):
        family.accepted(family.root, objective=f"Part {n}")
    queries, size = cost(signed_in(owner), f"/runs/{family.root}/")
    assert queries <= 12
    assert size <= 100_000


def test_a_board_costs_a_few_queries_for_each_trace(owner: User) -> None:
    few, many = Family(owner), Family(owner)
    for n in range(2):
        few.accepted(few.root, objective=f"Part {n}")
    for n in range(8):
        many.accepted(many.root, objective=f"Part {n}")
    mine = signed_in(owner)
    small, _ = cost(mine, f"/runs/{few.root}/agents/")
    large, _ = cost(mine, f"/runs/{many.root}/agents/")
    # Six more of them, none with more than 14 queries of its own.
    assert large - small <= 6 * 14
    # What is known already is not read again.
    again, _ = cost(mine, f"/runs/{many.root}/agents/")
    assert again <= 30


# What a transcript may show ----------------------------------------------------------------------


def test_scripts_in_every_field_of_a_tree_are_inert(owner: User) -> None:
    family, mine = Family(owner, mission=EVIL, objective=EVIL, constraints=[EVIL]), signed_in(owner)
    fields: dict[str, Any] = {
        "objective": EVIL, "reason": EVIL, "completion_criteria": [EVIL],
        "expected_outputs": [EVIL], "parent_findings": [EVIL, {EVIL: EVIL}],
        "context": {EVIL: EVIL}, "constraints": [EVIL, f"{EVIL} 2"],
    }  # fmt: skip
    child, call = family.delegate(family.root, **fields)
    report, result, judge = family.report(
        child, "unknown", EVIL, summary=EVIL, open_issues=[EVIL], knowledge=[EVIL],
        outputs=[{"name": EVIL, "text": EVIL}, {"name": "f", "artifact": EVIL}],
        criteria=[{"criterion": EVIL, "met": False, "evidence": [EVIL, 1]}],
    )  # fmt: skip
    family.deliver(family.root, child, call, report, result)
    family.review(family.root, child, "ACCEPT", by="olga", reason=EVIL)
    family.explore(family.root, EVIL)
    told = AnchorRevised(sha256=EVIL, supersedes="", by=EVIL, why=EVIL)
    write.append(family.root, [], [told])
    for trace in (family.root, child, judge):
        for tab in ("", "agents/", "task/", "rows/?goal=&start=0&count=50", "timeline/"):
            html = page(mine, f"/runs/{trace}/{tab}")
            assert harmless(html), (trace, tab)
            assert not re.search(r"\sstyle=|<script(?![^>]*\ssrc=)", html), (trace, tab)


def test_a_tree_of_somebody_elses_is_not_there(owner: User) -> None:
    family = Family(owner)
    child, _ = family.delegate(family.root)
    stranger = signed_in(person("sam", "operator"))
    api = Api(person("sid", "operator"))
    for trace in (family.root, child):
        for tab in ("agents", "task"):
            assert stranger.get(f"/runs/{trace}/{tab}/").status_code == 404
            assert Client().get(f"/runs/{trace}/{tab}/")["Location"].startswith("/sign-in/")
        for what in ("tree", "protocol", "agents"):
            assert api.get(f"/traces/{trace}/{what}").status_code == 404


# API and terminal --------------------------------------------------------------------------------


def test_the_api_has_the_tree_with_its_states(owner: User) -> None:
    family = Family(owner)
    child, call = family.delegate(family.root, objective="Write the refund call")
    report, result, judge = family.report(child, "failed", "No")
    family.deliver(family.root, child, call, report, result)
    other, _ = family.explore(family.root, "Which files?")
    told = Api(owner).get(f"/traces/{judge}/tree").json()
    TreeOut.model_validate(told)
    assert told["root"] == family.root
    found = [(t["id"], t["parent"], t["depth"], t["kind"], t["status"]) for t in told["traces"]]
    assert found == [
        (family.root, None, 0, "", "running"),
        (child, family.root, 1, "agent", "completed"),
        (judge, child, 2, "validator", "completed"),
        (other, family.root, 1, "explore", "running"),
    ]
    assert [t["verdict"] for t in told["traces"]] == ["", "failed", "failed", ""]


def test_the_api_has_what_is_in_force_for_a_trace(owner: User) -> None:
    family = Family(owner)
    child, call = family.delegate(family.root)
    api = Api(owner)
    own = api.get(f"/traces/{child}/protocol").json()
    ProtocolOut.model_validate(own)
    assert [(b["number"], b["message"]) for b in own["briefs"]] == [(1, 1)]
    assert own["briefs"][0]["brief"]["objective"] == "Write the refund call"
    assert own["anchor"]["anchor"] == family.anchor.to_json()
    report, result, _ = family.report(child)
    family.deliver(family.root, child, call, report, result)
    above = api.get(f"/traces/{family.root}/protocol").json()
    ProtocolOut.model_validate(above)
    assert above["reviews_due"] == [child]
    assert [(c["id"], c["rounds"], c["review_is_due"]) for c in above["children"]] == [
        (child, 1, True)
    ]
    family.review(family.root, child, "ACCEPT")
    above = api.get(f"/traces/{family.root}/protocol").json()
    (ref,) = above["catalogue"]
    assert (ref["kind"], set(ref)) == (
        "reviewed_task_result", {"ref_id", "version", "kind", "characters"},
    )  # fmt: skip
    plain = api.get(f"/traces/{planned().store(owner).pk}/protocol").json()
    ProtocolOut.model_validate(plain)
    assert (plain["recursive"], plain["anchor"], plain["children"]) == (False, None, [])


def test_the_api_has_the_rows_of_the_board(owner: User) -> None:
    family = Family(owner)
    child, call = family.delegate(family.root)
    report, result, judge = family.report(child)
    delivered = family.deliver(family.root, child, call, report, result)
    told = Api(owner).get(f"/traces/{family.root}/agents").json()
    BoardOut.model_validate(told)
    assert told["top"]["id"] == family.root
    (row,) = told["items"]
    assert (row["id"], row["level"], row["delivered"]) == (child, 1, delivered)
    assert (row["validators"], row["alarms"]) == ([judge], ["review_due"])
    assert row["verdict"]["id"] == ValidationResult.objects.get(trace=child).pk


def test_the_terminal_draws_sub_agents_indented_below_their_calls(owner: User) -> None:
    family = Family(owner)
    child, call = family.delegate(family.root, objective="Write the refund call")
    inner, _ = family.explore(child, "Which bank?")
    report, result, judge = family.report(child, "failed", "No")
    family.deliver(family.root, child, call, report, result)
    family.review(family.root, child, "ACCEPT", reason="Seen")
    told = list(Picture(family.root).lines())
    place = next(n for n, line in enumerate(told) if line.startswith("├─ agent("))
    assert told[place + 1 : place + 4] == [
        f"│  └─ agent {child} (completed, 2 steps): Write the refund call [verdict: failed]",
        f"│     ├─ explorer {inner} (running): Which bank?",
        f"│     └─ verdict of validator {judge}: failed — No",
    ]
    assert told[-2].endswith("[review: accepted, against the verdict failed]")
    chinese = list(Picture(family.root).lines(language="zh"))
    assert f"│     └─ 验证者 {judge} 的裁决: 失败 — No" in chinese


def test_the_run_page_of_a_sub_agent_costs_the_same_however_deep_it_stands(owner: User) -> None:
    family, mine = Family(owner), signed_in(owner)
    levels = [family.root]
    for n in range(4):
        child, _ = family.delegate(levels[-1], objective=f"Level {n + 1}")
        levels.append(child)
    page(mine, f"/runs/{family.root}/")
    costs = [cost(mine, f"/runs/{child}/")[0] for child in levels[1:]]
    assert len(set(costs)) == 1 and costs[0] <= 12
    told = page(mine, f"/runs/{levels[-1]}/")
    places = [told.index(f"/runs/{above}/messages/") for above in levels[:-1]]
    assert places == sorted(places)
