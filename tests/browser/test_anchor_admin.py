"""Root anchors in a real browser: written in the new-run form, revised in the admin pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import problems, sign_in, store
from tests.browser.server import Server

TREE = (
    "(lambda a: (root := a.rooted(local_admin()), a.below(root, constraints=['Only Python']))[0])"
    "(__import__('tests.traces.anchored').traces.anchored)"
)


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def seen(
    chromium: Browser, live_server_process: Server, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """A page that fails its test if a script failed or the page's own policy was broken."""
    width, theme = request.param
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    sign_in(page, live_server_process)
    yield page
    context.close()
    assert complaints == []


def clean(page: Page) -> None:
    page.wait_for_load_state("networkidle")
    assert problems(page) == []
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_a_recursive_run_is_started_from_the_form(seen: Page, live_server_process: Server) -> None:
    page = seen
    page.goto(f"{live_server_process.url}/runs/new/")
    objective = page.get_by_label("Objective")
    expect(objective).to_be_hidden()
    page.get_by_role("radio", name="recursive").check()
    expect(objective).to_be_visible()
    page.get_by_label("Mission").fill("Move the people")
    page.get_by_role("radio", name="scripted").check()
    page.get_by_label("Completion criteria").fill("Paid\nOff\n\nPaid")
    # {"completion_criteria":["Paid","Off"],"constraints":[],"objective":""}: 70 characters
    expect(page.locator("[data-anchor-count]")).to_have_text("about 70 of 4,000 characters")
    page.get_by_label("Sub-agents", exact=True).select_option("parallel")
    clean(page)
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#objective-hint")).to_have_text("Say what the whole task is.")
    expect(page.get_by_label("Completion criteria")).to_have_value("Paid\nOff\n\nPaid")
    expect(page.get_by_label("Sub-agents", exact=True)).to_have_value("parallel")
    clean(page)
    objective.fill("x" * 4_000)
    expect(page.locator("[data-anchor-count]")).to_have_class("over")
    objective.fill("Move the shop")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/runs/*/")
    expect(page.get_by_role("heading", name="Move the people")).to_be_visible()


def test_an_anchor_is_revised_after_a_preview(seen: Page, live_server_process: Server) -> None:
    page, root = seen, store(live_server_process, TREE)
    page.goto(f"{live_server_process.url}/admin/traces/anchorrevision/?q={root}")
    page.get_by_role("link", name="Revise…").click()
    page.get_by_label("Constraints").fill("No card number is logged\nNo shop is closed")
    page.get_by_label("Reason").fill("<b>The law</b>")
    clean(page)
    page.get_by_role("button", name="Preview").click()
    changes = page.get_by_role("table", name="What changes in the anchor")
    expect(changes.get_by_role("row", name="Constraints")).to_contain_text("No shop is closed")
    contracts = page.get_by_role("table", name="What changes in contracts in force")
    expect(contracts.get_by_role("row", name="Write the refund call")).to_contain_text(
        "No shop is closed"
    )
    expect(page.locator("dd", has_text="<b>The law</b>")).to_be_visible()
    clean(page)
    page.get_by_role("button", name="Back to the form").click()
    expect(page.get_by_label("Reason")).to_have_value("<b>The law</b>")
    page.get_by_label("Objective").fill("Move the shop by May")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Revise the anchor").click()
    expect(page.locator(".messagelist")).to_contain_text(
        f"Revision 2 of the anchor of run {root} is in force."
    )
    expect(page.get_by_text("Move the shop by May").first).to_be_visible()
    page.goto(f"{live_server_process.url}/admin/traces/anchorrevision/?q={root}")
    expect(page.get_by_role("link", name="Revise…")).to_have_count(1)
    expect(page.locator("#result_list tbody tr")).to_have_count(2)


def test_without_scripts_the_form_shows_what_belongs_to_the_preset(
    chromium: Browser, live_server_process: Server
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, live_server_process)
    page.goto(f"{live_server_process.url}/runs/new/")
    expect(page.get_by_label("Objective")).to_be_hidden()
    page.get_by_role("radio", name="recursive").check()
    expect(page.get_by_label("Objective")).to_be_visible()
    expect(page.locator("[data-anchor-count]")).to_be_hidden()
    context.close()
