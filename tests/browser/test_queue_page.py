"""The review queue beside its case in a real browser: one decision at a time, by keyboard, on a phone."""

import re
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from court.verdict import Label
from serving.console.registry import Reviewing
from tests.browser.conftest import reload_until_restored, violations
from tests.support.console_scenes import DOCUMENTED_CASE, QUEUE, fill_queue
from tests.support.consoles import create_docket, running_console, tokens_for
from tests.support.desks import NO_SAMPLING, trial, verdict
from tests.support.shown_trials import TEXT

CASE = f"/desk/cases/{DOCUMENTED_CASE}"
MONDAY = QUEUE[4]
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
BLURRED = "one => getComputedStyle(one).color === 'rgba(0, 0, 0, 0)' && getComputedStyle(one).textShadow !== 'none'"
BARE = """words => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    const seen = walk.currentNode.data.includes(words) && one.checkVisibility();
    const veil = one.closest('.veil');
    if (seen && (!veil || getComputedStyle(veil).color !== 'rgba(0, 0, 0, 0)')) found.push(one.outerHTML.slice(0, 200));
  }
  return found;
}"""
"""Elements that show given words of a meme unblurred, as HTML."""
DRAWN = """async () => {
  // A frame finds out which rows are out of sight, and the next one skips these.
  for (let at = 0; at < 3; at += 1) await new Promise(requestAnimationFrame);
  const rows = [...document.querySelectorAll('[data-row]')];
  return [rows[0], rows.at(-1)].map((one) => one.checkVisibility({ contentVisibilityAuto: true }));
}"""
"""Two booleans: true if the first row is drawn, and if the last one is."""


@pytest.fixture
def serve(tmp_path, chromium):
    """Serves a queue and returns a function that signs in to it; fails if the browser reported any error."""
    with ExitStack() as stack:
        complaints = []

        def serve_queue(place=None, *, blind_first=True):
            place = place or fill_queue(tmp_path)
            tokens = tokens_for(tmp_path)
            reviewing = lambda docket: Reviewing(docket.review_queue(NO_SAMPLING), blind_first=blind_first)  # noqa: E731
            console = stack.enter_context(running_console(place, tmp_path, reviewing=reviewing))

            def sign_in(person="ruth", path="/desk", **options):
                context = chromium.new_context(base_url=console.url, **{"viewport": WIDE, **options})
                stack.callback(context.close)
                page = context.new_page()
                page.on(
                    "console", lambda message: message.type in ("error", "warning") and complaints.append(message.text)
                )
                page.on("pageerror", lambda error: complaints.append(str(error)))
                page.goto(f"/sign-in?next={path}")
                page.get_by_label("Token").fill(tokens[person])
                page.get_by_label("Token").press("Enter")
                page.wait_for_url(f"**{path}")
                return page

            sign_in.console = console
            return sign_in

        yield serve_queue
    # The browser reports a refusal (400) as an error, although it is a regular page.
    assert [text for text in complaints if "400" not in text] == []


def row_of(page, case):
    return page.locator("[data-row]", has_text=" ".join(case.text.split()))


@pytest.mark.parametrize("blind_first", [True, False])
def test_row_shows_title_reason_and_age_and_hides_the_verdict_if_blind(serve, blind_first):
    page = serve(blind_first=blind_first)()
    row = row_of(page, QUEUE[2])
    assert row.locator("img.veiled").evaluate("async one => { await one.decode(); return one.naturalWidth > 4; }")
    assert row.locator(".row-title").inner_text() == "Drink this and never be ill again", "its words are in one line"
    assert ("sides or votes disagree" in row.locator(".row-why").inner_text().lower()) is not blind_first
    assert re.fullmatch(r"\d+ min · bea has it", row.locator(".age").inner_text())
    words_shown = row.inner_text()
    assert ("88 % harmful" in words_shown) is not blind_first, "label and score are hidden if reviews are blind first"
    titles = page.locator("[data-row] .row-title").all_inner_texts()
    assert len(titles) == 8 and not [one for one in titles if re.search(r"\d{4}-|[0-9a-f]{8}-", one)]


def test_queue_and_case_are_side_by_side_and_alternate_on_a_phone(serve):
    sign_in = serve()
    page = sign_in(path=CASE)
    queue, case = page.locator(".queue"), page.locator("#case")
    left, right = queue.bounding_box(), case.bounding_box()
    assert left["x"] + left["width"] <= right["x"] and abs(left["y"] - right["y"]) < 2
    expect(page.locator("[data-row][aria-current]")).to_have_text(re.compile("Monday people"))
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.wait_for_url(lambda url: CASE not in url)
    expect(page.locator("[data-row][aria-current]")).to_have_text(re.compile("Drink this"))

    phone = sign_in(path="/desk", viewport=PHONE)
    row_of(phone, MONDAY).locator("a").click()
    phone.wait_for_url(f"**{CASE}")
    assert not phone.locator(".queue").is_visible() and phone.locator("#case").is_visible()
    phone.get_by_role("link", name="‹ Review queue").click()
    phone.wait_for_url("**/desk")
    assert phone.locator(".queue").is_visible()


