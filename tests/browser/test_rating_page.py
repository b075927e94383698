"""The rating sheet and the pages of tables in a real browser: rating, saving, accessibility, no fetches."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from eval.probe.compare import ComparedCell, ProbeComparison
from eval.probe.compared_words import comparison_lead, comparison_sections
from eval.reports.rating_sheet import Criterion, RatedItem, lay_out, write_sheet
from eval.reports.sections import as_page
from eval.scores.metrics import Figure
from eval.scores.ratings import Rating
from tests.browser.conftest import reload_until_restored
from tests.support.report_page import Opened

HOSTILE = "<img src=x onerror=alert(1)> </script>"


@pytest.fixture(scope="module")
def sheet(tmp_path_factory):
    stem = tmp_path_factory.mktemp("sheet") / "rate"
    drawn = io.BytesIO()
    Image.new("RGB", (60, 40), "teal").save(drawn, "JPEG")
    items = [
        RatedItem(
            (("text", f"{HOSTILE} {number}"), ("reasoning", "It is about tea.")), {"n": number}, (drawn.getvalue(),)
        )
        for number in range(4)
    ]
    criteria = (Criterion("soundness", "Is it right?"), Criterion("readability", "Is it easy to read?"))
    return write_sheet(stem, "guidelines", lay_out(items, seed=0, repeats=0.25), criteria, seed=0)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    page = tmp_path_factory.mktemp("tables") / "compared.html"
    figures = {
        "score": Figure(6, 5, 7),
        "failure": Figure(0.2, 0.1, 0.3),
        "failure_before": None,
        "failure_change": None,
    }
    names = (HOSTILE, "beech")
    cells = {
        (name, category): ComparedCell(3, 4, figures, {"score": "best"} if name == "beech" else {})
        for name in names
        for category in ("religion", "mean of categories")
    }
    compared = ProbeComparison(names, ("religion", "mean of categories"), cells, memes=3, threshold=4, unfinished=())
    page.write_text(as_page("Targets compared", comparison_lead(compared), comparison_sections(compared)), "utf-8")
    return page.as_uri()


def test_ratings_survive_a_reload_and_are_saved_as_a_file(chromium, sheet):
    rows, address, _ = sheet
    opened = Opened(chromium, address.as_uri(), accept_downloads=True)
    page = opened.page
    names = [json.loads(line)["item"] for line in rows.read_text().splitlines()]
    assert page.locator(".item").count() == len(names) == 5 and page.locator("img").count() == 5
    assert HOSTILE in page.locator(".item").first.inner_text()
    page.click("#save")
    assert "Write a name" in page.locator("#told").inner_text()
    page.fill("#who", "Rater 1")
    page.click("#save")
    assert "Not all questions" in page.locator("#told").inner_text()
    for position, name in enumerate(names):
        for criterion in ("soundness", "readability"):
            page.check(f'input[name="{name}-{criterion}"][value="{1 + position % 3}"]')
    assert page.locator("#count").inner_text() == "10 of 10 answered"
    reload_until_restored(
        page, "document.querySelectorAll('input:checked').length + document.getElementById('who').value", "10Rater 1"
    )
    with page.expect_download() as saved:
        page.click("#save")
    assert saved.value.suggested_filename == "ratings-Rater-1.jsonl"
    ratings = [Rating.model_validate_json(line) for line in saved.value.path().read_text("utf-8").splitlines()]
    assert [(rating.item, rating.criterion, rating.score, rating.who) for rating in ratings] == [
        (name, criterion, 1 + position % 3, "Rater 1")
        for position, name in enumerate(names)
        for criterion in ("soundness", "readability")
    ]
    assert not opened.fetched and not opened.complaints


def test_tables_page_shows_names_and_figures_and_fetches_nothing(chromium, tables):
    opened = Opened(chromium, tables)
    page = opened.page
    assert (
        HOSTILE in page.locator("#scores").inner_text() and "6.00 [5.00, 7.00]¹" in page.locator("#scores").inner_text()
    )
    page.keyboard.press("?")
    assert page.locator("#help").is_visible() and not opened.fetched and not opened.complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_sheet_and_tables_fit_every_width_and_are_accessible(chromium, sheet, tables, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for address in (sheet[1].as_uri(), tables):
        opened = Opened(chromium, address, viewport={"width": width, "height": 900}, color_scheme=scheme)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        results = axe.Axe().run(opened.page)
        assert results.violations_count == 0, results.generate_report()


def test_sheet_without_scripts_explains_how_to_write_ratings(chromium, sheet):
    opened = Opened(chromium, sheet[1].as_uri(), java_script_enabled=False)
    assert "Write a line for each item" in opened.page.locator("noscript").inner_text()
