"""The leaderboard in a real browser: it says what the figures say, fetches nothing, and all can read it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from eval.arena.agreement import HumanVerdict
from eval.arena.events import Judged
from eval.arena.folder import HumanReference
from eval.arena.leaderboard import leaderboard
from eval.arena.page import as_html
from tests.browser.test_report_page import Opened
from tests.support.arena_world import STRENGTHS, Arena, Voice

HOSTILE = "<img src=x onerror=alert(1)>"


def written(arena):
    """The page of an arena some of whose battles people have judged, by its address."""

    def write():
        arena.hold()
        page = arena.root / "leaderboard.html"
        battles = [event for event in arena.folder.events() if isinstance(event, Judged)][:12]
        humans = [
            HumanVerdict(meme=b.meme, task=b.task, one=b.a, other=b.b, who=who, better=better)
            for b in battles
            for who, better in (("p", "one"), ("q", "one"), ("r", "tie"))
        ]
        page.write_text(as_html(leaderboard(arena.root, humans)), encoding="utf-8")
        return page.as_uri()

    # In a thread of its own: the browser's driver has an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(write).result()


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    arena = Arena(
        tmp_path_factory.mktemp("full"),
        memes=6,
        voices={"cedar": Voice("cedar", STRENGTHS, favours=6.0)},
        bias=True,
        bias_tasks=18,
        anchor="elm",
        plan={"references": {"m1": HumanReference(meme="m1", reasoning="Written by people.")}},
    )
    return written(arena)


@pytest.fixture(scope="module")
def unranked(tmp_path_factory):
    strengths = {HOSTILE: 90.0, "beech": 0.0, "cedar": 0.0}
    arena = Arena(
        tmp_path_factory.mktemp("unranked"),
        memes=2,
        strengths=strengths,
        judges=["beech", "cedar"],
        controller="beech",
        own_case=True,
    )
    return written(arena)


def test_what_the_page_says_is_what_was_found_and_nothing_is_fetched(chromium, full):
    opened = Opened(chromium, full)
    page = opened.page
    models = page.locator("#overall table.ranks tbody th").all_inner_texts()
    assert {model.split()[0] for model in models} == set(STRENGTHS) and models[0].startswith(("ash", "beech"))
    assert page.locator("#overall svg").count() == 3 and page.locator("#judges svg").count() == 1
    assert "cedar" in page.locator(".favours").first.inner_text()
    assert "against elm" in page.locator("#overall thead").first.inner_text()
    assert not opened.fetched and not opened.complaints
    assert "panel and people" in page.locator("#judges").inner_text()
    text = page.locator("body").inner_text()
    assert "quality=" not in text and "Blueland" not in text  # answers and memes stay in the arena's files
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_it_is_readable_at_every_width_and_by_everybody(chromium, full, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened = Opened(chromium, full, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    # In a page whose policy lets no foreign script run, axe is run by the debugger, which is no part of the page.
    found = axe.Axe().run(opened.page)
    assert found.violations_count == 0, found.generate_report()


def test_without_script_everything_is_there(chromium, full):
    opened = Opened(chromium, full, java_script_enabled=False)
    assert opened.page.locator("#overall table.ranks tbody tr").count() == 5
    assert opened.page.locator(".tools").is_hidden()


def test_a_name_with_markup_is_text_and_no_rating_is_said(chromium, unranked):
    opened = Opened(chromium, unranked)
    page = opened.page
    assert page.locator("img").count() == 0 and not opened.complaints and not opened.fetched
    assert HOSTILE in page.locator("#overall table.ranks").inner_text()
    assert "Ratings hold within groups" in page.locator(".warning").all_inner_texts()[1]
    assert page.locator("#overall td.strong").first.inner_text() == "–"
