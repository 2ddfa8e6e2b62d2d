"""A real Chromium and a real dashboard process. Browser tests are plain ``def``, never async.

The fixtures live for the folder, not the session: Playwright's sync API keeps an event loop
running in this thread as long as it is open, and tests of other folders bring their own.
"""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.find import find
from tests.browser.server import Server

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="package")
def browser_path() -> str:
    """Path of a Chromium. Without one: a skip, or a failure if CYBERAGENT_REQUIRE_BROWSER is 1."""
    if path := find():
        return path
    message = "no Chromium here: install chromium, or run: playwright install chromium"
    if os.environ.get("CYBERAGENT_REQUIRE_BROWSER") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="package")
def chromium(browser_path: str) -> Iterator[Browser]:
    """One headless browser for all tests of the folder; each takes its own context or ``page``."""
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page in a context of its own: no cookie of another test."""
    context = chromium.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def live_server_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running ``manage.py up``: ``url``, ``sign_in``, ``data_dir``, ``start``, ``kill``."""
    server = Server(tmp_path_factory.mktemp("data"))
    try:
        yield server.start()
    finally:
        server.stop()
