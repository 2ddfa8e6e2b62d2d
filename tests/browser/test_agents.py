"""Sub-agents in a real browser: watched live from above, on the board, with nothing for axe."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import problems, sign_in, store
from tests.browser.server import Server

GROWN = "__import__('tests.traces.families', fromlist=['grown']).grown(local_admin())"
TOKEN = "JSON.parse(document.body.getAttribute('hx-headers:inherited'))"
START = f"""async () => {{
  const form = new FormData();
  form.set('name', 'recursive');
  const answer = await fetch('/runs/demo/', {{method: 'POST', headers: {TOKEN}, body: form}});
  return new URL(answer.url).pathname;
}}"""


@pytest.fixture(scope="module")
def tree(live_server_process: Server) -> str:
    return store(live_server_process, GROWN)


@pytest.fixture
def seen(chromium: Browser, live_server_process: Server) -> Iterator[Page]:
    """A signed-in page that fails its test if the browser complained of anything."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    sign_in(page, live_server_process)
    yield page
    context.close()
    assert complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_on_the_pages_of_a_tree(
    chromium: Browser, live_server_process: Server, tree: str, theme: str, width: int
) -> None:
    context = chromium.new_context(
        viewport={"width": width, "height": 844}, color_scheme=theme, bypass_csp=True
    )
    page = context.new_page()
    sign_in(page, live_server_process)
    found: dict[str, list[str]] = {}
    page.goto(f"{live_server_process.url}/runs/{tree}/agents/")
    for details in page.locator("#board details").all():
        details.evaluate("e => e.open = true")
    links = page.locator("#board th a").evaluate_all("l => l.map(a => a.getAttribute('href'))")
    below = re.findall(r"/runs/\w+/", " ".join(links))
    assert len(below) == 5
    addresses = [f"/runs/{tree}/task/", f"/runs/{tree}/", *(f"{b}task/" for b in below), below[0]]
    for address in ("", *addresses):
        if address:
            page.goto(live_server_process.url + address)
        page.wait_for_load_state("networkidle")
        for details in page.locator("main details").all():
            details.evaluate("e => e.open = true")
        if wrong := problems(page):
            found[address] = wrong
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.setdefault(address, []).append("wider than the screen")
    context.close()
    assert found == {}


def test_a_sub_agent_opens_below_its_call_and_leads_to_its_own_page(
    seen: Page, live_server_process: Server, tree: str
) -> None:
    seen.goto(f"{live_server_process.url}/runs/{tree}/")
    line = seen.locator(".r.child", has_text="Switch the old service off")
    expect(line.locator(".tag")).to_have_text("Unknown")
    line.click()
    opened = seen.locator(".open-rows.child")
    expect(opened.locator(".r", has_text="Contract")).to_be_visible()
    # Its own sub-agents hang in it, and its validator's word is there.
    expect(opened.locator(".r.child", has_text="Find who still calls it")).to_be_visible()
    verdict = opened.locator(".r.verdict")
    expect(verdict).to_contain_text("No message shows it")
    verdict.click()
    expect(seen).to_have_url(re.compile(r"/verdicts/\d+/$"))


def test_a_recursive_run_is_watched_from_above(seen: Page, live_server_process: Server) -> None:
    run = seen.evaluate(START)
    seen.goto(live_server_process.url + run)
    board = seen.context.new_page()
    board.goto(f"{live_server_process.url}{run}agents/")
    line = seen.locator(".r.child", has_text="Write MIGRATION.md")
    expect(line.locator(".status")).to_have_text("Live", timeout=20_000)
    expect(line.locator(".meta")).to_have_text(re.compile("[2-9] steps"), timeout=30_000)
    expect(line.locator(".out")).to_contain_text("1 Have the changes listed")
    # Opened, it stays open while the line above goes on; its own sub-agent's line is live too.
    line.click()
    seen.locator("#tree").focus()
    opened = seen.locator(".open-rows.child > .r")
    before = opened.count()
    expect(opened.nth(before)).to_be_visible(timeout=30_000)
    inner = seen.locator(".open-rows .r.child", has_text="List what changed")
    expect(inner.locator(".meta")).to_have_text(re.compile("[4-9] steps"), timeout=30_000)
    expect(line).to_have_attribute("aria-expanded", "true")
    rows = board.locator("#board tr[id]")
    expect(rows.nth(1)).to_contain_text("List what changed", timeout=20_000)
    expect(rows.nth(1)).to_contain_text("version 2", timeout=30_000)
    expect(board.locator("#log li").last).to_contain_text("Agent begins")
    # The reader's place on the board is kept while it is drawn anew.
    refs = rows.nth(2).locator("details")
    expect(refs).to_have_count(1, timeout=30_000)
    refs.locator("summary").click()
    expect(rows.nth(2)).to_contain_text("1 read", timeout=30_000)
    expect(refs).to_have_attribute("open", "")


def test_lines_are_right_again_after_the_server_was_killed(
    seen: Page, live_server_process: Server
) -> None:
    run = seen.evaluate(START)
    seen.goto(live_server_process.url + run)
    line = seen.locator(".r.child", has_text="Write MIGRATION.md")
    expect(line.locator(".meta")).to_have_text(re.compile("[1-9] steps?"), timeout=30_000)
    before = int((line.locator(".meta").inner_text()).split()[0])
    live_server_process.kill()
    expect(seen.locator("#pulse")).to_have_text("reconnecting…", timeout=15_000)
    live_server_process.start()
    # The run is taken over, and the page, which was never loaded anew, follows it.
    newer = re.compile(rf"({'|'.join(str(n) for n in range(before + 1, 40))}) steps")
    expect(line.locator(".meta")).to_have_text(newer, timeout=60_000)
