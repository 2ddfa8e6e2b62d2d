"""The verdict desk in a real browser: confirming by key, overruling, sending a correction."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import problems, sign_in, store
from tests.browser.server import Server

JUDGED = "__import__('tests.traces.judged').traces.judged.{}, owner_id=local_admin().pk)"


def judged(server: Server, what: str) -> str:
    """The id of a new verdict. ``what``: a call of ``tests.traces.judged``, not closed."""
    return store(server, JUDGED.format(what))


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


def test_a_key_confirms_and_leads_to_the_next(signed_in: Page, live_server_process: Server) -> None:
    page, server = signed_in, live_server_process
    older = judged(server, "judged_root('failed', mission='Sort'")
    newer = judged(server, "judged_root('failed', mission='Sort'")
    page.goto(f"{server.url}/verdicts/{newer}/")
    page.keyboard.press("]")
    page.wait_for_url(f"{server.url}/verdicts/{older}/")
    page.keyboard.press("[")
    page.wait_for_url(f"{server.url}/verdicts/{newer}/")
    count = page.locator(".topbar .count")
    expect(count).to_be_visible()
    before = int(re.findall(r"\d+", count.inner_text())[0])
    page.get_by_label("Comment").fill("c is only a letter here")
    expect(page.get_by_text("Nobody has said a word on it yet.")).to_be_visible()
    page.locator("h1").click()
    page.keyboard.press("c")
    page.wait_for_url(f"{server.url}/verdicts/{older}/")
    expect(
        page.get_by_role("status").filter(has_text=f"Confirmed verdict {newer}.")
    ).to_be_visible()
    expect(count).to_have_text(re.compile(rf"^{before - 1}\b"))
    page.goto(f"{server.url}/verdicts/{newer}/")
    # What was written before goes with it.
    expect(page.locator(".said-so-far")).to_contain_text("Confirmed admin")
    expect(page.locator(".said-so-far")).to_contain_text("c is only a letter here")


def test_another_word_follows_from_the_criteria_and_needs_its_reasons(
    signed_in: Page, live_server_process: Server
) -> None:
    page, server = signed_in, live_server_process
    verdict = judged(server, "judged_child('passed', 'passed'")
    page.goto(f"{server.url}/verdicts/{verdict}/")
    whole = page.get_by_role("group", name="On the whole")
    expect(whole.get_by_label("Passed")).to_be_checked()
    second = page.get_by_role("article", name="The tests of refunds pass")
    second.get_by_label("Unknown").check()
    expect(whole.get_by_label("Unknown")).to_be_checked()
    second.get_by_label("Failed").check()
    expect(whole.get_by_label("Failed")).to_be_checked()
    second.get_by_label("Failed").press("Enter")  # stores, and does not confirm
    expect(page.locator("#reason-error")).to_contain_text("reason is needed to overrule")
    expect(whole.get_by_label("Failed")).to_be_checked()
    expect(second.get_by_label("Failed")).to_be_checked()
    page.get_by_label("Reason", exact=True).first.select_option("evidence_missing")
    page.get_by_label("Comment").fill("No run of the tests is there.")
    page.get_by_role("button", name="Store my word").click()
    page.wait_for_url(re.compile(rf"/verdicts/{verdict}/(\?.*)?#correction$"))
    expect(page.locator(".page-head")).to_contain_text("Overruled: Failed")
    expect(page.locator(".said-so-far")).to_contain_text("No run of the tests is there.")


def test_a_correction_is_read_before_it_is_sent(
    signed_in: Page, live_server_process: Server
) -> None:
    page, server = signed_in, live_server_process
    verdict = judged(server, "judged_child('passed', 'failed'")
    page.goto(f"{server.url}/verdicts/{verdict}/")
    preview = page.locator("#correction-preview")
    expect(preview).to_contain_text("gets the review REVISE_CHILD")
    page.get_by_label("What is to be done differently").fill("Run <b>all</b> tests.")
    expect(preview.locator(".new", has_text="carried out: Run <b>all</b> tests.")).to_be_visible()
    page.get_by_role("button", name="Send the correction").click()
    page.wait_for_url(re.compile(r"/runs/\w+/$"))
    expect(page.locator(".messages")).to_contain_text("Sent.")
    page.goto(f"{page.url}commands/")
    expect(page.locator("tr", has_text="review").first).to_contain_text("REVISE_CHILD")


def test_a_review_that_is_due_is_made(signed_in: Page, live_server_process: Server) -> None:
    page, server = signed_in, live_server_process
    verdict = judged(server, "judged_child('passed', 'failed'")
    page.goto(f"{server.url}/verdicts/{verdict}/")
    form = page.locator("#child")
    brief = form.get_by_label("Next contract, as JSON")
    expect(brief).to_be_hidden()
    form.get_by_label("REPLACE").check()
    expect(brief).to_be_visible()
    brief.fill("{")
    form.get_by_role("button", name="Make the review").click()
    expect(form.get_by_role("alert")).to_contain_text("TaskBrief is not JSON")
    expect(form.get_by_label("REPLACE")).to_be_checked()
    form.get_by_label("ACCEPT").check()
    expect(brief).to_be_hidden()
    form.get_by_label("Reason", exact=True).fill("It will do.")
    form.get_by_role("button", name="Make the review").click()
    expect(page.locator(".messages")).to_contain_text("The review is made.")
    expect(form).to_have_count(0)


def test_the_queue_is_narrowed_without_leaving_it(
    signed_in: Page, live_server_process: Server
) -> None:
    page, server = signed_in, live_server_process
    verdict = judged(server, "judged_root('unknown', sent=False")
    page.goto(f"{server.url}/verdicts/")
    page.get_by_label("Verdict", exact=True).select_option("unknown")
    expect(page.locator("#verdicts tbody tr .word.unknown").first).to_be_visible()
    expect(page.locator("#verdicts tbody tr .word.failed")).to_have_count(0)
    assert "verdict=unknown" in page.url
    page.locator(f"#verdict-{verdict} a").click()
    page.wait_for_url(re.compile(rf"/verdicts/{verdict}/\?verdict=unknown$"))
    expect(page.get_by_text("No packet was sent.")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(
    chromium: Browser, live_server_process: Server, theme: str, width: int
) -> None:
    server = live_server_process
    child = judged(server, "judged_child('passed', 'failed'")
    root = judged(server, "judged_root('unknown', sent=False")
    # axe is put into the page as an inline script, which the pages' own policy forbids.
    context = chromium.new_context(
        viewport={"width": width, "height": 844}, color_scheme=theme, bypass_csp=True
    )
    page = context.new_page()
    sign_in(page, server)
    found: dict[str, list[str]] = {}
    for address in (
        "/verdicts/", "/verdicts/?review=all", "/verdicts/?search=nothing+has+this",
        "/verdicts/?since=soon", f"/verdicts/{child}/", f"/verdicts/{root}/",
        "/verdicts/agreement/",
    ):  # fmt: skip
        page.goto(server.url + address)
        page.wait_for_load_state("networkidle")
        for details in page.locator("main details").all():
            details.evaluate("one => one.open = true")
        if wrong := problems(page):
            found[address] = wrong
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.setdefault(address, []).append("wider than the screen")
    page.goto(f"{server.url}/verdicts/{child}/")
    page.get_by_role("button", name="Store my word").click()
    page.locator("#child").get_by_role("button", name="Make the review").click()
    if wrong := problems(page):
        found["an error"] = wrong
    context.close()
    assert found == {}
