"""A run with sub-agents as people meet it, in a real browser: watched live, read, judged,
corrected, taken back, paused, stopped, and gone on with after the server died.

The runs play the built-in script ``recursive`` on its own files, at a pace for tests and with two
further turns of the root, for the correction. What is expected stands in that script, in its files
and in docs/protocol.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.pages import problems, sign_in
from tests.browser.server import ROOT, Server

PROMPTS = ROOT / "cyberagent" / "prompts"
GUIDE = "Write MIGRATION.md, a guide from the settings of Lantern 1 to those of Lantern 2"
LISTING = "List what changed between settings/v1.conf and settings/v2.conf"
WRITING = "Write MIGRATION.md from the reviewed list of changed settings"

CORRECTION = "Name the line that takes 0 where retry_limit is not set."
AFTER_THE_CORRECTION: list[Any] = [
    {"say": "I look it up.", "calls": [{"read_file": {"path": "bin/lantern"}}]},
    {"say": "**Done.** Line 14 of bin/lantern takes 0 where retry_limit is not set."},
]
NAMED = {
    "verdict": "passed",
    "reason": "The line is named.",
    "criteria": [
        {"criterion": f"R{n}", "verdict": "passed", "reason": "It is seen.", "evidence": ["{look}"]}
        for n in (1, 2, 3)
    ],
}
JUDGES_IT: dict[str, Any] = {
    "match": ["# TaskBrief\nnull", CORRECTION],
    "kind": "validator",
    "turns": [
        {
            "find": {
                "look": '"name":"read_file","role":"tool","sequence":{},"source":"tool",'
                '"text":"     1\\t#!/bin/sh'
            },
            "say": json.dumps(NAMED).replace('"{look}"', "{look}"),
        }
    ],
}

Start = Callable[..., str]


def script(pace: float) -> dict[str, Any]:
    """The built-in script with delays ``pace`` times as long, and what follows a correction."""
    made = yaml.safe_load((PROMPTS / "recursive.yaml").read_text(encoding="utf-8"))
    made["turns"] += AFTER_THE_CORRECTION
    made["agents"].insert(0, JUDGES_IT)
    for turns in (made["turns"], *(agent["turns"] for agent in made["agents"])):
        for turn in turns:
            turn["delay"] = turn.get("delay", 0) * pace
    return made


@pytest.fixture(scope="module")
def page(chromium: Browser, live_server_process: Server) -> Iterator[Page]:
    """One signed-in page for all: it fails its module if the browser complained of anything."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda m: complaints.append(m.text) if "Content Security Policy" in m.text else None,
    )
    sign_in(page, live_server_process)
    yield page
    context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def start(
    page: Page, live_server_process: Server, tmp_path_factory: pytest.TempPathFactory
) -> Start:
    """Start a run by the API, as whom the page is signed in; its address. ``pace``: of the
    script's delays; 0 is without any waiting."""

    def started(pace: float = 0, played: dict[str, Any] | None = None) -> str:
        folder: Path = tmp_path_factory.mktemp("files") / "work"
        shutil.copytree(PROMPTS / "recursive_workspace", folder)
        options = {"script": played or script(pace), "speed": 1_500 if pace else 0}
        token = next(c["value"] for c in page.context.cookies() if c["name"] == "csrftoken")
        answer = page.request.post(
            f"{live_server_process.url}/api/v1/traces",
            headers={"X-CSRFToken": token},
            data={
                "mission": "Help people move to Lantern 2",
                "config": {
                    "preset": "recursive",
                    "provider": "scripted",
                    "provider_options": options,
                    "context_window": 64_000,
                    "workspace": str(folder),
                },
                "anchor": json.loads((PROMPTS / "recursive_anchor.json").read_text()),
            },
        )
        assert answer.status == 201, answer.text()
        return f"{live_server_process.url}/runs/{answer.json()['id']}/"

    return started


@pytest.fixture(scope="module")
def ended(page: Page, start: Start) -> str:
    """The address of a run that has come to its end, for tests that only add to it."""
    address = start()
    page.goto(address)
    expect(status(page)).to_have_text("Completed", timeout=60_000)
    return address


def status(page: Page) -> Locator:
    return page.locator("#facts .status")


def line_of(page: Page, mission: str) -> Locator:
    """The line of a sub-agent in the tree of the run above it."""
    return page.locator(".r.child", has_text=mission)


