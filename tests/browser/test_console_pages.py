"""The console in a real browser: live updates, blurred pictures, keyboard use, use without scripts, accessibility."""

import io
import re
from contextlib import contextmanager

import pytest
from PIL import Image, ImageStat
from playwright.sync_api import expect

from court.events import NearDuplicate
from court.verdict import Label
from tests.browser.conftest import reload_until_restored, violations
from tests.support.consoles import create_docket, running_console, tokens_for
from tests.support.hostile_trials import PAYLOADS, hostile
from tests.support.report_page import luminance
from tests.support.shown_trials import drawn_picture, full_trial

ONE, OTHER, LIVE, LONG = "one", "other", "live", "long"
LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitän" * 12
PAGES = ("/", f"/trials/{ONE}", f"/trials/{OTHER}", f"/trials/{ONE}/compare?with={OTHER}", f"/trials/{ONE}/messages/3")


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """A console that listens, with the token of each person."""
    folder = tmp_path_factory.mktemp("console")
    picture = drawn_picture()
    near_duplicate = NearDuplicate(trial_id=ONE, label=Label.NOT_HARMFUL, distance=2, same_text=True, same_picture=True)
    trials = [
        full_trial(ONE, picture=picture),
        full_trial(OTHER, picture=picture, label=Label.HARMFUL, duplicates=(near_duplicate,), model="another-model"),
        full_trial(LONG, picture=picture, text=LONG_WORD, transform=lambda _: LONG_WORD, namespace=LONG_WORD[:100]),
    ]
    groups = [PAYLOADS[first : first + 20] for first in range(0, len(PAYLOADS), 20)]
    trials += [hostile(f"h{number}", group) for number, group in enumerate(groups)]
    place = create_docket(folder / "docket.sqlite", trials, [picture])
    tokens = tokens_for(folder)
    with running_console(place, folder) as served:
        served.tokens = tokens
        served.cookies = {}
        """Sessions by person: signing in takes a browser longer than many a test."""
        yield served