def test_form_offers_clauses_that_fit_the_finding(serve):
    page = serve()(path=CASE)
    page.keyboard.press("t")
    page.get_by_role("heading", name="Your case").wait_for()
    page.wait_for_load_state()  # only now the page handles keys
    assert MONDAY.rationale not in page.content()
    clauses, decide = page.locator(".clauses"), page.get_by_role("button", name="Decide")
    none, chosen = page.get_by_label("No clause applies"), page.locator("[name=clause]:checked")
    assert not clauses.is_visible() and not decide.is_visible(), "the finding comes first"
    page.keyboard.press("h")
    assert clauses.is_visible() and not none.is_visible() and chosen.count() == 0
    page.keyboard.press("n")
    assert none.is_checked(), "without harm the default is no clause"
    page.keyboard.press("h")
    assert chosen.count() == 0 and not none.is_visible(), "no clause is not offered for harm"
    assert not page.locator(".clause-text").nth(3).is_visible()
    page.keyboard.press("4")
    assert page.locator(".clause-text").nth(3).is_visible(), "the chosen clause is shown in full"


def test_tab_reaches_every_control_with_visible_focus_and_no_trap(serve):
    page = serve()(path=CASE)
    page.keyboard.press("t")
    page.get_by_role("heading", name="Your case").wait_for()
    page.wait_for_load_state()  # only now the page handles keys
    page.keyboard.press("h")
    page.wait_for_load_state("networkidle")
    page.locator("#case").focus()
    focus_script = """() => { const one = document.activeElement, style = getComputedStyle(one);
      const after = getComputedStyle(one, '::after');
      one.dataset.been = 'yes';
      return [one.tagName, style.outlineStyle !== 'none' || after.outlineStyle !== 'none' || one.id === 'case']; }"""
    for key in ("Tab", "Shift+Tab"):
        for _ in range(150):
            page.keyboard.press(key)
            tag, visible = page.evaluate(focus_script)
            if tag == "BODY":
                break
            assert visible, page.evaluate("document.activeElement.outerHTML")
        assert tag == "BODY", f"{key} leads out of the page at its end"
    missed = (
        "main :is(a[href], button, summary, select, textarea, input:not([type=hidden], [type=radio])):not([data-been])"
    )
    assert (
        page.locator(missed).evaluate_all("all => all.filter(one => one.checkVisibility()).map(one => one.outerHTML)")
        == []
    )


def test_texts_stay_blurred_until_requested(serve):
    sign_in = serve()
    words = TEXT.split("\n")[1]
    at = f"/trials/{DOCUMENTED_CASE}"
    paths = ("/", "/trials", at, f"{at}/messages/21", f"{at}/compare?with={DOCUMENTED_CASE}")
    reader = sign_in("vera", "/trials")
    for path in paths:
        reader.goto(path)
        reader.evaluate("document.querySelectorAll('details:not(.sent)').forEach(one => { one.open = true; })")
        assert words in reader.content() and reader.evaluate(BARE, words) == [], path
    reader.goto(f"/trials/{DOCUMENTED_CASE}")
    text = reader.locator("#meme blockquote")
    assert text.evaluate(BLURRED)
    reader.get_by_label("Show the text").check()
    assert not text.evaluate(BLURRED) and reader.locator("#precedent-1 .veil").evaluate(BLURRED), (
        "only that text is shown"
    )

    page = sign_in(path=CASE)
    row, text = row_of(page, MONDAY).locator(".veil"), page.locator(".meme blockquote")
    assert page.evaluate(BARE, words) == []
    page.keyboard.press("b")
    page.locator("#meme-picture img.sharp").wait_for()
    assert not text.evaluate(BLURRED) and row.evaluate(BLURRED), "only the text of the shown picture is unblurred"
    page.keyboard.press("b")
    page.locator("#meme-picture img.veiled").wait_for()
    assert text.evaluate(BLURRED)
    page.keyboard.press("i")
    assert not text.evaluate(BLURRED) and not row.evaluate(BLURRED)
    texts = "document.documentElement.dataset.texts"
    reload_until_restored(page, texts, "shown", lambda: page.keyboard.press("i"))
    page.goto("/")
    assert not row_of(page, MONDAY).locator(".veil").evaluate(BLURRED), "the choice persists across pages"
    page.keyboard.press("i")
    assert row_of(page, MONDAY).locator(".veil").evaluate(BLURRED)

    plain = sign_in(path=CASE, java_script_enabled=False)
    veil = plain.locator(".meme blockquote")
    assert veil.evaluate(BLURRED)
    plain.locator("#texts").check()
    assert not veil.evaluate(BLURRED)


