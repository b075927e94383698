"""Reviewing in a real browser: two people at once, blind first, by keyboard alone, and without scripts."""

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest
import uvicorn
from playwright.sync_api import expect

from court.events import NoteLeft, VerdictReviewed
from court.verdict import Label, Strength
from tests.support.desk_pages import PICTURE, desk_pages
from tests.support.desks import verdict

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
TIE = (Strength.MODERATE, Strength.MODERATE)
RATIONALE = "What the court says of it."


class Server(uvicorn.Server):
    """A server that installs no signal handlers, so that signals reach pytest."""

    def capture_signals(self):
        from contextlib import nullcontext

        return nullcontext()


class Served:
    """The console in another thread, as the browser's driver runs an event loop in this one."""

    def __init__(self, path, **options):
        self._path, self._options = path, options
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(120)

    async def _serve(self):
        self._stopping = asyncio.Event()
        async with AsyncExitStack() as stack:
            self.it = await stack.enter_async_context(desk_pages(self._path, **self._options))
            server = Server(uvicorn.Config(self.it.app, port=0, log_config=None, lifespan="off", ws="none"))
            serving = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            self.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._stopping.wait()
            server.should_exit = True
            await serving

    def run(self, work):
        """Runs an awaitable in the console's loop and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def tried(self, trial_id, end, **options):
        return self.run(self.it.tried(trial_id, end, **{"pixels": PICTURE.pixels_sha256, **options}))

    def record(self, trial_id):
        return self.run(self.it.docket.trials.record(trial_id))

    def close(self):
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(120)
        self._loop.close()


@pytest.fixture
def served(tmp_path, chromium):
    del chromium  # requested so that the test is skipped without a browser
    console = Served(tmp_path)
    yield console
    console.close()


@pytest.fixture
def person(served, chromium):
    """Signs people in, each in a browser of their own; fails if a browser reported an error or left the site."""
    contexts, complaints = [], []

    def signed_in(name, **options):
        context = chromium.new_context(base_url=served.address, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(served.address) or complaints.append(request.url))
        page.goto("/sign-in?next=/desk")
        page.get_by_label("Token").fill(served.it.tokens[name])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/desk")
        return page

    yield signed_in
    for context in contexts:
        context.close()
    # The browser reports a refusal (409) as an error, although it is a regular page.
    assert [text for text in complaints if "409" not in text] == []


def text_of(page):
    return page.locator("main").inner_text()


def click_through(page, name, role="button"):
    """Clicks an element and waits for the next page."""
    with page.expect_navigation():
        page.get_by_role(role, name=name, exact=True).click()


def test_review_by_keyboard_alone(served, person):
    for name in ("one", "two", "three"):
        served.tried(name, verdict(U, rationale=RATIONALE), words=f"case {name}")
    page = person("ada")

    def press(*keys):
        page.wait_for_load_state()  # and its scripts
        for key in keys:
            page.keyboard.press(key)

    press("?")
    keys = page.get_by_role("dialog", name="Keys")
    assert "take the next case" in keys.inner_text() and "next row" in keys.inner_text()
    press("Escape")
    assert page.get_by_role("dialog").count() == 0

    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Keys of one letter work").uncheck()
    press("Escape", "j")
    at = page.locator(".at-row")
    assert at.count() == 0
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Keys of one letter work").check()
    press("Escape")

    press("j", "j")
    assert "case" in at.inner_text() and page.locator("[data-row]").nth(1).evaluate("one => one.matches('.at-row')")
    press("k")
    first = page.locator("[data-row] a").first
    opened = first.get_attribute("href")
    press("o")
    page.wait_for_url(f"**{opened}")

    press("t")  # takes the case
    page.get_by_role("heading", name="Your case").wait_for()
    assert page.locator("img.sharp").count() == 0
    press("b")
    page.locator("img.sharp").wait_for()
    press("b")
    page.locator("#meme-picture img.veiled").wait_for()

    press("n")
    assert page.get_by_label("Not harmful").is_checked()
    press("h")
    assert page.locator("input[value=HARMFUL]").is_checked()
    press("p")
    page.keyboard.type("4")
    press("Escape", "w")
    page.keyboard.type("jot none of these are keys now: k o u b ?")
    press("Control+Enter")
    page.get_by_role("link", name="Open that case").wait_for()  # and the next one is there
    (review,) = served.record(opened.rpartition("/")[2]).all(VerdictReviewed)
    assert (review.label, review.clause) == (H, "4")
    assert review.reason == "jot none of these are keys now: k o u b ?"

    page.get_by_role("heading", name="Your case").wait_for()
    second = page.url.rpartition("/")[2].partition("?")[0]
    press("s")
    page.keyboard.type("I can't tell.")
    press("Control+Enter")
    page.get_by_text("asked for a second opinion").first.wait_for()
    assert served.record(second).last(NoteLeft).note == "I can't tell."

    press("g", "d")
    page.wait_for_url("**/desk")
    press("t")
    page.get_by_role("heading", name="Your case").wait_for()
    press("v")  # the verdict first
    page.get_by_text(RATIONALE).wait_for()
    press("u")
    assert page.get_by_label("Uphold: undecided").is_checked()
    press("x")  # gives the case back
    page.wait_for_url("**/desk")
    press("g", "t")
    page.wait_for_url("**/trials")
    press("/")
    page.keyboard.type("case two")
    press("Enter")
    page.wait_for_url("**q=case+two**")
    expect(page.locator("[data-row]")).to_have_count(1)


def test_review_without_scripts(served, person):
    served.tried("one", verdict(H, strengths=TIE, rationale=RATIONALE), words="case one")
    page = person("ada", java_script_enabled=False)
    click_through(page, "case one", "link")
    click_through(page, "Take this case")
    click_through(page, "Show the picture")
    assert "/desk/cases/one" in page.url and page.locator("img.sharp").count() == 1
    assert RATIONALE not in page.content()  # showing the picture does not reveal the verdict either
    click_through(page, "Blur again", "link")
    assert page.locator("img.sharp").count() == 0 and page.locator("#views.seen").count() == 1
    page.get_by_label("Not harmful").check()
    page.get_by_label("Clause of the policy").fill("4")
    page.get_by_label("Reason").fill("It mocks a habit.")
    click_through(page, "Decide")
    assert RATIONALE in text_of(page)
    assert served.record("one").last(VerdictReviewed).blind
    page.goto("/desk/cases/one")
    click_through(page, "Similar trials", "link")
    assert "No other trial" in text_of(page)
    page.goto("/trials")
    page.get_by_role("searchbox").fill("one")
    click_through(page, "Search")
    assert page.locator("a[href*='/trials/one']").count() >= 1
    assert not page.get_by_role("button", name="Keys").is_visible()  # controls that need scripts are hidden
    served.tried("waits", verdict(H, strengths=TIE), words="another case", pixels="3" * 64)
    page.goto("/overview")
    assert page.locator(".charts .card").count() >= 4 and page.locator(".charts svg").first.is_visible()
    page.locator("dl.tiles a").first.click()
    page.wait_for_url("**/desk")


def test_open_page_reports_that_another_reviewer_has_the_case(served, person):
    served.tried("one", verdict(U))
    page = person("ada")
    page.get_by_role("button", name="Take the next case").click()
    page.locator("input[value=HARMFUL]").check()
    page.get_by_label("Reason").fill("A long and careful reason.")
    served.it.clock.turn(minutes=20)
    served.run(served.it.desk.take("one", "bea"))
    page.evaluate("htmx.trigger('.case-head', 'renew')")
    page.locator("#renewed .fault").wait_for()
    assert "bea is looking at it" in page.locator("#renewed").inner_text()
    assert page.get_by_label("Reason").input_value() == "A long and careful reason."


def test_cases_are_skipped_noted_decided_together_and_undone_by_keyboard_alone(served, person):
    served.tried("one", verdict(H, strengths=TIE), words="Monday people")
    served.tried("two", verdict(H, strengths=TIE), words="Tuesday people", pixels="2" * 64)
    served.tried("wins", verdict(H, strengths=TIE), words="Monday people")
    page = person("ada")
    page.goto(f"{served.address}/desk")
    page.keyboard.press("t")
    for name in ("one", "two", "wins"):
        page.wait_for_url(f"**/desk/cases/{name}")
        page.keyboard.press("q")
    page.wait_for_url("**/desk/cases/one")
    page.keyboard.press("s")
    page.keyboard.type("Ask cy, who knows the saying.")
    for key in ("Tab", "Tab", "Enter"):
        page.keyboard.press(key)
    page.get_by_text("ada left a note").wait_for()
    page.keyboard.press("b")
    page.locator("#meme-picture img.sharp").wait_for()
    page.keyboard.press("=")
    page.locator("#alike img.sharp").wait_for()
    page.keyboard.press("=")
    assert page.get_by_label("Decide it too").is_checked()
    page.keyboard.press("n")
    page.keyboard.press("w")
    page.keyboard.type("A joke.")
    page.locator("#clause").fill("4")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/desk/cases/two?last=one&last=wins")
    assert [served.record(name).review.label for name in ("one", "wins")] == [N, N]
    page.keyboard.press("z")
    page.wait_for_url("**/desk/cases/one")
    expect(page.get_by_role("heading", level=1)).to_have_text("Your case")
    record = served.record("one")
    assert record.review is served.record("wins").review is None and record.last(VerdictReviewed).look_s < 60
    assert record.in_force.by == "COURT" and record.last(NoteLeft).note.startswith("Ask cy")


def test_a_reviewer_sees_grey_pictures_and_is_warned_at_their_budget(served, person):
    for number in range(2):
        served.tried(f"t{number}", verdict(H, strengths=TIE))
    page = person("ada")
    page.locator("header details.menu summary").first.click()
    page.get_by_label("Shown pictures in grey").check()
    page.get_by_label("Blur more strongly").check()
    page.get_by_label("Warn after").fill("2")
    page.get_by_label("Warn after").press("Tab")
    style = "(one) => getComputedStyle(one).filter"
    for number in range(2):
        page.goto(f"{served.address}/desk/cases/t{number}")
        assert page.locator("#meme-picture img.veiled").evaluate(style) == "blur(8px)"
        assert page.locator("#over-budget").count() == 0
        page.keyboard.press("b")
        page.locator("#meme-picture img.sharp").wait_for()
        assert page.locator("#meme-picture img.sharp").evaluate(style) == "grayscale(1)"
    expect(page.locator("#over-budget")).to_contain_text("2 pictures were shown to you today")
    page.goto(f"{served.address}/desk")
    expect(page.locator("#over-budget")).to_be_visible()
