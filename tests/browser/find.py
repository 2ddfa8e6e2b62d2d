"""Finds a Chromium: ``python -m tests.browser.find`` prints it, or fails where there is none."""

import shutil
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Path of an installed Chromium or Chrome, else of Playwright's own, else None."""
    for name in NAMES:
        if path := shutil.which(name) or shutil.which(name, path="/usr/bin"):
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if own and Path(own).exists() else None


if __name__ == "__main__":
    sys.exit(print(path) if (path := find()) else "no Chromium was found")