@pytest.mark.parametrize("width", [390, 320])
def test_phone_has_one_line_of_navigation_and_no_sideways_scrolling(serve, width):
    page = serve()(viewport={"width": width, "height": 844})
    for path in (
        "/",
        "/overview",
        "/desk",
        CASE,
        "/trials?q=is:waiting",
        f"{CASE}/similar",
        "/desk/agreement",
        f"/trials/{DOCUMENTED_CASE}",
    ):
        page.goto(path)
        assert page.locator(".bar").bounding_box()["height"] <= 48, path
        tops = {round(one.bounding_box()["y"]) for one in page.locator(".bar nav a").all()}
        assert len(tops) == 1, path
        page.evaluate("document.querySelectorAll('main details').forEach(one => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    page.get_by_text("Menu").click()
    assert page.get_by_role("button", name="Sign out").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("button", name="Sign out").is_visible()


def test_more_rows_are_appended_and_rows_out_of_sight_are_not_drawn(serve, tmp_path):
    trials = [trial(f"t{number:03}", verdict(Label.UNDECIDED), words=f"word {number:03}") for number in range(120)]
    sign_in = serve(create_docket(tmp_path / "docket.sqlite", trials))
    page = sign_in()
    rows = page.locator("[data-row]")
    expect(rows).to_have_count(50)
    page.keyboard.press("m")
    expect(rows).to_have_count(100)
    link = rows.locator("a")
    expect(link.nth(50)).to_be_focused()
    page.keyboard.press("j")
    expect(link.nth(51)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("k")
    expect(link.nth(49)).to_be_focused()  # from the second list back to the first
    page.evaluate("document.querySelector('.queue').scrollTop = 0; document.activeElement.blur()")
    expect(rows.first).to_be_in_viewport()
    assert page.evaluate(DRAWN) == [True, False]
    rows.nth(99).locator("a").focus()
    page.keyboard.press("j")
    expect(rows).to_have_count(120)
    expect(link.nth(100)).to_be_focused()
    assert page.locator(".more").count() == 0
    page.keyboard.press("o")
    page.wait_for_url("**/desk/cases/t100?**")
    expect(page.locator("[data-row][aria-current]")).to_have_text(re.compile("word 100"))
    assert page.get_by_role("link", name="First page").count() == 1

    plain = sign_in(java_script_enabled=False)
    plain.get_by_role("link", name="More cases").click()
    plain.wait_for_url("**/desk?**after=**")
    expect(plain.locator("[data-row]")).to_have_count(50)
    assert "word 050" in plain.locator("[data-row]").first.inner_text()


def test_similar_trials_out_of_sight_take_only_the_space_they_need(serve, tmp_path):
    two = [trial(name, verdict(Label.UNDECIDED), words=name) for name in ("one", "two")]
    page = serve(create_docket(tmp_path / "docket.sqlite", two))(
        path="/desk/cases/one", viewport={"width": 1440, "height": 200}
    )
    expect(page.locator("#similar .row")).to_have_count(1)
    page.evaluate(DRAWN)
    assert page.locator("#similar").bounding_box()["height"] < 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_queue_and_case_have_no_accessibility_violations(serve, scheme):
    page = serve()(color_scheme=scheme)
    found = {}
    for step in ("/overview", "/desk/agreement", f"{CASE}/similar", "/desk", CASE, "keys", "taken", "decided"):
        if step == "keys":
            page.keyboard.press("?")
            page.get_by_role("dialog", name="Keys").wait_for()
        elif step == "taken":
            page.keyboard.press("Escape")
            page.keyboard.press("t")
            page.get_by_role("heading", name="Your case").wait_for()
            page.wait_for_load_state()  # only now the page handles keys
            page.keyboard.press("h")
        elif step == "decided":
            page.keyboard.press("4")
            page.get_by_role("button", name="Show all").click()
            page.locator("#views.seen").wait_for()
            page.get_by_label("Reason").fill("It says so.")
            page.get_by_role("button", name="Decide").click()
            page.get_by_role("link", name="Open that case").click()
            page.locator("#verdict-title").wait_for()
        else:
            page.goto(step)
        page.wait_for_load_state("networkidle")
        if step != "keys":
            page.keyboard.press("i")
        found[step] = violations(page)
    assert found == {step: [] for step in found}


def test_queue_on_a_phone_breaks_no_word_and_has_no_narrow_column(serve):
    page = serve()(viewport=PHONE)
    widths = page.locator(".row-main, .row-end").evaluate_all("all => all.map((one) => one.clientWidth)")
    assert widths and min(widths) >= 120
    words = """all => all.flatMap((one) => one.textContent.trim().split(/\\s+/).map((word) => {
      const probe = Object.assign(document.createElement("span"), { textContent: word });
      probe.style.whiteSpace = "nowrap";
      one.append(probe);
      const width = probe.getBoundingClientRect().width;
      probe.remove();
      return width;
    }))"""
    assert max(page.locator(".row-why").evaluate_all(words)) <= min(widths)
