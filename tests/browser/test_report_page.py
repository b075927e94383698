"""The page of a report in a real browser: it fetches nothing, hides memes until requested, and is accessible."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import ImageChops, ImageStat

from eval.reports.tasks import gather
from eval.runs.results import read_results
from tests.browser.conftest import reload_until_restored, violations
from tests.support.report_page import Opened, as_html, luminance
from tests.support.report_runs import MARKUP, NOT, USUAL_MEMES, VERY, ReportedMeme, write_report_run

HOSTILE = ReportedMeme(f"h {MARKUP}", VERY, "harmless", MARKUP, "coffee", 0.2, 2, rationale=MARKUP)


def report_page(folder, *runs):
    """Writes the page of runs, given as (name, memes, options), and returns its URL."""

    def write():
        roots = [write_report_run(folder / name, memes, **options) for name, memes, options in runs]
        report = gather([read_results(root) for root in roots], resamples=200)
        (folder / "report.html").write_text(as_html(report), encoding="utf-8")

    # In another thread, as the browser's driver runs an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    return report_page(tmp_path_factory.mktemp("one"), ("run", USUAL_MEMES, {"library": True}))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two runs, one unfinished, with markup in every field that a stranger or a model can write."""
    return report_page(
        tmp_path_factory.mktemp("two"),
        (
            "a",
            [*USUAL_MEMES, HOSTILE, ReportedMeme("n", NOT, "harmless")],
            {"name": f"first {MARKUP}", "command": MARKUP},
        ),
        (
            "b",
            [*USUAL_MEMES, HOSTILE, ReportedMeme("n", NOT, "")],
            {"name": "second", "finished": False, "machine": MARKUP},
        ),
    )


@pytest.fixture
def opened(chromium):
    """Opens pages, and closes them after the test."""
    pages = []

    def open_(address, **options):
        pages.append(Opened(chromium, address, **options))
        return pages[-1]

    yield open_
    for browser in pages:
        browser.context.close()


def focused_id(page):
    return page.evaluate("document.activeElement.id")


