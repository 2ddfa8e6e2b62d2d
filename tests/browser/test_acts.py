"""Stepping in, in a real browser: a dialog says what an act would mean, the page shows what it
did, and it can be taken back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import problems, sign_in, store
from tests.browser.server import Server

RAN = "__import__('tests.traces.played').traces.played.ran(__import__('pathlib').Path({!r}){})"


@pytest.fixture(scope="module")
def signed_in(chromium: Browser, live_server_process: Server) -> Iterator[Page]:
    """One page for all: it fails its module if the browser complained of anything."""
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


def run_of(server: Server, folder: Path, more: str = "") -> str:
    """A scripted run that has ended: 9 messages in four calls."""
    return f"{server.url}/runs/{store(server, RAN.format(str(folder), more))}/"


def test_a_rewind_is_weighed_done_and_undone(
    signed_in: Page, live_server_process: Server, tmp_path: Path
) -> None:
    page, base = signed_in, run_of(live_server_process, tmp_path)
    page.goto(f"{base}messages/5/")
    page.get_by_role("button", name="Rewind to here…").click()
    dialog = page.get_by_role("dialog", name="Rewind to message 5")
    expect(dialog).to_contain_text("message 3: at 5 a tool’s result is still to come")
    expect(dialog).to_contain_text("6 messages, kept beside the path")
    expect(dialog).to_contain_text("the same as call 2 was sent")
    expect(dialog.get_by_label("Why")).to_be_focused()
    page.keyboard.type("wrong file")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    notice = page.locator("#notice")
    expect(notice).to_contain_text("from message 9 to 3: 6 left")
    expect(page.locator("#facts .status")).to_have_text("Paused")
    ghost = page.locator(".r.ghost")
    expect(ghost).to_contain_text("Left by a rewind: 6 messages")
    expect(ghost).to_contain_text("wrong file")
    ghost.click()
    expect(page.locator(".open-rows", has_text="The report.")).to_be_visible()
    notice.get_by_role("button", name="Undo").click()
    expect(notice).to_contain_text("from message 3 to 9")
    expect(ghost).to_have_count(0)
    expect(page.locator("#goals .r", has_text="The report.")).to_be_visible()


def test_what_changed_meanwhile_is_said_in_the_dialog(
    signed_in: Page, live_server_process: Server, tmp_path: Path
) -> None:
    page, base = signed_in, run_of(live_server_process, tmp_path)
    page.goto(f"{base}messages/3/")
    page.get_by_role("button", name="Rewind to here…").click()
    dialog = page.get_by_role("dialog", name="Rewind to message 3")
    dialog.locator("input[name=head]").evaluate("field => field.value = 8")
    dialog.get_by_role("button", name="Rewind").click()
    expect(dialog.get_by_role("alert")).to_contain_text("the head is message 9, not 8")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_a_compaction_is_previewed_done_and_stands_in_its_ledger(
    signed_in: Page, live_server_process: Server, tmp_path: Path
) -> None:
    page, base = signed_in, run_of(live_server_process, tmp_path)
    page.goto(base)
    page.get_by_role("button", name="Compact…").click()
    dialog = page.get_by_role("dialog", name="Compact the window")
    expect(dialog).to_contain_text("goal 1 is completed")
    expect(dialog).to_contain_text("1 message stays word for word")
    dialog.get_by_label("Policy").select_option("opencode")
    expect(dialog).to_contain_text("The model will be asked for a summary.")
    dialog.get_by_label("Policy").select_option("cyber")
    expect(dialog).to_contain_text("goal 1 is completed")
    dialog.get_by_role("button", name="Compact", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("applied when the run goes on")
    page.get_by_role("button", name="Say…").click()
    page.get_by_role("textbox", name="Message").fill("Once more.")
    page.get_by_role("button", name="Say", exact=True).click()
    expect(page.locator(".r", has_text="Another report.")).to_be_visible(timeout=30_000)
    mark = page.locator(".timeline .marks a").first
    mark.click()
    page.wait_for_url("**/compactions/**")
    entry = page.locator("details.entry")
    expect(entry).to_have_count(1)
    entry.locator("summary").click()
    expect(entry).to_contain_text("asked for by admin")
    expect(entry).to_contain_text("goal 1 is completed")


def test_a_skill_is_injected_and_a_fork_is_compared_with_its_original(
    signed_in: Page, live_server_process: Server, tmp_path: Path
) -> None:
    page, base = signed_in, run_of(live_server_process, tmp_path)
    page.goto(base)
    menu = page.locator("#acts details.menu summary")
    menu.click()
    page.get_by_role("button", name="Inject a skill…").click()
    dialog = page.get_by_role("dialog", name="Inject a skill")
    dialog.get_by_role("radio").first.check()
    dialog.get_by_role("button", name="Inject").click()
    expect(page.locator("#notice")).to_contain_text("is loaded when the run goes on")
    page.goto(f"{base}messages/6/")
    page.get_by_role("button", name="Fork from here…").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("link", name="Forked from")).to_be_visible()
    expect(page.locator("#facts .status")).to_have_text("Paused")
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_text("the same up to message 6")).to_be_visible()
    page.goto(f"{base}commands/")
    expect(page.locator("tbody tr")).to_have_count(2)


def test_the_lab_shows_its_progress_then_its_table(
    signed_in: Page, live_server_process: Server, tmp_path: Path
) -> None:
    page, base = signed_in, run_of(live_server_process, tmp_path)
    page.goto(f"{base}lab/")
    page.get_by_label("Context window").fill("none")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("alert")).to_contain_text("whole number of tokens")
    page.get_by_label("Context window").fill("6000")
    page.get_by_role("button", name="Compare").click()
    table = page.locator("table.lab")
    chosen = page.locator("input[type=checkbox][name=policies]:checked")
    expect(table.locator("tbody tr")).to_have_count(chosen.count(), timeout=30_000)
    expect(page.get_by_text("a summary is a stub")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_the_dialogs(
    chromium: Browser, live_server_process: Server, tmp_path: Path, theme: str
) -> None:
    base = run_of(live_server_process, tmp_path)
    context = chromium.new_context(
        viewport={"width": 390, "height": 844}, color_scheme=theme, bypass_csp=True
    )
    page = context.new_page()
    sign_in(page, live_server_process)
    found: dict[str, list[str]] = {}
    page.goto(f"{base}messages/1/")
    for name in ("Rewind to here…", "Edit and resume…", "Fork from here…"):
        page.get_by_role("button", name=name).click()
        expect(page.locator("#act form")).to_be_visible()
        found |= {name: wrong} if (wrong := problems(page)) else {}
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Close").click()
    for name in ("Compact…", "Inject a skill…", "Change the policy…"):
        if name != "Compact…":
            page.locator("#acts details.menu summary").click()
        page.get_by_role("button", name=name).click()
        expect(page.locator("#act .primary")).to_be_visible()
        found |= {name: wrong} if (wrong := problems(page)) else {}
        page.keyboard.press("Escape")
    context.close()
    assert found == {}