def board_row(page: Page, mission: str) -> Locator:
    return page.locator("table.board tbody tr", has=page.get_by_role("link", name=mission))


def number_of(address: str) -> int:
    found = re.search(r"/(?:verdicts|messages)/(\d+)/", address)
    assert found, address
    return int(found[1])


def same_page(page: Page) -> None:
    """From here on a reload would be seen: :func:`still_the_same`."""
    page.evaluate("document.body.dataset.same = 'page'")


def still_the_same(page: Page) -> bool:
    return page.evaluate("document.body.dataset.same") == "page"


# Watching ------------------------------------------------------------------------------------


def test_sub_agents_are_watched_live_down_to_the_third_level(page: Page, start: Start) -> None:
    root = start(pace=0.2)
    page.goto(root)
    same_page(page)
    child = line_of(page, GUIDE)
    expect(child.locator(".status")).to_have_text("Live", timeout=20_000)
    expect(child).to_contain_text("1 below it works", timeout=20_000)
    child.click()
    below = page.locator(".open-rows")
    inner = below.locator(".r.child", has_text=LISTING)
    expect(inner).to_be_visible()
    expect(inner).to_contain_text("Passed", timeout=30_000)
    expect(child.locator(".status")).to_have_text("Completed", timeout=30_000)
    expect(child).to_contain_text("Passed")
    expect(status(page)).to_have_text("Completed", timeout=30_000)
    expect(page.locator(".r.verdict", has_text="Verdict: passed")).to_be_visible()
    assert still_the_same(page)

    page.reload()
    page.locator("#goals .goal-head button").first.click()  # it is over, and folded
    child.click()
    below.get_by_role("link", name="Open this sub-agent’s own page").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(GUIDE)
    expect(page.get_by_text("Agent at depth 1")).to_be_visible()
    page.locator("#goals .goal-head button").first.click()
    line_of(page, LISTING).click()
    page.locator(".open-rows").get_by_role("link", name="Open this sub-agent’s own page").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(LISTING)
    expect(page.get_by_text("Agent at depth 2")).to_be_visible()
    expect(page.locator("#tree .r", has_text="Contract")).to_have_count(2)
    expect(page.locator("#tree .r .tag.bad")).to_have_text(["verdict: failed"])
    page.get_by_role("navigation", name="Runs above this one").get_by_role("link").first.click()
    # 1 the mission, 2 the anchor, 3 and 4 the plan, 5 to 7 a look around, 8 the call.
    page.wait_for_url(re.compile(rf"{re.escape(root)}messages/8/"))


def test_the_demo_is_paused_goes_on_and_is_stopped_with_all_below_it(
    page: Page, live_server_process: Server
) -> None:
    page.goto(f"{live_server_process.url}/runs/")
    page.get_by_role("button", name="Demo with sub-agents").click()
    child = line_of(page, GUIDE)
    expect(child).to_contain_text("1 below it works", timeout=30_000)
    same_page(page)
    page.get_by_role("button", name="Pause").click()
    expect(status(page)).to_have_text("Paused", timeout=20_000)
    expect(child.locator(".status")).to_have_text("Paused")
    assert still_the_same(page)
    page.get_by_role("link", name="Agents", exact=True).click()
    same_page(page)
    working = page.locator("table.board .status.running")
    expect(working).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    expect(working).not_to_have_count(0, timeout=20_000)
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Stop").click()
    expect(status(page)).to_have_text("Stopped", timeout=20_000)
    expect(board_row(page, GUIDE).locator(".status").first).to_have_text("Stopped")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    expect(working).to_have_count(0)
    assert still_the_same(page)


