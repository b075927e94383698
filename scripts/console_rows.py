"""Measures a list of a thousand cases in Chromium: beside one of fifty, and beside one whose rows are all drawn.

    python scripts/console_rows.py [--rows 1000]

Needs Chromium (Debian: chromium) and the development dependencies.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from court.verdict import Label
from serving.console.registry import Reviewing
from tests.browser.conftest import NAMES
from tests.support.consoles import create_docket, running_console
from tests.support.desks import NO_SAMPLING, trial, verdict
from tests.support.shown_trials import drawn_picture

STEPS = 100
"""Rows that are stepped through, and frames that are scrolled, in one measurement."""

SCROLL = """async (steps) => {
  const list = document.querySelector(".queue");
  const frame = () => new Promise(requestAnimationFrame);
  for (let at = 0, by = 100; at < steps; at += 1) {
    const before = list.scrollTop;
    list.scrollTop += by;
    if (list.scrollTop === before) by = -by;  // the shorter list is scrolled there and back
    await frame();
  }
}"""
STEP = """async (steps) => {
  const frame = () => new Promise(requestAnimationFrame);
  for (let at = 0; at < steps; at += 1) {
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
    await frame();
  }
}"""
TEXTS = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  document.getElementById("texts").click();
  await frame();
  await frame();
}"""


def main() -> None:
    """Fills a queue, opens it, and prints what a step and a scroll cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    rows = parser.parse_args().rows
    picture, undecided = drawn_picture(), verdict(Label.UNDECIDED)
    trials = [
        trial(
            f"t{number:05}", undecided, words=f"case {number}, with the words of a meme", pixels=picture.pixels_sha256
        )
        for number in range(rows)
    ]
    with tempfile.TemporaryDirectory() as made:
        place = create_docket(Path(made) / "docket.sqlite", trials, [picture])
        reviewing = lambda docket: Reviewing(docket.review_queue(NO_SAMPLING))  # noqa: E731
        with running_console(place, reviewing=reviewing) as console, sync_playwright() as driver:
            found = next(filter(None, map(shutil.which, NAMES)))
            browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
            print("| list | a step | 100 px of scrolling | all texts shown or blurred |\n|---|--:|--:|--:|")
            base: list[float] = []
            lists = (("50 rows", 50, False), (f"{rows:,} rows", rows, False), (f"{rows:,} rows, all drawn", rows, True))
            for name, count, all_drawn in lists:
                page = open_list(browser, console.url, count, all_drawn=all_drawn)
                costs = measure(page)
                base = base or costs
                cells = (f"{cost:.1f} ms (×{cost / first:.1f})" for cost, first in zip(costs, base, strict=True))
                print(f"| {name} | {' | '.join(cells)} |")
                page.context.close()
            browser.close()


def open_list(browser: Browser, url: str, rows: int, *, all_drawn: bool) -> Page:
    """The queue with so many rows in its list.

    Args:
        browser: Browser to open it in.
        url: The console's.
        rows: Rows to have in the list.
        all_drawn: True to have rows out of sight laid out and drawn too, as without ``content-visibility``.
    """
    page = browser.new_page(viewport={"width": 1440, "height": 900}, bypass_csp=all_drawn)
    page.goto(f"{url}/sign-in?next=/desk")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_url("**/desk")
    while page.get_by_text("still reading the log").count():
        page.reload()
    if all_drawn:
        page.add_style_tag(content=".rows { content-visibility: visible !important; }")
    while (there := page.locator("[data-row]").count()) < rows:
        page.keyboard.press("m")
        expect(page.locator("[data-row]")).not_to_have_count(there)
    return page


def measure(page: Page) -> list[float]:
    """Returns the main thread's CPU time, in ms, for a step with ``j``, 100 px of scrolling, a change of all texts."""
    client = page.context.new_cdp_session(page)
    # Time on the processor, and not by the clock: what else runs on this machine must not count.
    client.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.wait_for_load_state("networkidle")

    def work() -> float:
        metrics: Any = client.send("Performance.getMetrics")["metrics"]
        return 1000 * next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    steps = {STEP: min(STEPS, page.locator("[data-row]").count() - 1), SCROLL: STEPS, TEXTS: 1}
    costs: dict[str, list[float]] = {script: [] for script in steps}
    for script in (*steps, *steps, *steps):
        page.evaluate("document.querySelector('.queue').scrollTop = 0; document.activeElement.blur()")
        page.evaluate("document.querySelector('.at-row')?.classList.remove('at-row')")
        before = work()
        page.evaluate(script, steps[script])
        costs[script].append((work() - before) / steps[script])
    return [statistics.median(each) for each in costs.values()]


if __name__ == "__main__":
    main()