def test_report_fetches_nothing_and_logs_no_error(opened, one_run):
    browser = opened(one_run)
    for key in "jbojbok":
        browser.page.keyboard.press(key)
    browser.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.page.evaluate("document.querySelectorAll('img').forEach(one => { one.loading = 'eager'; })")
    browser.page.wait_for_function("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert [address for address in browser.fetched if not address.startswith("data:")] == []
    assert browser.complaints == [], "there are errors, such as refusals by the security policy"


def test_content_security_policy_blocks_fetches_and_scripts(opened, one_run):
    browser = opened(one_run)
    # By a script with the page's own rights, which no foreign text can get.
    outcome = browser.page.evaluate(
        """async () => {
            const refused = await fetch("https://example.org/").then(() => false, () => true);
            const image = await new Promise((done) => {
                const one = new Image(); one.onload = () => done(false); one.onerror = () => done(true);
                one.src = "https://example.org/a.png";
            });
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            return [refused, image, window.ran === undefined];
        }"""
    )
    assert outcome == [True, True, True]
    assert browser.fetched == [], "the policy blocks requests before they are sent"


def test_markup_in_texts_does_not_run(opened, hostile):
    browser = opened(hostile)
    browser.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for _ in range(6):
        browser.page.keyboard.press("j")
        browser.page.keyboard.press("b")
    assert browser.page.evaluate("window.hacked === undefined") and browser.complaints == []
    shown = browser.page.locator(".entry", has_text="window.hacked").first
    assert "<script>window.hacked = 1</script>" in shown.text_content()
    assert browser.page.locator(".entry .unseen").first.text_content() == "U+202E"


def test_pictures_and_texts_are_hidden_at_first(opened, one_run):
    browser = opened(one_run)
    filters = browser.filters()
    assert len(filters) == 13 and all("blur(" in one and "grayscale(1)" in one for one in filters)
    hidden = browser.page.eval_on_selector_all(".veil", "all => all.map(one => getComputedStyle(one).color)")
    assert hidden and set(hidden) == {"rgba(0, 0, 0, 0)"}


def test_key_shows_only_the_current_entry_and_hides_it_again(opened, one_run):
    browser = opened(one_run)
    browser.page.keyboard.press("b")
    assert all("blur(" in one for one in browser.filters()), "no entry is current yet"
    browser.page.keyboard.press("j")
    browser.page.keyboard.press("j")
    before = browser.picture(".entry:nth-of-type(2) .picture")
    browser.page.keyboard.press("b")
    entries = browser.page.eval_on_selector_all(
        ".entry", "all => all.map(one => [...one.querySelectorAll('img')].map(img => getComputedStyle(img).filter))"
    )
    assert set(entries[1]) == {"none"}
    assert all("blur(" in one for entry in (entries[0], entries[2], entries[3]) for one in entry)
    visible = browser.page.eval_on_selector_all(
        ".entry:nth-of-type(2) .veil", "all => all.map(one => getComputedStyle(one).color)"
    )
    assert visible and "rgba(0, 0, 0, 0)" not in visible
    after = browser.picture(".entry:nth-of-type(2) .picture")
    assert ImageStat.Stat(ImageChops.difference(before, after)).sum != [0, 0, 0]
    assert _saturation(before) < 5 < _saturation(after), "the picture is grey before and coloured after"
    browser.page.keyboard.press("b")
    assert all("blur(" in one for one in browser.filters())
    assert (
        ImageStat.Stat(ImageChops.difference(before, browser.picture(".entry:nth-of-type(2) .picture"))).sum == [0] * 3
    )


def _saturation(picture):
    return ImageStat.Stat(picture.convert("HSV")).mean[1]


def test_click_on_picture_or_button_shows_the_picture(opened, one_run):
    browser = opened(one_run)
    browser.reach()
    browser.page.locator(".entry .picture").first.click()
    assert browser.filters()[0] == "none"
    browser.page.locator(".entry .show").first.click()
    assert "blur(" in browser.filters()[0]
    # By keyboard, too: the switch is a check box with a visible focus.
    box = browser.page.locator(".entry .reveal").first
    box.focus()
    browser.page.keyboard.press("Space")
    assert browser.filters()[0] == "none"
    assert browser.page.locator(".entry .show").first.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"


def test_report_can_be_read_and_unblurred_without_scripts(opened, one_run):
    browser = opened(one_run, java_script_enabled=False)
    assert browser.page.locator("#theme").is_hidden() and browser.page.locator(".filters").first.is_hidden()
    assert browser.page.locator("table").first.is_visible()
    browser.reach()
    browser.page.locator(".entry .record > summary").first.click()
    assert browser.page.locator(".entry .record .pair").first.is_visible()
    box = browser.page.locator(".entry .picture").first
    before = box.screenshot()
    box.click()
    assert box.screenshot() != before


def test_keys_step_through_the_wrong_verdicts(opened, one_run):
    browser = opened(one_run)
    ids = browser.page.eval_on_selector_all(".entry", "all => all.map(one => one.id)")
    walked = []
    for key in "jjjjjjkkkk":
        browser.page.keyboard.press(key)
        walked.append(focused_id(browser.page))
    assert walked == [ids[at] for at in (0, 1, 2, 3, 4, 5, 4, 3, 2, 1)]
    top = browser.page.evaluate("document.activeElement.getBoundingClientRect().top")
    for _ in range(3):
        browser.page.keyboard.press("k")
    top = browser.page.evaluate("document.activeElement.getBoundingClientRect().top")
    bar = browser.page.evaluate("document.querySelector('.bar').getBoundingClientRect().bottom")
    assert bar <= top < 300, "the sticky bar does not cover the entry"
    browser.page.keyboard.press("o")
    assert browser.page.locator(".entry .record").first.evaluate("one => one.open")
    browser.page.keyboard.press("?")
    assert browser.page.locator("#help").is_visible()
    browser.page.keyboard.press("Escape")
    assert browser.page.locator("#help").is_hidden()


def test_filters_show_only_matching_entries(opened, hostile):
    browser = opened(hostile)
    everything = browser.page.locator(".entry:not([hidden])").count()
    fault, run = (browser.page.locator(".filters select").nth(number) for number in (0, 1))
    fault.select_option(label="harmful, said not harmful")
    shown = browser.page.locator(".entry:not([hidden])")
    assert 0 < shown.count() < everything
    assert set(shown.locator(".entry-head .tag").all_text_contents()) <= {"Harmful, said not harmful"}
    assert browser.page.locator(".filters output").inner_text() == f"{shown.count()} of {everything} shown"
    browser.page.keyboard.press("Tab")
    browser.page.evaluate("document.activeElement.blur()")
    browser.page.keyboard.press("j")
    assert not browser.page.locator(".entry:focus").evaluate("one => one.hidden")
    fault.select_option(value="")
    run.select_option(label="second")
    assert shown.count() > 0
    run.select_option(value="")
    assert shown.count() == everything


def test_memes_are_sorted_by_score_and_all_are_there(opened, one_run):
    page = opened(one_run).page
    assert page.locator(".entry").count() == len(USUAL_MEMES)
    page.locator("[data-sort]").select_option("down")
    scores = page.eval_on_selector_all(".entry[data-score]", "all => all.map(one => +one.dataset.score)")
    assert len(scores) > 3 and scores == sorted(scores, reverse=True)
    page.locator(".filters select").first.select_option("right")
    assert set(page.locator(".entry:not([hidden]) .entry-head .tag").all_text_contents()) == {"Right"}


@pytest.mark.parametrize("width", [390, 1280])
def test_report_cuts_nothing_and_has_no_empty_box(opened, hostile, width):
    page = opened(hostile, viewport={"width": width, "height": 844}).page
    cut = "all => all.filter(one => one.offsetParent && one.scrollWidth > one.clientWidth + 1).map(one => one.id)"
    assert page.eval_on_selector_all(".scroll, .card, .tile, figure", cut) == []
    empty = "all => all.filter(one => !one.querySelector(':not(h1, h2, h3, h4)')).map(one => one.outerHTML)"
    assert page.eval_on_selector_all(".card, .tile, figure", empty) == []


def test_light_and_dark_follow_the_system_and_the_switch(opened, one_run):
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = opened(one_run, color_scheme="light"), opened(one_run, color_scheme="dark")
    assert luminance(light.page.evaluate(background)) > 0.8 and luminance(dark.page.evaluate(background)) < 0.1
    text_colour = "getComputedStyle(document.querySelector('svg .fill-text')).fill"
    assert light.page.evaluate(text_colour) != dark.page.evaluate(text_colour), "figures change colour, too"
    means = [ImageStat.Stat(browser.picture("figure svg")).mean for browser in (light, dark)]
    assert min(means[0]) > 150 and max(means[1]) < 110
    for browser in (light, dark):
        before = browser.page.evaluate(background)
        browser.page.locator("#theme").click()
        chosen = browser.page.evaluate(background)
        assert chosen != before
        reload_until_restored(browser.page, background, chosen, browser.page.locator("#theme").click)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_has_no_accessibility_violations(opened, hostile, scheme):
    page = opened(hostile, color_scheme=scheme).page
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert violations(page) == []
    assert page.eval_on_selector_all("svg", "all => all.filter(one => !one.querySelector('title')).length") == 0


@pytest.mark.parametrize("width", [390, 820, 1200])
def test_report_never_scrolls_sideways(opened, hostile, width):
    browser = opened(hostile, viewport={"width": width, "height": 844})
    browser.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.page.evaluate(
        "document.querySelectorAll('.entry').forEach(one => { one.style.contentVisibility = 'visible'; })"
    )
    assert browser.page.evaluate("document.documentElement.scrollWidth") <= width


def test_unfinished_run_is_marked_prominently(opened, hostile):
    page = opened(hostile).page
    warning = page.locator(".warning")
    assert warning.is_visible() and "second is not finished: 9 of 10" in warning.inner_text()
    assert warning.bounding_box()["y"] < 500, "the warning precedes all figures"
    assert page.get_by_text("second (not finished)").count() >= 2, "in the table, and at the run"


def test_printed_report_is_light_and_stays_blurred(opened, one_run):
    browser = opened(one_run, color_scheme="dark")
    browser.page.emulate_media(media="print")
    assert browser.page.locator(".bar").is_hidden()
    assert luminance(browser.page.evaluate("getComputedStyle(document.body).color")) < 0.1
    assert all("blur(" in one for one in browser.filters())
    assert browser.page.eval_on_selector(".entry", "one => getComputedStyle(one).contentVisibility") == "visible"
    assert browser.page.pdf()[:5] == b"%PDF-"