def test_a_tree_whose_server_dies_goes_on_where_it_was(
    page: Page, start: Start, live_server_process: Server
) -> None:
    played = script(0)
    listing = next(a for a in played["agents"] if a["match"] == LISTING and a["kind"] == "agent")
    # Long enough to be in the middle of it; it is asked anew afterwards.
    listing["turns"][1]["delay"] = 3
    played["speed"] = 0
    page.goto(start(pace=0.001, played=played))
    same_page(page)
    child = line_of(page, GUIDE)
    expect(child).to_contain_text("1 below it works", timeout=20_000)
    child.click()
    inner = page.locator(".open-rows .r.child", has_text=LISTING)
    expect(inner).to_contain_text("1 step", timeout=20_000)
    live_server_process.kill()
    expect(page.locator("#pulse")).to_have_text("reconnecting…", timeout=20_000)
    live_server_process.start()
    expect(status(page)).to_have_text("Completed", timeout=60_000)
    assert still_the_same(page)
    page.get_by_role("link", name="Agents", exact=True).click()
    for mission in (GUIDE, LISTING, WRITING):
        expect(board_row(page, mission)).to_have_count(1)
        expect(board_row(page, mission)).to_contain_text("Passed")
        expect(board_row(page, mission)).to_contain_text("accepted")
    # Judged once for each report that was handed in.
    judges = {m: board_row(page, m).locator("td a", has_text="validator") for m in (GUIDE, LISTING)}
    expect(judges[GUIDE]).to_have_count(1)
    expect(judges[LISTING]).to_have_count(2)


# Reading ---------------------------------------------------------------------------------------


def test_the_board_says_what_each_was_given_and_what_came_of_it(page: Page, ended: str) -> None:
    page.goto(f"{ended}agents/")
    expect(page.locator(".board-sum")).to_have_text("5 sub-agents")
    listing, writing = board_row(page, LISTING), board_row(page, WRITING)
    for mission in (GUIDE, LISTING, WRITING):
        row = board_row(page, mission)
        expect(row).to_contain_text("2 of 2 met")
        expect(row).to_contain_text("Passed")
        expect(row).to_contain_text("accepted")
        expect(row).to_contain_text("by its parent")
    # The direct parent's contract, and the list that was reviewed: the second is read.
    writing.get_by_text("2 given, 1 read").click()
    ref = writing.locator("li", has_text="reviewed_task_result:")
    expect(writing.locator("li", has_text="task_brief:")).to_contain_text("not read")
    ref.locator("a").click()
    expect(page.locator("#inspector h2")).to_contain_text("read_context_ref")
    expect(page.locator("#inspector")).to_contain_text("taken from the comparison")
    page.go_back()
    expect(listing).to_contain_text("version 2")
    listing.get_by_role("link", name="what changed", exact=True).click()
    changes = page.locator("#changes-2")
    expect(changes.locator("del")).to_have_count(1)
    expect(changes.locator("ins").first).to_contain_text("The first list lacks retry_limit.")
    expect(page.locator("#anchor")).to_be_visible()


def test_the_task_of_a_sub_agent_is_its_anchor_and_its_contracts(page: Page, ended: str) -> None:
    page.goto(f"{ended}task/")
    anchor = page.get_by_role("region", name="Root anchor")
    expect(anchor).to_contain_text("People who run Lantern 1 can move their settings")
    expect(anchor).to_contain_text("revision 1")
    page.goto(f"{ended}agents/")
    board_row(page, LISTING).get_by_role("link", name="version 2").click()
    newer = page.locator("#contract-2")
    # A child adds constraints and never removes: both are the anchor's.
    expect(newer.locator("li", has_text="Change nothing but MIGRATION.md")).to_contain_text(
        "root anchor"
    )
    expect(newer.locator(".word")).to_have_text("Passed")
    older = page.locator("#contract-1")
    expect(older.locator(".objective")).to_be_hidden()
    older.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(older.locator(".word")).to_have_text("Failed")
    expect(older).to_contain_text("to be revised")
    older.get_by_role("link", name="Failed").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(LISTING)


# Judging ---------------------------------------------------------------------------------------


def to_verdict(page: Page, ended: str, word: str) -> int:
    """Open the run's newest verdict with this word, from the queue; its number."""
    run = ended.rstrip("/").rpartition("/")[2]
    page.goto(f"{ended.partition('/runs/')[0]}/verdicts/")
    page.get_by_label("Run", exact=True).fill(run)
    page.get_by_label("Review", exact=True).select_option("all")
    page.get_by_label("Verdict", exact=True).select_option(word)
    words = page.locator("#verdicts tbody .word")
    expect(words).to_have_class([f"word {word}"] * {"failed": 1, "passed": 4}[word])
    page.locator("#verdicts tbody a").first.click()
    page.wait_for_url("**/verdicts/*/*")
    return number_of(page.url)


