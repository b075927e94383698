"""The leaderboard in a real browser: it shows the figures, fetches nothing, and is accessible."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from eval.arena.agreement import HumanVerdict
from eval.arena.events import Judged
from eval.arena.folder import HumanReference
from eval.arena.leaderboard import leaderboard
from tests.browser.conftest import violations
from tests.support.arena_world import STRENGTHS, Arena, ArenaModel
from tests.support.report_page import Opened, board_page

HOSTILE = "<img src=x onerror=alert(1)>"


def leaderboard_page(arena):
    """Runs an arena, some of whose battles people judge, and returns the URL of its page."""

    def write():
        arena.hold()
        page = arena.root / "leaderboard.html"
        battles = [event for event in arena.folder.events() if isinstance(event, Judged)][:12]
        humans = [
            HumanVerdict(meme=b.meme, task=b.task, one=b.a, other=b.b, who=person, better=better)
            for b in battles
            for person, better in (("p", "one"), ("q", "one"), ("r", "tie"))
        ]
        page.write_text(board_page(leaderboard(arena.root, humans)), encoding="utf-8")
        return page.as_uri()

    # In another thread, as the browser's driver runs an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(write).result()


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    arena = Arena(
        tmp_path_factory.mktemp("full"),
        memes=6,
        voices={"cedar": ArenaModel("cedar", STRENGTHS, favours=6.0)},
        bias=True,
        bias_tasks=18,
        anchor="elm",
        plan={"references": {"m1": HumanReference(meme="m1", reasoning="Written by people.")}},
    )
    return leaderboard_page(arena)


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
    return leaderboard_page(arena)


def test_leaderboard_shows_the_figures_and_fetches_nothing(chromium, full):
    opened = Opened(chromium, full)
    page = opened.page
    models = page.locator("#overall tbody th").all_inner_texts()
    assert {model.split()[0] for model in models} == set(STRENGTHS) and models[0].startswith(("ash", "beech"))
    assert page.locator("#overall .tile > *:first-child").all_inner_texts() == ["Rating", "Elo", "Answered"]
    assert "cedar (+" in page.locator("#bias table").inner_text()
    assert not opened.fetched and not opened.complaints
    assert "panel and people" in page.locator("#people").inner_text()
    text = page.locator("body").inner_text()
    assert "quality=" not in text and "Blueland" not in text  # answers and memes are not on the page
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_leaderboard_fits_every_width_and_is_accessible(chromium, full, scheme, width):
    opened = Opened(chromium, full, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(opened.page, None) == []


def test_leaderboard_is_complete_without_scripts(chromium, full):
    opened = Opened(chromium, full, java_script_enabled=False)
    assert opened.page.locator("#overall tbody tr").count() == 5
    assert opened.page.locator(".tools").is_hidden()


def test_markup_in_a_name_is_text_and_unranked_models_have_no_rating(chromium, unranked):
    opened = Opened(chromium, unranked)
    page = opened.page
    assert page.locator("img").count() == 0 and not opened.complaints and not opened.fetched
    assert HOSTILE in page.locator("#overall table").inner_text()
    assert "There are no ratings" in page.locator(".warning").all_inner_texts()[1]
    assert page.locator("#overall tbody tr").first.locator("td").nth(1).inner_text() == "–"
