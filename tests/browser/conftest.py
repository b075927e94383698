"""Fixtures with a real Chromium, for tests that use a page as people do."""

import json
import os
import shutil
import time

import pytest

from tests.support.consoles import AXE

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60
"""Seconds that a test waits for a page; Playwright's default of five is too short on a busy machine."""


def patient(new_context):
    """Wraps ``new_context`` so that pages of its contexts have a timeout of PATIENCE_S."""

    def make(**options):
        context = new_context(**options)
        context.set_default_timeout(1000 * PATIENCE_S)
        return context

    return make


@pytest.fixture(scope="module")
def chromium():
    """A headless browser. Without one installed, tests are skipped; in CI they fail.

    Closed after each module: until then the driver's event loop runs in this thread, and no other loop can.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = "Chromium is not installed: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=1000 * PATIENCE_S)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--force-color-profile=srgb"], timeout=1000 * PATIENCE_S
        )
        browser.new_context = patient(browser.new_context)
        yield browser
        browser.close()


def violations(page, options=AXE):
    """Returns what axe-core finds; where a page's policy blocks scripts, it runs through the debugger."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, options=options).response["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found]


def reload_until_restored(page, expression, value, choose, *, within=PATIENCE_S):
    """Reloads the page until a JavaScript expression has this value again.

    Chromium keeps local storage in another process than the page, so a page reloaded at once may not yet see what it
    stored before, and on a busy machine may have lost it. The value is then chosen once more before the next reload.
    """
    end = time.monotonic() + within
    page.reload()
    while page.evaluate(expression) != value:
        assert time.monotonic() < end, f"the choice was not restored within {within:g} s of reloads"
        choose()
        page.wait_for_function(f"({expression}) === {json.dumps(value)}")
        page.wait_for_timeout(200)
        page.reload()
