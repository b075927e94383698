"""The page of a report in a real browser: nothing leaves it, nothing is shown unasked, all can read it."""

from __future__ import annotations

import asyncio
import io
import itertools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image, ImageChops, ImageStat

from eval.reports.gather import gather
from eval.reports.html import as_html
from eval.runs.results import read_results
from tests.browser.conftest import reload_until_given
from tests.support.report_runs import MARKUP, NOT, USUAL, VERY, Told, a_run

HOSTILE = Told(f"h {MARKUP}", VERY, "harmless", MARKUP, "coffee", 0.2, 2, rationale=MARKUP)


def written(place, *runs):
    """The page on runs (name, memes, what else), by its address."""

    def write():
        roots = [a_run(place / name, told, **options) for name, told, options in runs]
        report = asyncio.run(gather([read_results(root) for root in roots], resamples=200))
        (place / "report.html").write_text(as_html(report), encoding="utf-8")

    # In a thread of its own: the browser's driver has an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    return (place / "report.html").as_uri()


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    return written(tmp_path_factory.mktemp("one"), ("run", USUAL, {"library": True}))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two runs, one of them not finished, with markup wherever a stranger or a model can write."""
    return written(
        tmp_path_factory.mktemp("two"),
        ("a", [*USUAL, HOSTILE, Told("n", NOT, "harmless")], {"name": f"first {MARKUP}", "command": MARKUP}),
        ("b", [*USUAL, HOSTILE, Told("n", NOT, "")], {"name": "second", "finished": False, "machine": MARKUP}),
    )


class Opened:
    """A page, and everything that it tried to fetch or complained of."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.fetched, self.complaints = [], []
        self.context.route("**/*", self._route)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.address = address
        self.page.goto(address)

    def _route(self, route):
        if route.request.url == self.address:
            route.continue_()
        else:
            self.fetched.append(route.request.url)
            route.abort()

    def filters(self):
        """Computed filter of every picture."""
        return self.page.eval_on_selector_all("img", "all => all.map(one => getComputedStyle(one).filter)")

    def reach(self):
        """Scrolls to the wrong verdicts: what is far from the window is not laid out, and can't be clicked."""
        self.page.eval_on_selector(".entry", "one => one.scrollIntoView()")

    def picture(self, selector):
        """What is to be seen there."""
        return Image.open(io.BytesIO(self.page.locator(selector).first.screenshot())).convert("RGB")


@pytest.fixture
def opened(chromium):
    """Opens pages, and closes them again."""
    pages = []

    def open_(address, **options):
        pages.append(Opened(chromium, address, **options))
        return pages[-1]

    yield open_
    for one in pages:
        one.context.close()


def focused(page):
    return page.evaluate("document.activeElement.id")


