"""Every page: nothing for axe to find, in both themes, on a desk and on a phone, in both
languages; and the flows that need no run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import new_link, problems, sign_in, store
from tests.browser.server import Server


@pytest.fixture(scope="module")
def traces(live_server_process: Server) -> dict[str, str]:
    return {
        "planned": store(live_server_process, "planned().store(local_admin())"),
        "forked": store(live_server_process, "store_bundle(forked(), local_admin())"),
    }


def addresses(traces: dict[str, str]) -> list[str]:
    planned, forked = traces["planned"], traces["forked"]
    return [
        "/runs/", "/runs/?search=nothing+has+this", "/runs/new/", "/runs/import/",
        f"/runs/{planned}/", f"/runs/{planned}/messages/8/", f"/runs/{planned}/commands/",
        *(f"/runs/{planned}/{tab}/" for tab in ("compactions", "injections", "knowledge", "lab")),
        f"/runs/{planned}/agents/", f"/runs/{planned}/task/",
        f"/runs/{planned}/compare/{forked}/",
        f"/runs/{forked}/messages/10/", "/skills/", "/account/tokens/", "/nowhere/",
    ]  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(
    chromium: Browser, live_server_process: Server, traces: dict[str, str], theme: str, width: int
) -> None:
    # axe is put into the page as an inline script, which the pages' own policy forbids.
    context = chromium.new_context(
        viewport={"width": width, "height": 844}, color_scheme=theme, bypass_csp=True
    )
    page = context.new_page()
    sign_in(page, live_server_process)
    demo = page.locator(".runs a", has_text="Look through").first.get_attribute("href")
    calls = [f"{demo}calls/1/", f"{demo}calls/1/?view=pretty"]
    found: dict[str, list[str]] = {}
    for address in [*addresses(traces), *calls]:
        page.goto(live_server_process.url + address)
        page.wait_for_load_state("networkidle")
        if wrong := problems(page):
            found[address] = wrong
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.setdefault(address, []).append("wider than the screen")
    page.goto(f"{live_server_process.url}/runs/{traces['planned']}/")
    for dialog in ("jump-dialog", "help-dialog"):
        page.evaluate(f"document.getElementById('{dialog}').showModal()")
        found |= {dialog: wrong} if (wrong := problems(page)) else {}
        page.keyboard.press("Escape")
    context.close()
    assert found == {}


@pytest.fixture
def signed_in(chromium: Browser, live_server_process: Server) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    sign_in(page, live_server_process)
    yield page
    context.close()


def test_a_link_that_is_only_looked_at_is_not_used_up(
    page: Page, chromium: Browser, live_server_process: Server
) -> None:
    link = new_link(live_server_process)
    page.goto(link)
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    other = chromium.new_context().new_page()
    other.goto(link)
    other.get_by_role("button", name="Sign in").click()
    expect(other.get_by_role("heading", name="This link does not work any more")).to_be_visible()
    other.context.close()


def test_the_language_is_switched_and_stays(
    signed_in: Page, live_server_process: Server, traces: dict[str, str]
) -> None:
    signed_in.locator("details.menu summary").last.click()
    signed_in.get_by_role("button", name="简体中文").click()
    expect(signed_in.get_by_role("heading", name="运行")).to_be_visible()
    signed_in.goto(f"{live_server_process.url}/runs/{traces['planned']}/")
    expect(signed_in.get_by_text("目标与消息").first).to_be_visible()
    expect(signed_in.locator(".r.user b")).to_have_text("用户")
    signed_in.locator("details.menu summary").first.click()
    signed_in.get_by_role("button", name="English").click()
    expect(signed_in.get_by_text("Goals and messages").first).to_be_visible()


def test_the_theme_is_kept_from_page_to_page(signed_in: Page, live_server_process: Server) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = signed_in.evaluate(background)
    signed_in.locator("details.menu summary").last.click()
    signed_in.get_by_role("button", name="Dark").click()
    dark = signed_in.evaluate(background)
    signed_in.goto(f"{live_server_process.url}/skills/")
    assert signed_in.evaluate(background) == dark != light


def test_a_token_is_shown_once_and_revoked(signed_in: Page, live_server_process: Server) -> None:
    signed_in.goto(f"{live_server_process.url}/account/tokens/")
    signed_in.get_by_label("Name of a new token").fill("nightly")
    signed_in.get_by_role("button", name="Create token").click()
    token = signed_in.locator("#token-text").inner_text()
    assert token.startswith("ca_")
    signed_in.goto(f"{live_server_process.url}/account/tokens/")
    assert token not in signed_in.content()
    signed_in.get_by_role("button", name="Revoke nightly").click()
    expect(signed_in.locator("td .tag", has_text="revoked")).to_be_visible()


def test_a_transcript_is_uploaded_and_what_was_skipped_is_said(
    signed_in: Page, live_server_process: Server, tmp_path: Path
) -> None:
    lines = [
        {"role": "user", "content": "Sort the <i>letters</i>"},
        {"role": "assistant", "content": "Sorted."},
    ]
    file = tmp_path / "chat.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n{broken\n")
    signed_in.goto(f"{live_server_process.url}/runs/import/")
    signed_in.locator("#file").set_input_files(file)
    card = signed_in.locator("#imported")
    expect(card.get_by_role("link")).to_have_text("Sort the <i>letters</i>")
    expect(card).to_contain_text("Skipped lines")
    card.get_by_role("link").click()
    expect(signed_in.locator(".r.user")).to_contain_text("Sort the <i>letters</i>")


def test_a_file_that_is_no_transcript_is_refused(
    signed_in: Page, live_server_process: Server, tmp_path: Path
) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"\xff\xd8\xff\xe0 not a transcript")
    signed_in.goto(f"{live_server_process.url}/runs/import/")
    signed_in.locator("#file").set_input_files(file)
    expect(signed_in.locator("#imported .errors")).to_contain_text("photo.jpg")


def test_a_form_with_an_error_keeps_what_was_written(
    signed_in: Page, live_server_process: Server
) -> None:
    signed_in.goto(f"{live_server_process.url}/runs/new/")
    signed_in.get_by_label("Mission").fill("Count stars")
    signed_in.get_by_label("scripted").check()
    signed_in.get_by_text("Advanced").click()
    signed_in.get_by_label("Temperature").fill("hot")
    signed_in.get_by_role("button", name="Start").click()
    expect(signed_in.locator("#temperature-error")).to_have_text("Write a number.")
    expect(signed_in.get_by_label("Mission")).to_have_value("Count stars")
    expect(signed_in.get_by_label("Temperature")).to_have_value("hot")
