"""The run page of 500 and of 50,000 messages in a real browser.

    python -m benchmarks.browser

Bars: first rows of the long one at most 1.5 times those of the short one, 1,500 elements, 60 MB
of heap, 300 KB on the wire with all static files, find within a second.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from benchmarks.common import report
from tests.browser.conftest import FLAGS
from tests.browser.find import find
from tests.browser.pages import sign_in, store
from tests.browser.server import Server

SHORT, LONG, TURNS = 500, 50_000, 7


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder)).start()
        traces = {n: store(server, f"long({n}).store(local_admin())") for n in (SHORT, LONG)}
        browser = playwright.chromium.launch(executable_path=find(), args=[*FLAGS, "--no-sandbox"])
        try:
            found = measured(
                browser.new_page(viewport={"width": 1440, "height": 900}), server, traces
            )
        finally:
            browser.close()
            server.stop()
    ratio = found["first_rows_ms"][f"{LONG:,}"] / found["first_rows_ms"][f"{SHORT:,}"]
    within = (
        ratio <= 1.5
        and found["elements"] <= 1_500
        and found["heap_mb"] <= 60
        and found["wire_kb"] <= 300
        and found["find_s"] <= 1
    )
    report(
        "The run page in a browser",
        [
            *((f"first rows of {n}, ms", f"{ms:.0f}") for n, ms in found["first_rows_ms"].items()),
            ("elements, most while scrolling", str(found["elements"])),
            ("heap, MB", f"{found['heap_mb']:.1f}"),
            ("on the wire, KB", f"{found['wire_kb']:.0f}"),
            ("find, s", f"{found['find_s']:.2f}"),
            ("jump to the end, s", f"{found['end_s']:.2f}"),
        ],
        within=within,
        ratio=round(ratio, 2),
        **found,
    )


def measured(page: Page, server: Server, traces: dict[int, str]) -> dict[str, Any]:
    sign_in(page, server)
    times: dict[int, list[float]] = {n: [] for n in traces}
    for turn in range(TURNS + 1):
        for n, trace in traces.items():
            begun = time.perf_counter()
            page.goto(f"{server.url}/runs/{trace}/", wait_until="commit")
            page.locator("#goals .goal-head button, #goals .page > .r").first.wait_for()
            if turn:
                times[n].append((time.perf_counter() - begun) * 1000)
    wire = wire_kb(page, f"{server.url}/runs/{traces[LONG]}/")
    opened(page)
    elements, end_s = scrolled(page)
    return {
        "first_rows_ms": {f"{n:,}": round(statistics.median(t), 1) for n, t in times.items()},
        "elements": elements,
        "heap_mb": round(heap_mb(page), 2),
        "wire_kb": round(wire, 1),
        "find_s": round(found_after(page), 2),
        "end_s": round(end_s, 2),
    }


def wire_kb(page: Page, url: str) -> float:
    """Everything that opening the page for the first time brings, caches cleared."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.clearBrowserCache")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda e: sizes.append(e["encodedDataLength"]))
    page.goto(url)
    page.locator("#goals .goal-head button, #goals .page > .r").first.wait_for()
    page.wait_for_load_state("load")
    return sum(sizes) / 1000


def opened(page: Page) -> None:
    page.locator("#goals .goal-head button").first.click()
    page.locator("#goals .page > .r").first.wait_for()


def scrolled(page: Page) -> tuple[int, float]:
    most = 0
    page.mouse.move(400, 600)
    for _ in range(30):
        page.mouse.wheel(0, 1500)
        page.wait_for_timeout(120)
        most = max(most, page.evaluate("document.getElementsByTagName('*').length"))
    begun = time.perf_counter()
    page.locator("#to-end").click()
    page.locator(".r.tool", has_text=f'"word {LONG - 1}"').wait_for()
    return most, time.perf_counter() - begun


def heap_mb(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"] / 1e6


def found_after(page: Page) -> float:
    """From the last key to the first hit, the typing delay included."""
    begun = time.perf_counter()
    page.keyboard.press("/")
    page.keyboard.type("word 24999")
    page.locator("#found li, #found a").first.wait_for(state="visible")
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