def test_a_failed_verdict_is_read_to_its_evidence_and_overruled(page: Page, ended: str) -> None:
    verdict = to_verdict(page, ended, "failed")
    criterion = page.get_by_role("article", name="The list has every setting")
    claim, found = criterion.locator(".side").all()
    expect(claim).to_contain_text("Met")
    expect(found).to_contain_text("Failed")
    expect(found).to_contain_text("The list lacks it.")
    evidence = found.get_by_role("link", name="message").first
    evidence.click()
    # The page names the row there, the call with its result, as soon as it is at work.
    page.wait_for_url(re.compile(r"/messages/\d+/"))
    expect(page.get_by_role("heading", level=1)).to_have_text(LISTING)
    expect(page.locator(".r[aria-current]")).to_contain_text("settings/v1.conf")
    expect(page.locator("#inspector")).to_contain_text("retry_limit = 3")  # line 10 of the file

    page.go_back()
    page.get_by_text("Show the packet").click()
    packet = page.locator("pre.block").last
    expect(packet).to_be_visible()
    sent = packet.text_content() or ""
    assert sent.startswith("# RootTaskAnchor\n{")
    proof = page.locator(".proof")
    expect(proof).to_contain_text(hashlib.sha256(sent.encode()).hexdigest())
    expect(proof).to_contain_text("the very packet that the verdict names")

    whole = page.get_by_role("group", name="On the whole")
    expect(whole.get_by_label("Failed")).to_be_checked()
    criterion.get_by_label("Passed").check()
    expect(whole.get_by_label("Passed")).to_be_checked()
    page.get_by_role("button", name="Store my word").click()
    expect(page.locator("#reason-error")).to_be_visible()
    page.get_by_label("Reason", exact=True).first.select_option("criterion_misread")
    page.get_by_label("Comment").fill("Only what CHANGES.md names was asked for.")
    page.get_by_role("button", name="Store my word").click()
    expect(page.locator(".page-head")).to_contain_text("Overruled: Passed")
    # Beside, and never over it.
    expect(page.locator("h1 .word")).to_have_text("Failed")
    expect(found.locator(".word")).to_have_text("Failed")
    expect(page.locator(".said-so-far")).to_contain_text("Only what CHANGES.md names")
    page.goto(f"{page.url.partition('/verdicts/')[0]}/verdicts/agreement/")
    said_failed = page.locator("table.confusion").get_by_role("row", name="Failed").locator("td")
    expect(said_failed).to_have_text(["1", "0", "0"])  # of a person: passed, failed, unknown
    page.get_by_role("link", name="Verdicts").first.click()
    expect(page.locator(f"#verdict-{verdict}")).to_have_count(0)  # it waits no more
    page.get_by_label("Review", exact=True).select_option("overruled")
    expect(page.locator(f"#verdict-{verdict}")).to_contain_text("Overruled: Passed")


def test_verdicts_are_gone_through_and_confirmed_by_keys(page: Page, ended: str) -> None:
    server = ended.partition("/runs/")[0]
    newest = to_verdict(page, ended, "passed")
    page.keyboard.press("]")
    page.wait_for_url(lambda url: number_of(url) != newest)
    second = number_of(page.url)
    assert second < newest
    page.keyboard.press("[")
    page.wait_for_url(lambda url: number_of(url) == newest)
    page.keyboard.press("c")
    expect(page.get_by_role("status")).to_contain_text(f"Confirmed verdict {newest}.")
    page.wait_for_url(lambda url: number_of(url) == second)
    page.goto(f"{server}/verdicts/agreement/")
    reviewed = page.get_by_role("region", name="All verdicts").locator("dd").first
    n = int(reviewed.inner_text())
    page.goto(f"{server}/verdicts/{second}/")
    page.keyboard.press("c")
    expect(page.get_by_role("status")).to_contain_text(f"Confirmed verdict {second}.")
    page.goto(f"{server}/verdicts/agreement/")
    expect(reviewed).to_have_text(str(n + 1))


# Stepping in -------------------------------------------------------------------------------------