class Opened:
    """A signed-in browser that records requests, console errors and dialogs."""

    def __init__(self, browser, console, person="vera", **options):
        self.console = console
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.requests, self.complaints, self.dialogs = [], [], []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        if cookies := console.cookies.get(person):
            self.context.add_cookies(cookies)
            self.page.goto(console.url)
            return
        self.page.goto(f"{console.url}/sign-in")
        self.page.get_by_label("Token").fill(console.tokens[person])
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "/sign-in" not in url)
        console.cookies[person] = self.context.cookies()

    def _on_console(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def go(self, path):
        self.page.goto(self.console.url + path)
        return self.page

    @property
    def sharp(self):
        """URLs of the unblurred pictures requested so far."""
        return [url for url in self.requests if "/sharp/" in url]


@pytest.fixture
def opened(chromium, console):
    browsers = []

    def open_(**options):
        browsers.append(Opened(chromium, console, **options))
        return browsers[-1]

    yield open_
    for browser in browsers:
        browser.context.close()


def logged_views(console):
    return console.docket.reviews.looked


def mean_saturation(png):
    """Returns the mean saturation of a picture."""
    return ImageStat.Stat(Image.open(io.BytesIO(png)).convert("HSV")).mean[1]


def test_trial_is_listed_and_shows_its_rounds(opened):
    browser = opened()
    browser.page.locator(f'a[href="/trials/{ONE}"]').click()
    page = browser.page
    page.wait_for_load_state("networkidle")
    assert page.locator("h1").inner_text() == "Not harmful"
    assert page.locator(".round").count() == 3
    left, right = (page.locator(f"#round-1 .side.{side}").bounding_box() for side in ("accuser", "defender"))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"], "the sides stand next to each other"
    page.locator("#round-1 .call summary").first.click()
    page.locator("#round-1").get_by_text("System message").first.wait_for()
    assert {url.split("/")[2] for url in browser.requests} == {browser.console.url.split("/")[2]}, (
        "no other host is contacted"
    )
    assert browser.complaints == []


def test_trial_page_puts_the_verdict_first_and_technical_details_last(opened):
    page = opened().go(f"/trials/{ONE}")
    order = ["h1", ".in-short", ".rationale", "#evidence", ".checks", ".look"]
    order += ["#exhibits", "#examination", "#round-1", "#machinery", "#log"]
    tops = [page.locator(selector).bounding_box()["y"] for selector in order]
    assert tops == sorted(tops)
    assert tops[order.index("#exhibits")] < 900, "everything before the exhibits fits on one screen"
    evidence = page.locator("#evidence .side").all_inner_texts()
    assert "Evidence of harm · weak" in evidence[0] and "“Go back” is the form" in evidence[0]
    assert "Benign evidence · strong" in evidence[1] and "The cat looks just woken" in evidence[1]
    assert "The nearest precedent was found harmful" in page.locator(".look").inner_text()
    exhibits = page.locator("#exhibits")
    assert [exhibits.locator(selector).count() for selector in ("#description", "#precedents")] == [1, 1]
    folded = "#round-1 .summing p", "#costs table", "#versions dl", "#log li"
    assert [selector for selector in folded if page.locator(selector).first.is_visible()] == []
    decision = page.locator("h1 + .decision")
    assert (
        decision.inner_text() == "Review" and decision.bounding_box()["y"] < page.locator("h1").bounding_box()["y"] + 40
    )
    assert "sides kept their side" in page.locator(".checks").inner_text()


def test_the_meme_stays_beside_the_story(opened):
    page = opened().go(f"/trials/{ONE}")
    page.locator("#round-3").scroll_into_view_if_needed()
    meme, story = page.locator("#meme-picture").bounding_box(), page.locator("#round-3").bounding_box()
    assert meme["y"] > 0 and meme["y"] + meme["height"] <= 900 and meme["x"] + meme["width"] <= story["x"]
    page.locator("#meme-picture").get_by_role("button", name="Show the picture", exact=True).click()
    page.locator("#meme-picture img.sharp").wait_for()
    page.get_by_role("button", name="Larger").click()
    at = page.evaluate("document.elementFromPoint(innerWidth / 2, 20).closest('#meme-picture') !== null")
    assert at, "a picture that is made larger covers the bar too"


def test_debate_reads_as_a_conversation(opened):
    page = opened().go(f"/trials/{ONE}")
    turn = page.locator("#accuser-1")
    question, answer = turn.locator(".question"), turn.locator(".answer")
    assert question.is_visible() and answer.locator("h5").inner_text() == "Proposer"
    assert question.bounding_box()["y"] < answer.bounding_box()["y"]
    assert question.bounding_box()["x"] < answer.bounding_box()["x"], "answers are indented"
    assert page.locator("#round-3 #defender-3").inner_text().endswith("It had rested.")


def test_settings_table_lists_those_that_differ_from_the_default(opened):
    page = opened().go(f"/trials/{ONE}#versions-fold")
    rows = page.locator(".settings tbody tr").all_inner_texts()
    assert rows == ["rounds_max\t6\t10"]
    assert not page.locator("#settings dl").is_visible()


def test_empty_parts_are_hidden(opened, console):
    console.append(full_trial("begun", picture=drawn_picture())[:1])
    page = opened().go("/trials/begun")
    headings = page.locator("main :is(h2, h3):visible").all_inner_texts()
    assert [one.split("\n")[0] for one in headings][:1] == ["Meme"]
    assert not {"Description", "Precedents", "Arguments", "How the Judge ruled", "Debate", "Exhibits"} & set(headings)


def test_target_of_a_link_is_unfolded(opened):
    page = opened().go(f"/trials/{ONE}")
    page.locator("#description-part a", has_text="event").first.click()
    expect(page.locator("#event-3")).to_be_in_viewport()
    page.goto(f"{page.url.partition('#')[0]}#settings")
    page.reload()
    expect(page.locator("#settings dl")).to_be_visible()


def test_picture_stays_blurred_until_requested_and_the_view_is_logged(opened):
    browser = opened()
    before = len(logged_views(browser.console))
    page = browser.go(f"/trials/{ONE}")
    page.wait_for_load_state("networkidle")
    figure = page.locator("#meme-picture")
    assert browser.sharp == [] and mean_saturation(figure.locator("img").screenshot()) < 8
    figure.get_by_role("button", name="Show the picture", exact=True).click()
    figure.locator("img.sharp").wait_for()
    page.wait_for_load_state("networkidle")
    assert figure.locator("img").evaluate("one => one.naturalWidth") == 640
    assert len(browser.sharp) == 1 and mean_saturation(figure.locator("img").screenshot()) > 20
    assert [one["what"] for one in logged_views(browser.console)[before:]] == ["meme"]
    figure.get_by_role("button", name="Larger").click()
    assert figure.bounding_box()["width"] > 1200
    page.keyboard.press("Escape")
    assert figure.bounding_box()["width"] < 400
    figure.get_by_role("link", name="Blur again").click()
    figure.locator("img.veiled").wait_for()
    page.reload()
    page.wait_for_load_state("networkidle")
    assert len(browser.sharp) == 1 and page.locator("img.sharp").count() == 0, "a reloaded page is blurred again"
    page.locator("#precedent-picture-2").get_by_role("button").click()
    page.locator("#precedent-picture-2 img.sharp").wait_for()
    assert logged_views(browser.console)[-1]["what"] == "precedent:starter-031"
    assert browser.complaints == []


def test_page_of_a_running_trial_updates_live(opened, console):
    events = full_trial(LIVE, picture=drawn_picture())
    console.append(events[:9])
    browser = opened()
    page = browser.go(f"/trials/{LIVE}")
    assert page.locator("h1").inner_text() == "Running"
    page.wait_for_load_state("networkidle")
    page.locator("#round-1 .call summary").first.click()
    rows = page.locator("#log li")
    assert rows.count() == 9
    console.append(events[9:15])
    expect(rows).to_have_count(15)
    assert page.locator(".round").count() == 2
    expect(page.locator("#round-1 .call details[open]")).to_have_count(1)  # it stays unfolded
    console.append(events[15:])
    expect(page.locator("h1")).to_have_text("Not harmful")
    assert page.locator(".round").count() == 3
    fold = "document.querySelectorAll('details').forEach(one => { one.open = false; })"
    page.evaluate(fold)
    text = page.locator("main").inner_text()
    page.reload()
    page.evaluate(fold)
    assert page.locator("main").inner_text() == text, "live updates yield the same page as a reload"
    requests_before = len(browser.requests)
    page.wait_for_timeout(1500)
    assert not [url for url in browser.requests[requests_before:] if "/news" in url], (
        "a finished trial is no longer polled"
    )
    assert browser.complaints == []


def test_console_can_be_used_by_keyboard(opened):
    browser = opened()
    page = browser.go("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    page.keyboard.press("Enter")
    focused = "document.activeElement.getAttribute('href') || document.activeElement.textContent"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == f"/trials/{ONE}":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/trials/{ONE}$"))
    visited = []
    for _ in range(300):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => { const one = document.activeElement, box = one.getBoundingClientRect();
                 const style = getComputedStyle(one);
                 return [one.tagName, one.textContent.trim(), style.outlineStyle !== 'none' && box.width > 0]; }"""
        )
        if focus[0] == "BODY":
            break
        visited.append(focus)
    assert all(visible for _, _, visible in visited), "the focus is visible"
    assert {"SUMMARY", "A", "BUTTON"} <= {tag for tag, _, _ in visited}
    reachable = page.locator("main :is(a, button, summary, input:not([type=hidden]), select):visible").count()
    assert sum(tag in ("A", "BUTTON", "SUMMARY") for tag, _, _ in visited) >= reachable
    page.locator("#meme-picture button").first.focus()
    page.keyboard.press("Enter")
    page.locator("#meme-picture img.sharp").wait_for()


def test_console_can_be_used_without_javascript(opened, console):
    events = full_trial("plain", picture=drawn_picture())
    console.append(events[:7])
    browser = opened(java_script_enabled=False)
    page = browser.go("/trials/plain")
    assert page.locator("h1").inner_text() == "Running" and page.locator("noscript a").count() == 1
    console.append(events[7:])
    page.get_by_role("link", name="Reload").click()
    expect(page.locator("h1")).to_have_text("Not harmful")
    for text in ("Monday people,", "A drawn grey cat", "stopped gaining", "starter-014", "Benign evidence is strong"):
        assert page.get_by_text(text).first.is_visible(), text
    expect(page.locator(".needs-script:visible")).to_have_count(0)
    page.locator("#round-1 .summing > summary").first.click()
    assert page.get_by_text("A cat is shown under words").first.is_visible()
    page.get_by_role("button", name="Show the picture", exact=True).click()
    page.locator("#meme-picture img.sharp").wait_for()
    assert mean_saturation(page.locator("#meme-picture img").screenshot()) > 20
    page.get_by_role("link", name="Blur again").click()
    expect(page.locator("img.sharp")).to_have_count(0)
    page.locator(".call summary").first.click()
    page.locator(".sent-here a").first.click()
    page.get_by_text("System message").first.wait_for()
    page.locator("header .menu summary").first.click()
    page.get_by_role("button", name="Sign out").click()
    console.cookies.clear()
    expect(page.locator("h1")).to_have_text("Sign in")


def test_no_page_scrolls_sideways(opened):
    browser = opened()
    for path in (*PAGES, f"/trials/{LONG}", f"/trials/{LONG}/compare?with={ONE}", "/nowhere"):
        page = browser.go(path)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        for width in (390, 820):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_light_and_dark_follow_the_system_and_the_switch(opened):
    background = "getComputedStyle(document.body).backgroundColor"
    for scheme in ("light", "dark"):
        browser = opened(color_scheme=scheme)
        page = browser.go(f"/trials/{ONE}")
        assert (luminance(page.evaluate(background)) > 0.5) == (scheme == "light")

        def choose(page=page):
            page.locator("header .menu summary").first.click()
            page.locator("#theme").click()

        choose()
        assert (luminance(page.evaluate(background)) > 0.5) == (scheme == "dark")
        reload_until_restored(page, background, page.evaluate(background), choose)


@contextmanager
def everything_open(page):
    page.evaluate("document.querySelectorAll('details:not(.sent, .menu)').forEach(one => { one.open = true; })")
    page.wait_for_load_state("networkidle")
    yield page


@pytest.mark.parametrize(("scheme", "paths"), [("light", (*PAGES, "/nowhere", "/sign-in")), ("dark", PAGES[1:2])])
def test_pages_have_no_accessibility_violations(opened, scheme, paths):
    """axe-core: WCAG 2.2 A and AA and best practices, on every page with everything unfolded except messages."""
    browser = opened(color_scheme=scheme)
    found = {}
    for path in paths:
        page = browser.go(path)
        if path == "/sign-in":
            page.locator("header .menu summary").first.click()
            page.get_by_role("button", name="Sign out").click()
            browser.console.cookies.clear()
        with everything_open(page):
            found[path] = violations(page)
    assert found == {path: [] for path in found}
    assert len(found) == len(paths)


def test_a_hundred_payloads_have_no_effect(opened, chromium):
    """PR-2: markup and script in every text and id, in a browser, with everything unfolded."""
    browser = opened(person="ada")
    pages = -(-len(PAYLOADS) // 20)
    assert len(PAYLOADS) >= 100
    executed = 0
    for number in range(pages):
        for path in (f"/trials/h{number}", f"/trials/h{number}/compare?with=one", f"/trials/h{number}/messages/3"):
            page = browser.go(path)
            page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            page.wait_for_timeout(150)
            executed += page.evaluate("Number('__xss' in window)")
    home = browser.console.url
    assert executed == 0 and browser.dialogs == []
    assert [url for url in browser.requests if not url.startswith(home)] == [], "no other host is contacted"
    assert browser.sharp == [], "no picture is unblurred"
    assert [complaint for complaint in browser.complaints if "Content Security Policy" in complaint] == [], (
        "the security policy had nothing to refuse"
    )
    assert browser.page.url.startswith(home)
