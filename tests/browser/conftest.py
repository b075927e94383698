"""A real Chromium, for tests that look at a page as people do."""

from __future__ import annotations

import os
import shutil
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60
"""Seconds that a page may take for whatever a test waits for; Playwright's own five are few on a busy machine."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)


def patient(new_context):
    """Makes contexts whose pages have that long."""

    def make(**options):
        context = new_context(**options)
        context.set_default_timeout(1000 * PATIENCE_S)
        return context

    return make


@pytest.fixture(scope="module")
def chromium():
    """The browser, without a window. Where there is none, tests are skipped; in CI they fail.

    Closed after each module: as long as it is there, its driver's event loop runs in this thread, where no other can.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = "there is no Chromium here: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=1000 * PATIENCE_S)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=1000 * PATIENCE_S)
        browser.new_context = patient(browser.new_context)
        yield browser
        browser.close()


def reload_until_given(page, expression, value, *, within=PATIENCE_S):
    """Reloads the page until the JavaScript expression gives the value again that it had before.

    Chromium keeps local storage in another process than the page, and a page that is loaded again at once may be read
    before what the last one stored has arrived there.
    """
    end = time.monotonic() + within
    page.reload()
    while page.evaluate(expression) != value:
        assert time.monotonic() < end, f"the page had forgotten what was chosen on it after {within:g} s"
        page.wait_for_timeout(50)
        page.reload()
