"""The weakness page of a probe in a real browser: it fetches nothing, and hides memes until they are requested."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from eval.probe.report import read_report
from tests.support.probing import ProbeWorld, a_plan, probed, write_data_set
from tests.support.report_page import Opened, weakness_page

HOSTILE = "half an explanation <script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weakness")

    def write():
        data = write_data_set(folder / "data")
        world = ProbeWorld(says={"scorer": lambda request: "Rating: [[3]]" if "round" in request.parts[1] else None})
        world.says["answerer"] = lambda _: HOSTILE
        probe_folder, _ = probed(a_plan(folder / "probe", data, steps=2, seeds=1), world)
        (folder / "weakness.html").write_text(weakness_page(read_report(probe_folder.root)), encoding="utf-8")

    # In another thread, as the browser's driver runs an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    return (folder / "weakness.html").as_uri()


@pytest.fixture
def opened(chromium, page):
    return Opened(chromium, page)


def hidden_words(page):
    return page.eval_on_selector_all(
        ".entry",
        "all => all.map(e => [...e.querySelectorAll('.veil')].map(s => getComputedStyle(s).userSelect === 'none'))",
    )


def test_weakness_page_fetches_nothing_and_runs_no_foreign_script(opened):
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for key in "jbojbok":
        opened.page.keyboard.press(key)
    assert [address for address in opened.fetched if not address.startswith("data:")] == []
    assert opened.complaints == [] and opened.page.evaluate("window.hacked === undefined")


def test_pictures_and_words_are_shown_one_entry_at_a_time_on_request(opened):
    entries = hidden_words(opened.page)
    assert len(entries) >= 4 and all(words and set(words) == {True} for words in entries)
    filters = opened.page.eval_on_selector_all(".entry img", "all => all.map(one => getComputedStyle(one).filter)")
    assert len(filters) == len(entries) and all("blur(" in one for one in filters)
    opened.page.keyboard.press("j")
    opened.page.keyboard.press("b")
    first, *others = hidden_words(opened.page)
    assert set(first) == {False} and all(set(words) == {True} for words in others)


def test_failures_are_filtered_by_category_and_by_rewritten_texts(opened):
    shown = opened.page.locator(".entry:not([hidden])")
    everything = shown.count()
    category, text = (opened.page.locator(".filters select").nth(number) for number in (0, 1))
    text.select_option(value="rewritten")
    rewritten = shown.count()
    assert 0 < rewritten < everything
    assert shown.locator(".tag.doubt").count() == rewritten, "each is marked as not for libraries"
    text.select_option(value="own")
    assert shown.count() == everything - rewritten and shown.locator(".tag.doubt").count() == 0
    text.select_option(value="")
    category.select_option(label="religion")
    assert set(shown.locator(".tag.bad").all_text_contents()) == {"religion"}


def test_weakness_page_does_not_scroll_sideways_on_a_phone(chromium, page):
    context = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    narrow = context.new_page()
    narrow.goto(page)
    assert narrow.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert narrow.locator("table").first.is_visible()
    context.close()
