"""The pages of tables in a real browser: accessibility, no fetches."""

import pytest

from eval.probe.compare import ComparedCell, comparison_sections
from eval.reports.sections import as_page
from eval.scores.measure import Figure
from tests.browser.conftest import violations
from tests.support.report_page import Opened

HOSTILE = "<img src=x onerror=alert(1)> </script>"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    page = tmp_path_factory.mktemp("tables") / "compared.html"
    figures = {
        "score": Figure(6, 5, 7),
        "failure": Figure(0.2, 0.1, 0.3),
        "failure_before": None,
        "failure_change": None,
    }
    cells = [
        ComparedCell(name, category, 3, 4, figures, {"score": "best"} if name == "beech" else {})
        for name in (HOSTILE, "beech")
        for category in ("religion", "mean of categories")
    ]
    page.write_text(as_page("Targets compared", [], comparison_sections(cells)), "utf-8")
    return page.as_uri()


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
def test_tables_fit_every_width_and_are_accessible(chromium, tables, scheme, width):
    opened = Opened(chromium, tables, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(opened.page, None) == []
