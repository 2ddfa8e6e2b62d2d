"""The run page in a real browser: reading, folding, keys, and watching a run live."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import sign_in, store
from tests.browser.server import Server

ELEMENTS = "document.querySelectorAll('*').length"


@pytest.fixture
def seen(chromium: Browser, live_server_process: Server) -> Iterator[Page]:
    """A signed-in page that fails its test if the browser complained of anything."""
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
def planned(live_server_process: Server) -> str:
    return store(live_server_process, "planned().store(local_admin())")


def test_completed_goals_are_folded_and_open_to_their_rows(
    seen: Page, live_server_process: Server, planned: str
) -> None:
    seen.goto(f"{live_server_process.url}/runs/{planned}/")
    goals = seen.locator("#goals .goal-head button")
    expect(goals).to_have_count(3)
    assert [g.get_attribute("aria-expanded") for g in goals.all()] == ["false", "false", "true"]
    expect(seen.get_by_text("six notes, two of them empty")).to_be_visible()
    expect(seen.locator(".r.tool", has_text="notes/4.md")).to_have_count(0)
    goals.first.click()
    expect(seen.locator(".r.tool", has_text="notes/4.md")).to_be_visible()
    goals.first.click()
    expect(seen.locator(".r.tool", has_text="notes/4.md")).to_be_hidden()


def test_a_row_opens_in_the_inspector_and_has_its_own_address(
    seen: Page, live_server_process: Server, planned: str
) -> None:
    seen.goto(f"{live_server_process.url}/runs/{planned}/")
    seen.locator("#goals .goal-head button").first.click()
    seen.locator(".r.tool", has_text="notes/2.md").click()
    inspector = seen.locator("#inspector")
    expect(inspector.locator("h2")).to_contain_text("read_file")
    expect(inspector).to_contain_text("note number 2")
    expect(inspector).to_contain_text("1 Look around")
    address = seen.url
    assert re.search(r"/messages/8/$", address)
    inspector.get_by_role("link", name="Raw").click()
    expect(inspector).to_contain_text('"tool_call_id"')

    seen.goto(address)
    expect(seen.locator(".r[aria-current]")).to_contain_text("notes/2.md")
    expect(inspector).to_contain_text("note number 2")


def test_html_of_a_transcript_is_only_text(
    seen: Page, live_server_process: Server, planned: str
) -> None:
    seen.goto(f"{live_server_process.url}/runs/{planned}/")
    expect(seen.locator("h1")).to_have_text("Tidy the notes <b>boldly</b>")
    assert seen.locator("h1 b").count() == 0


def test_keys_go_through_rows_fold_and_jump(
    seen: Page, live_server_process: Server, planned: str
) -> None:
    seen.goto(f"{live_server_process.url}/runs/{planned}/")
    expect(seen.locator(".r.user")).to_be_visible()
    seen.locator("#tree").focus()
    seen.keyboard.press("j")
    expect(seen.locator(".r.user")).to_be_focused()
    seen.keyboard.press("j")
    seen.keyboard.press("j")
    first = seen.locator("#goals .goal-head button").first
    expect(first).to_be_focused()
    seen.keyboard.press("l")
    expect(first).to_have_attribute("aria-expanded", "true")
    seen.keyboard.press("h")
    expect(first).to_have_attribute("aria-expanded", "false")
    seen.keyboard.press("g")
    seen.locator("#jump-to").fill("11")
    seen.keyboard.press("Enter")
    expect(seen.locator(".r[aria-current]")).to_contain_text("notes/3.md")
    expect(first).to_have_attribute("aria-expanded", "true")
    seen.keyboard.press("?")
    expect(seen.get_by_role("dialog", name="Keys")).to_be_visible()
    seen.keyboard.press("Escape")
    seen.keyboard.press("/")
    expect(seen.locator("#find")).to_be_focused()


def test_jumping_to_a_message_that_is_not_there_says_so(
    seen: Page, live_server_process: Server, planned: str
) -> None:
    seen.goto(f"{live_server_process.url}/runs/{planned}/")
    seen.locator("#tree").focus()
    seen.keyboard.press("g")
    seen.locator("#jump-to").fill("9999")
    seen.keyboard.press("Enter")
    expect(seen.locator("#jump-error")).to_have_text("There is no message 9999 on this path.")


def test_finding_leads_to_the_message(
    seen: Page, live_server_process: Server, planned: str
) -> None:
    seen.goto(f"{live_server_process.url}/runs/{planned}/")
    seen.locator("#find").fill("number 5")
    hit = seen.locator("#found a.r")
    expect(hit).to_have_count(1)
    expect(hit.locator("mark")).to_have_text("number 5")
    hit.click()
    expect(seen.locator("#tree .r[aria-current]")).to_contain_text("notes/5.md")
    seen.locator("#find").fill("note number")
    expect(seen.locator("#found a.r")).to_have_count(6)
    seen.locator("#find").press("Enter")
    seen.locator("#find").press("Enter")
    expect(seen.locator("#tree .r[aria-current]")).to_contain_text("notes/1.md")
    seen.locator("#find").press("Shift+Enter")
    expect(seen.locator("#tree .r[aria-current]")).to_contain_text("notes/0.md")
    expect(seen.locator("#find")).to_be_focused()
    seen.keyboard.press("Escape")
    expect(seen.locator("#found a.r")).to_have_count(0)
    seen.keyboard.press("g")
    expect(seen.locator("#jump-dialog")).to_be_visible()


def test_on_a_phone_the_inspector_comes_up_and_goes(
    seen: Page, live_server_process: Server, planned: str
) -> None:
    seen.set_viewport_size({"width": 390, "height": 844})
    seen.goto(f"{live_server_process.url}/runs/{planned}/")
    inspector = seen.locator("#inspector")
    expect(inspector).to_be_hidden()
    seen.locator(".r.user").click()
    expect(inspector).to_be_visible()
    expect(inspector).to_contain_text("Tidy the notes")
    inspector.get_by_role("button", name="Close").click()
    expect(inspector).to_be_hidden()


def test_what_left_the_path_hangs_where_it_left(seen: Page, live_server_process: Server) -> None:
    trace = store(live_server_process, "store_bundle(forked(), local_admin())")
    seen.goto(f"{live_server_process.url}/runs/{trace}/")
    rows = seen.locator("#rows-before .page > .r")
    expect(rows).to_have_count(7)
    assert [re.split(r"\s{2,}|\n", t)[0] for t in rows.all_inner_texts()] == [
        "User Fix the login",
        'agent("Read the logs") → the logs are fine',
        "Sub-agent Tidy the notes <b>boldly</b>",
        "Summary stands for 4 messages, 4k → 120 tokens",
        "Left by a rewind: 3 messages",
        "Operator Rather look at the clock.",
        "The clock is wrong.",
    ]
    seen.locator(".r.summary").click()
    expect(seen.get_by_text("Try the cache first.")).to_be_visible()
    expect(seen.get_by_text("Side branch reflection: 2 messages")).to_be_visible()
    seen.locator(".r.ghost").click()
    expect(seen.get_by_text("A wrong turn.")).to_be_visible()
    seen.locator(".r.child").click()
    expect(seen.get_by_text("Open this sub-agent’s own page")).to_be_visible()


def test_a_long_run_never_fills_the_page(seen: Page, live_server_process: Server) -> None:
    trace = store(live_server_process, "long(50_000).store(local_admin())")
    seen.goto(f"{live_server_process.url}/runs/{trace}/")
    seen.locator("#goals .goal-head button").first.focus()
    expect(seen.locator(".r.tool", has_text='"word 3"')).to_be_visible()
    most = 0
    seen.mouse.move(400, 600)
    for _ in range(20):
        seen.mouse.wheel(0, 1500)
        expect(seen.locator(".page.loading")).to_have_count(0)
        most = max(most, seen.evaluate(ELEMENTS))
    seen.locator("#to-end").click()
    expect(seen.locator(".r.tool", has_text='"word 49999"')).to_be_visible()
    seen.keyboard.press("g")
    seen.locator("#jump-to").fill("25000")
    seen.keyboard.press("Enter")
    expect(seen.locator(".r[aria-current]")).to_contain_text('"word 24999"')
    assert max(most, seen.evaluate(ELEMENTS)) <= 1_500


def test_a_live_run_is_watched_to_its_end_and_its_call_holds(
    seen: Page, live_server_process: Server
) -> None:
    seen.goto(f"{live_server_process.url}/runs/")
    seen.get_by_role("button", name="Run the demo").click()
    expect(seen.locator("#facts .status")).to_have_text("Live", timeout=20_000)
    expect(seen.locator("#pulse")).to_contain_text("last event", timeout=20_000)
    expect(seen.locator(".writing")).to_be_visible(timeout=20_000)
    expect(seen.locator(".r.tool", has_text="read_file").first).to_be_visible(timeout=30_000)
    expect(seen.locator("#facts .status")).to_have_text("Completed", timeout=90_000)
    expect(seen.locator(".writing")).to_be_hidden()
    live = seen.locator("#goals .goal-head").all_inner_texts()
    rows = seen.locator("#goals .page > .r").all_inner_texts()
    seen.reload()
    expect(seen.locator("#goals .goal-head").first).to_be_visible()
    assert seen.locator("#goals .goal-head").all_inner_texts() == live
    assert rows[0].startswith("User")

    seen.locator("#window a", has_text="call").click()
    expect(seen.get_by_text("rebuilt and equal")).to_be_visible()
    expect(seen.get_by_role("heading", name="Against call")).to_be_visible()
    number = int(re.search(r"/calls/(\d+)/", seen.url)[1])  # type: ignore[index]
    seen.keyboard.press("[")
    seen.wait_for_url(f"**/calls/{number - 1}/**")


def test_new_rows_do_not_move_what_the_reader_looks_at(
    seen: Page, live_server_process: Server
) -> None:
    seen.set_viewport_size({"width": 1440, "height": 520})
    seen.goto(f"{live_server_process.url}/runs/")
    seen.get_by_role("button", name="Run the demo").click()
    expect(seen.locator(".r.tool", has_text="read_file").nth(1)).to_be_visible(timeout=60_000)
    tree = seen.locator("#tree")
    assert tree.evaluate("t => t.scrollHeight > t.clientHeight + 60")
    seen.evaluate("document.querySelector('#tree').scrollTop = 0")
    first = seen.locator(".r.user")
    before = first.bounding_box()
    expect(seen.locator("#new-rows")).to_be_visible(timeout=30_000)
    expect(seen.locator("#new-rows")).to_contain_text("new")
    assert first.bounding_box() == before
    seen.locator("#new-rows").click()
    expect(seen.locator("#new-rows")).to_be_hidden()
    assert seen.evaluate("document.querySelector('#tree').scrollTop") > 0


def test_a_killed_server_is_caught_up_with_without_a_reload(
    seen: Page, live_server_process: Server
) -> None:
    server = live_server_process
    seen.goto(f"{server.url}/runs/")
    seen.get_by_role("button", name="Run the demo").click()
    expect(seen.locator(".r.tool").first).to_be_visible(timeout=30_000)
    seen.evaluate("document.body.dataset.same = 'page'")
    server.kill()
    expect(seen.locator("#pulse")).to_have_text("reconnecting…", timeout=20_000)
    server.start()
    expect(seen.locator("#pulse")).to_contain_text("last event", timeout=30_000)
    expect(seen.locator("#facts .status")).to_have_text("Completed", timeout=120_000)
    assert seen.evaluate("document.body.dataset.same") == "page"
    shown = seen.locator("#goals .goal-head").all_inner_texts()
    seen.reload()
    expect(seen.locator("#goals .goal-head").first).to_be_visible()
    assert seen.locator("#goals .goal-head").all_inner_texts() == shown


def test_an_operator_says_something_and_stops_the_run(
    seen: Page, live_server_process: Server
) -> None:
    seen.goto(f"{live_server_process.url}/runs/")
    seen.get_by_role("button", name="Run the demo").click()
    expect(seen.locator(".r.tool").first).to_be_visible(timeout=30_000)
    seen.get_by_role("button", name="Say…").click()
    seen.get_by_role("textbox", name="Message").fill("Mind the tests.")
    seen.get_by_role("button", name="Say", exact=True).click()
    expect(seen.locator("#notice")).to_contain_text("Said.")
    expect(seen.locator(".r.operator")).to_contain_text("Mind the tests.", timeout=30_000)
    seen.get_by_role("button", name="Stop").click()
    expect(seen.locator("#facts .status")).to_have_text("Stopped", timeout=20_000)
    seen.get_by_role("link", name="Commands").click()
    expect(seen.locator("tbody tr")).to_have_count(2)
    expect(seen.locator("tbody")).to_contain_text("Mind the tests.")
