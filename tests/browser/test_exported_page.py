"""An exported trial in a real browser: a self-contained file that runs no script and fetches nothing."""

import pytest

from court.record import TrialRecord
from serving.export.source import ExportSource, Pictures
from serving.export.trial_file import page
from tests.browser.conftest import violations
from tests.support.hostile_trials import PAYLOADS, hostile
from tests.support.shown_trials import drawn_picture, full_trial

SHARP = drawn_picture().frames[0].png


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens pages as files; returns the tab, the URLs that it requested besides, and console messages and dialogs."""
    contexts = []

    def open_(text, **options):
        path = tmp_path / f"trial-{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        contexts.append(chromium.new_context(**options))
        tab = contexts[-1].new_page()
        requests, messages = [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
        tab.goto(path.as_uri())
        return tab, [url for url in requests if not url.startswith(("data:", path.as_uri()))], messages

    yield open_
    for context in contexts:
        context.close()


def record_of(trial_id="one", **options):
    return TrialRecord.of(full_trial(trial_id, picture=drawn_picture(), **options))


def test_payloads_in_a_trial_neither_run_nor_fetch(opened):
    """PR-2: payloads in every text and id, on a page with unblurred pictures."""
    for first in range(0, len(PAYLOADS), 25):
        rotated = [*PAYLOADS[first:], *PAYLOADS[:first]]
        record = TrialRecord.of(hostile("one", rotated))
        ids = [exhibit.id for exhibit in record.precedents.findings.exhibits]
        exported = page(ExportSource(record, (SHARP,), dict.fromkeys(ids, SHARP)), pictures=Pictures.SHARP)
        tab, requests, messages = opened(exported)
        tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        tab.mouse.move(200, 200)
        assert requests == [] and tab.evaluate("window.__xss") is None, rotated[0]
        assert tab.url.endswith(".html") and not [message for message in messages if "alert" in message]
        assert tab.locator("script, iframe, object, embed, form, link, base").count() == 0
        assert tab.locator("main > header h1").is_visible()


def test_picture_is_hidden_until_requested_even_without_scripts(opened):
    exported = page(ExportSource(record_of(), (SHARP,)), pictures=Pictures.SHARP)
    tab, _, messages = opened(exported, java_script_enabled=False)
    sharp = tab.locator("details.sharp img")
    assert sharp.count() == 1 and not sharp.is_visible()
    assert tab.locator("figure > img").is_visible()
    tab.locator("details.sharp summary").click()
    assert sharp.is_visible() and messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_exported_page_fits_a_phone_and_is_accessible(opened, scheme):
    exported = page(ExportSource(record_of(), (SHARP,)), pictures=Pictures.SHARP)
    # The page's policy blocks scripts, and axe is a script.
    tab, _, _ = opened(exported, viewport={"width": 390, "height": 800}, color_scheme=scheme, bypass_csp=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert violations(tab, None) == []
