"""An exported trial in a real browser: a file by itself, with no script to run and nothing to fetch."""

import pytest

from court.record import TrialRecord
from serving.export.page import page
from serving.export.source import ExportSource, Pictures
from tests.support.hostile_trials import PAYLOADS, hostile
from tests.support.shown_trials import drawn, full_trial

SHARP = drawn().frames[0].png


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a page as a file; gives it, and what it asked for besides."""
    contexts = []

    def open_(text, **options):
        path = tmp_path / f"trial-{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        contexts.append(chromium.new_context(**options))
        tab = contexts[-1].new_page()
        asked, said = [], []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        tab.goto(path.as_uri())
        return tab, [url for url in asked if not url.startswith(("data:", path.as_uri()))], said

    yield open_
    for context in contexts:
        context.close()


def record_of(trial_id="one", **options):
    return TrialRecord.of(full_trial(trial_id, picture=drawn(), **options))


def test_nothing_that_stands_in_a_trial_runs_or_is_fetched(opened):
    """PR-2's payloads in every text and id, and pictures as they were judged."""
    for first in range(0, len(PAYLOADS), 25):
        turned = [*PAYLOADS[first:], *PAYLOADS[:first]]
        record = TrialRecord.of(hostile("one", turned))
        ids = [exhibit.id for exhibit in record.precedents.findings.exhibits]
        made = page(ExportSource(record, (SHARP,), dict.fromkeys(ids, SHARP)), pictures=Pictures.SHARP)
        tab, asked, said = opened(made)
        tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        tab.mouse.move(200, 200)
        assert asked == [] and tab.evaluate("window.__xss") is None, turned[0]
        assert tab.url.endswith(".html") and not [each for each in said if "alert" in each]
        assert tab.locator("script, iframe, object, embed, form, link, base").count() == 0
        assert tab.locator("main > header h1").is_visible()


def test_a_picture_is_not_seen_before_it_is_asked_for_also_without_scripts(opened):
    made = page(ExportSource(record_of(), (SHARP,)), pictures=Pictures.SHARP)
    tab, _, said = opened(made, java_script_enabled=False)
    sharp = tab.locator("details.sharp img")
    assert sharp.count() == 1 and not sharp.is_visible()
    assert tab.locator("figure > img").is_visible()
    tab.locator("details.sharp summary").click()
    assert sharp.is_visible() and said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_readable_for_all(opened, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    made = page(ExportSource(record_of(), (SHARP,)), pictures=Pictures.SHARP)
    # The page lets no script run; the checker is one.
    tab, _, _ = opened(made, viewport={"width": 390, "height": 800}, color_scheme=scheme, bypass_csp=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