def luminance(colour):
    """Relative luminance of `rgb(r, g, b)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_nothing_leaves_the_page_and_nothing_is_amiss(opened, one_run):
    seen = opened(one_run)
    for key in "jbojbok":
        seen.page.keyboard.press(key)
    seen.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    seen.page.evaluate("document.querySelectorAll('img').forEach(one => { one.loading = 'eager'; })")
    seen.page.wait_for_function("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert [address for address in seen.fetched if not address.startswith("data:")] == []
    assert seen.complaints == [], "errors, among them what the security policy refused"


def test_what_is_tried_from_within_is_refused(opened, one_run):
    seen = opened(one_run)
    # By script of the page's own origin: more than any text of a stranger could do.
    outcome = seen.page.evaluate(
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
    assert seen.fetched == [], "the policy stopped them before they left"


def test_markup_of_strangers_does_not_run(opened, hostile):
    seen = opened(hostile)
    seen.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for _ in range(6):
        seen.page.keyboard.press("j")
        seen.page.keyboard.press("b")
    assert seen.page.evaluate("window.hacked === undefined") and seen.complaints == []
    shown = seen.page.locator(".entry", has_text="window.hacked").first
    assert "<script>window.hacked = 1</script>" in shown.text_content()
    assert seen.page.locator(".entry .invisible").first.text_content() == "U+202E"


def test_all_pictures_and_texts_are_hidden_at_first(opened, one_run):
    seen = opened(one_run)
    filters = seen.filters()
    assert len(filters) == 13 and all("blur(" in one and "grayscale(1)" in one for one in filters)
    hidden = seen.page.eval_on_selector_all(".veil > span", "all => all.map(one => getComputedStyle(one).visibility)")
    assert hidden and set(hidden) == {"hidden"}


def test_a_key_shows_the_current_one_alone_and_hides_it_again(opened, one_run):
    seen = opened(one_run)
    seen.page.keyboard.press("b")
    assert all("blur(" in one for one in seen.filters()), "there is no current one yet"
    seen.page.keyboard.press("j")
    seen.page.keyboard.press("j")
    before = seen.picture(".entry:nth-of-type(2) .picture")
    seen.page.keyboard.press("b")
    entries = seen.page.eval_on_selector_all(
        ".entry", "all => all.map(one => [...one.querySelectorAll('img')].map(img => getComputedStyle(img).filter))"
    )
    assert set(entries[1]) == {"none"}
    assert all("blur(" in one for entry in (entries[0], entries[2], entries[3]) for one in entry)
    visible = seen.page.eval_on_selector_all(
        ".entry:nth-of-type(2) .veil > span", "all => all.map(one => getComputedStyle(one).visibility)"
    )
    assert set(visible) == {"visible"}
    after = seen.picture(".entry:nth-of-type(2) .picture")
    assert ImageStat.Stat(ImageChops.difference(before, after)).sum != [0, 0, 0]
    assert _saturation(before) < 5 < _saturation(after), "grey before, in colour after"
    seen.page.keyboard.press("b")
    assert all("blur(" in one for one in seen.filters())
    assert ImageStat.Stat(ImageChops.difference(before, seen.picture(".entry:nth-of-type(2) .picture"))).sum == [0] * 3


def _saturation(picture):
    return ImageStat.Stat(picture.convert("HSV")).mean[1]


def test_a_click_on_picture_or_button_shows_it(opened, one_run):
    seen = opened(one_run)
    seen.reach()
    seen.page.locator(".entry .picture").first.click()
    assert seen.filters()[0] == "none"
    seen.page.locator(".entry .show").first.click()
    assert "blur(" in seen.filters()[0]
    # By keyboard alone, too: the switch is a check box, and its focus is to be seen.
    box = seen.page.locator(".entry .reveal").first
    box.focus()
    seen.page.keyboard.press("Space")
    assert seen.filters()[0] == "none"
    assert seen.page.locator(".entry .show").first.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"


def test_without_script_it_can_be_read_and_shown(opened, one_run):
    seen = opened(one_run, java_script_enabled=False)
    assert seen.page.locator("#theme").is_hidden() and seen.page.locator(".filters").first.is_hidden()
    assert seen.page.locator("table").first.is_visible()
    seen.reach()
    seen.page.locator(".entry .record > summary").first.click()
    assert seen.page.locator(".entry .record .sides").first.is_visible()
    box = seen.page.locator(".entry .picture").first
    before = box.screenshot()
    box.click()
    assert box.screenshot() != before


def test_keys_step_through_the_wrong_verdicts(opened, one_run):
    seen = opened(one_run)
    ids = seen.page.eval_on_selector_all(".entry", "all => all.map(one => one.id)")
    walked = []
    for key in "jjjjjkkkkk":
        seen.page.keyboard.press(key)
        walked.append(focused(seen.page))
    assert walked == [ids[at] for at in (0, 1, 2, 3, 3, 2, 1, 0, 0, 0)]
    top = seen.page.evaluate("document.activeElement.getBoundingClientRect().top")
    bar = seen.page.evaluate("document.querySelector('.bar').getBoundingClientRect().bottom")
    assert bar <= top < 300, "not below the bar that stays"
    seen.page.keyboard.press("o")
    assert seen.page.locator(".entry .record").first.evaluate("one => one.open")
    seen.page.keyboard.press("?")
    assert seen.page.locator("#help").is_visible()
    seen.page.keyboard.press("Escape")
    assert seen.page.locator("#help").is_hidden()


def test_filters_leave_what_was_asked_for(opened, hostile):
    seen = opened(hostile)
    everything = seen.page.locator(".entry:not([hidden])").count()
    fault, run = (seen.page.locator(".filters select").nth(number) for number in (0, 1))
    fault.select_option(label="harmful, said not harmful")
    shown = seen.page.locator(".entry:not([hidden])")
    assert 0 < shown.count() < everything
    assert set(shown.locator(".entry-head .tag").all_text_contents()) <= {"Harmful, said not harmful"}
    assert seen.page.locator(".filters output").inner_text() == f"{shown.count()} of {everything} shown"
    seen.page.keyboard.press("Tab")
    seen.page.evaluate("document.activeElement.blur()")
    seen.page.keyboard.press("j")
    assert not seen.page.locator(".entry:focus").evaluate("one => one.hidden")
    fault.select_option(value="")
    run.select_option(label="second")
    assert shown.count() > 0
    run.select_option(value="")
    assert shown.count() == everything


def test_light_and_dark_follow_the_system_and_the_switch(opened, one_run):
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = opened(one_run, color_scheme="light"), opened(one_run, color_scheme="dark")
    assert luminance(light.page.evaluate(ground)) > 0.8 and luminance(dark.page.evaluate(ground)) < 0.1
    ink = "getComputedStyle(document.querySelector('svg .fill-text')).fill"
    assert light.page.evaluate(ink) != dark.page.evaluate(ink), "figures, too"
    seen = [ImageStat.Stat(one.picture("figure svg")).mean for one in (light, dark)]
    assert min(seen[0]) > 150 and max(seen[1]) < 110
    for one in (light, dark):
        before = one.page.evaluate(ground)
        one.page.locator("#theme").click()
        chosen = one.page.evaluate(ground)
        assert chosen != before
        reload_until_given(one.page, ground, chosen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_told_from_its_ground(opened, hostile, scheme):
    seen = opened(hostile, color_scheme=scheme)
    seen.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    pairs = seen.page.evaluate(
        """() => {
            const ground = (one) => {
                for (let at = one; at; at = at.parentElement) {
                    const colour = getComputedStyle(at).backgroundColor;
                    if (!/^rgba.*, 0\\)$/.test(colour)) return colour;
                }
            };
            const found = new Map();
            for (const one of document.querySelectorAll("body *:not(script, option, svg, svg *)")) {
                const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
                if (!own || getComputedStyle(one).visibility === "hidden") continue;
                found.set(`${getComputedStyle(one).color} on ${ground(one)}`, one.outerHTML.slice(0, 80));
            }
            return [...found];
        }"""
    )
    assert len(pairs) > 8
    poor = {where: told for where, told in pairs if contrast(*where.split(" on ")) < 4.5}
    assert poor == {}


def test_what_can_not_be_seen_is_named(opened, hostile):
    page = opened(hostile).page
    assert page.locator("h1").count() == 1
    nameless = "all => all.filter(one => !one.hasAttribute('alt') || !one.alt.trim()).length"
    assert page.eval_on_selector_all("img", nameless) == 0
    assert page.eval_on_selector_all("svg", "all => all.filter(one => !one.querySelector('title')).length") == 0
    levels = page.eval_on_selector_all("h1, h2, h3, h4, h5, h6", "all => all.map(one => +one.tagName[1])")
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), "no level is left out"
    for landmark in ("main", "header", "nav[aria-label]"):
        assert page.locator(landmark).count() == 1
    labelled = """all => all.filter(one => !(one.labels && one.labels.length) && !one.getAttribute('aria-label')
                     && !one.textContent.trim()).map(one => one.outerHTML)"""
    assert page.eval_on_selector_all("input, select, button", labelled) == []
    assert page.eval_on_selector_all("table", "all => all.filter(one => !one.querySelector('th[scope]')).length") == 0
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.parametrize("width", [390, 820, 1200])
def test_the_page_never_scrolls_sideways(opened, hostile, width):
    seen = opened(hostile, viewport={"width": width, "height": 844})
    seen.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    seen.page.evaluate(
        "document.querySelectorAll('.entry').forEach(one => { one.style.contentVisibility = 'visible'; })"
    )
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_run_that_is_not_finished_can_not_be_overlooked(opened, hostile):
    page = opened(hostile).page
    warning = page.locator(".warning")
    assert warning.is_visible() and "second is not finished: 9 of 10" in warning.inner_text()
    assert warning.bounding_box()["y"] < 500, "before any figure"
    assert page.locator(".tag", has_text="not finished").count() >= 2


def test_on_paper_it_is_light_and_nothing_is_uncovered(opened, one_run):
    seen = opened(one_run, color_scheme="dark")
    seen.page.emulate_media(media="print")
    assert seen.page.locator(".bar").is_hidden()
    assert luminance(seen.page.evaluate("getComputedStyle(document.body).color")) < 0.1
    assert all("blur(" in one for one in seen.filters())
    assert seen.page.eval_on_selector(".entry", "one => getComputedStyle(one).contentVisibility") == "visible"
    assert seen.page.pdf()[:5] == b"%PDF-"
