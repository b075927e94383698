"""The weakness page of a probe in a real browser: nothing leaves it, and no meme's words are shown unasked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from eval.probe.page import as_html
from eval.probe.refining import Limits
from eval.probe.report import read_report
from tests.support.probing import World, a_data_set
from tests.unit.test_probe_run import a_plan, probed

HOSTILE = "half an explanation <script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    place = tmp_path_factory.mktemp("weakness")

    def write():
        data = a_data_set(place / "data")
        world = World(says={"scorer": lambda request: "Rating: [[3]]" if "round" in request.parts[1] else None})
        world.says["answerer"] = lambda _: HOSTILE
        folder, _ = probed(a_plan(place / "probe", data, limits=Limits(steps=2, seeds=1)), world)
        (place / "weakness.html").write_text(as_html(read_report(folder.root), folder.root), encoding="utf-8")

    # In a thread of its own: the browser's driver has an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    return (place / "weakness.html").as_uri()


@pytest.fixture
def seen(chromium, page):
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    opened.fetched, opened.complaints = [], []

    def route(asked):
        if asked.request.url == page:
            asked.continue_()
        else:
            opened.fetched.append(asked.request.url)
            asked.abort()

    context.route("**/*", route)
    opened.on("console", lambda message: opened.complaints.append(message.text))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.goto(page)
    yield opened
    context.close()


def hidden_words(page):
    return page.eval_on_selector_all(
        ".entry",
        "all => all.map(e => [...e.querySelectorAll('.veil > span')].map(s => getComputedStyle(s).visibility))",
    )


def test_nothing_is_fetched_nothing_runs_and_nothing_is_amiss(seen):
    seen.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for key in "jbojbok":
        seen.keyboard.press(key)
    assert [address for address in seen.fetched if not address.startswith("data:")] == []
    assert seen.complaints == [] and seen.evaluate("window.hacked === undefined")


def test_pictures_and_words_are_hidden_until_asked_for_one_by_one(seen):
    entries = hidden_words(seen)
    assert len(entries) >= 4 and all(words and set(words) == {"hidden"} for words in entries)
    filters = seen.eval_on_selector_all(".entry img", "all => all.map(one => getComputedStyle(one).filter)")
    assert len(filters) == len(entries) and all("blur(" in one for one in filters)
    seen.keyboard.press("j")
    seen.keyboard.press("b")
    first, *others = hidden_words(seen)
    assert set(first) == {"visible"} and all(set(words) == {"hidden"} for words in others)


def test_failures_can_be_narrowed_to_a_category_and_to_rewritten_texts(seen):
    shown = seen.locator(".entry:not([hidden])")
    everything = shown.count()
    category, text = (seen.locator(".filters select").nth(number) for number in (0, 1))
    text.select_option(value="rewritten")
    rewritten = shown.count()
    assert 0 < rewritten < everything
    assert shown.locator(".tag.doubt").count() == rewritten, "each says that it is for no library"
    text.select_option(value="own")
    assert shown.count() == everything - rewritten and shown.locator(".tag.doubt").count() == 0
    text.select_option(value="")
    category.select_option(label="religion")
    assert set(shown.locator(".tag.bad").all_text_contents()) == {"religion"}


def test_a_phone_shows_it_without_scrolling_sideways(chromium, page):
    context = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    narrow = context.new_page()
    narrow.goto(page)
    assert narrow.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert narrow.locator("table").first.is_visible()
    context.close()
