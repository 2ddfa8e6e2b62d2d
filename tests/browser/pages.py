"""What the browser tests of pages share: signing in, traces to look at, axe."""

from __future__ import annotations

import subprocess
import sys

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.server import ROOT, Server

STORE = """
import django
django.setup()
from tests.traces.made import *
from traces.access import local_admin
from traces.bundle import store_bundle
print("trace", ({story}).pk)
"""


def store(server: Server, story: str) -> str:
    """Store a trace in the server's database, as the import does; its id. ``story``: an
    expression over ``tests.traces.made`` and ``local_admin``."""
    done = subprocess.run(
        [sys.executable, "-c", STORE.format(story=story)],
        cwd=ROOT, env=server.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("trace "))


def new_link(server: Server) -> str:
    """A sign-in link beside the one that the start printed."""
    done = subprocess.run(
        [sys.executable, "manage.py", "user", "admin"],
        cwd=ROOT, env=server.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    text = done.stdout + done.stderr
    path = text[text.index("/sign-in/") :].split()[0]
    return server.url + path


def sign_in(page: Page, server: Server) -> None:
    page.goto(new_link(server))
    page.locator("main button").click()
    page.wait_for_url(f"{server.url}/runs/")


def problems(page: Page) -> list[str]:
    """What axe finds: rule and element."""
    return [
        f"{v['id']}: {node['html'][:120]}"
        for v in Axe().run(page).response["violations"]
        for node in v["nodes"]
    ]