def test_a_run_that_has_ended_goes_on_with_a_correction_to_a_new_verdict(
    page: Page, start: Start
) -> None:
    run = start()
    page.goto(run)
    expect(status(page)).to_have_text("Completed", timeout=60_000)
    page.locator(".r.verdict", has_text="Verdict: passed").click()
    page.wait_for_url("**/verdicts/*/")
    first = page.url
    expect(page.get_by_role("heading", name="The answer that was judged")).to_be_visible()
    page.get_by_label("What is to be done differently").fill(CORRECTION)
    expect(page.locator("#correction-preview pre")).to_contain_text(CORRECTION)
    page.get_by_role("button", name="Send the correction").click()
    page.wait_for_url(run)
    expect(page.locator(".messages")).to_contain_text("The run goes on with the correction.")
    words = page.locator("#tree .r.verdict")
    expect(words).to_have_count(2, timeout=30_000)
    expect(words.last).to_contain_text("The line is named.")
    expect(status(page)).to_have_text("Completed", timeout=20_000)
    expect(page.locator("#tree")).to_contain_text("Line 14 of bin/lantern takes 0")
    words.last.click()
    page.wait_for_url(lambda url: "/verdicts/" in url and url != first)
    expect(page.locator("h1 .word")).to_have_text("Passed")
    page.goto(first)
    expect(page.locator("#correction")).to_contain_text("not the one that counts")


def test_a_rewind_to_before_a_review_opens_it_again(page: Page, start: Start) -> None:
    run = start()
    page.goto(run)
    expect(status(page)).to_have_text("Completed", timeout=60_000)
    page.locator("#goals .goal-head button").first.click()
    page.locator(".r.tool", has_text='read_file("MIGRATION.md")').click()
    page.get_by_role("button", name="Rewind to here…").click()
    dialog = page.get_by_role("dialog", name="Rewind to message")
    told = dialog.locator("dl.receipt")
    expect(told).to_contain_text(f"Review open again{GUIDE}")
    expect(told).to_contain_text("Verdict leftPassed")
    expect(told).to_contain_text("Refs no longer held1")
    expect(dialog.get_by_label("Why")).to_be_focused()
    page.keyboard.type("not yet")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(status(page)).to_have_text("Paused")
    page.get_by_role("link", name="Agents", exact=True).click()
    row = board_row(page, GUIDE)
    expect(row).not_to_contain_text("accepted")
    expect(row.locator(".alarm.review_due")).to_be_visible()
    # Its own sub-agents are not taken back with it.
    expect(board_row(page, WRITING)).to_contain_text("accepted")
    row.get_by_role("link", name="Review it").click()
    form = page.locator("#child")
    form.get_by_label("ACCEPT").check()
    form.get_by_label("Then have the run go on").check()
    form.get_by_role("button", name="Make the review").click()
    expect(page.locator(".messages")).to_contain_text("The review is made.")
    page.goto(f"{run}agents/")
    expect(board_row(page, GUIDE)).to_contain_text("by admin")
    expect(status(page)).to_have_text("Completed", timeout=30_000)


# Every page of it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "theme", "language"), [(1440, "light", "en-US"), (390, "dark", "zh-CN")]
)
def test_axe_finds_nothing_on_the_way(
    chromium: Browser, page: Page, live_server_process: Server, ended: str, width: int, theme: Any,
    language: str,
) -> None:  # fmt: skip
    server = live_server_process.url
    page.goto(f"{ended}agents/")
    child = board_row(page, LISTING).locator("th a").first.get_attribute("href")
    to_verdict(page, ended, "failed")
    failed = page.url
    page.goto(f"{ended}agents/")
    passed = page.locator("table.board .top a.word").get_attribute("href")
    # axe is put into the page as an inline script, which the pages' own policy forbids.
    context = chromium.new_context(
        viewport={"width": width, "height": 844}, color_scheme=theme, locale=language,
        bypass_csp=True, storage_state=page.context.storage_state(),
    )  # fmt: skip
    seen = context.new_page()
    found: dict[str, list[str]] = {}
    looked_at = [ended, f"{ended}agents/", f"{server}{child}task/", failed]
    if language == "en-US":
        looked_at += [f"{ended}task/", f"{server}{child}", f"{server}{passed}"]
    for address in looked_at:
        seen.goto(address)
        seen.wait_for_load_state("networkidle")
        for details in seen.locator("main details:not(.menu)").all():
            details.evaluate("one => one.open = true")
        if wrong := problems(seen):
            found[address] = wrong
        if seen.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.setdefault(address, []).append("wider than the screen")
        if language == "zh-CN" and address.endswith("/agents/"):
            expect(seen.locator("table.board thead")).to_contain_text("任务书")
    context.close()
    assert found == {}
