"""Trying a meme in a real browser: by drop, by paste, by keyboard alone and without scripts."""

import base64
from contextlib import asynccontextmanager

import pytest
from anyio.from_thread import start_blocking_portal

from court.events import Procedure
from serving.console.app import open_console
from serving.console.registry import Trying
from serving.settings import Settings
from tests.browser.conftest import violations
from tests.support.real_court import IMAGE, real_court

HAND_OVER = """([kind, encoded]) => {
  const bytes = Uint8Array.from(atob(encoded), (one) => one.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "meme.png", { type: "image/png" }));
  const options = { bubbles: true, cancelable: true };
  const event = kind === "drop" ? new DragEvent(kind, { ...options, dataTransfer: data })
    : new ClipboardEvent(kind, { ...options, clipboardData: data });
  document.querySelector(".drop").dispatchEvent(event);
}"""
"""Drops or pastes a picture, as a person does."""


@pytest.fixture
def address(tmp_path, chromium):
    """URL of a console with a court, in another thread, as the browser's driver runs an event loop in this one."""
    del chromium  # requested so that the test is skipped without a browser

    @asynccontextmanager
    async def console():
        async with real_court(tmp_path) as court:
            trying = Trying(court.court.start, [Procedure.SUMMARY])
            async with open_console(court.docket, Settings(), "127.0.0.1:0", tokens=None, trying=trying) as url:
                yield url

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(console()) as url:
        yield url


@pytest.fixture
def page(address, chromium, request):
    context = chromium.new_context(base_url=address, **getattr(request, "param", {}))
    found = context.new_page()
    complaints = []
    found.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.goto("/sign-in?next=/try")
    found.get_by_role("button", name="Go on").click()
    found.get_by_role("heading", name="Try a meme").wait_for()
    yield found
    context.close()
    assert complaints == []


def wait_for_verdict(page):
    page.get_by_text("A try, off the record").wait_for()
    page.locator(".rationale").wait_for()
    assert "/trials/" in page.url


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_meme_is_tried_by_drop_and_by_paste(page, kind):
    page.wait_for_load_state()
    page.evaluate(HAND_OVER, [kind, base64.b64encode(IMAGE).decode()])
    assert page.locator("#picture").evaluate("one => one.files[0].name") == "meme.png"
    page.get_by_role("button", name="Start the trial").click()
    wait_for_verdict(page)


def test_a_text_is_tried_by_keyboard_alone(page):
    page.wait_for_load_state()
    page.locator("#picture").focus()
    page.keyboard.press("Tab")
    page.keyboard.type("Monday people")
    page.keyboard.press("Tab")
    assert page.get_by_label("summary").evaluate("one => one === document.activeElement")
    page.keyboard.press("Control+Enter")
    wait_for_verdict(page)


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_a_meme_is_tried_without_scripts(page):
    page.locator("#picture").set_input_files({"name": "meme.png", "mimeType": "image/png", "buffer": IMAGE})
    page.get_by_role("button", name="Start the trial").click()
    wait_for_verdict(page)


@pytest.mark.parametrize("page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_the_page_has_no_accessibility_violations_and_fits_a_phone(page):
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
