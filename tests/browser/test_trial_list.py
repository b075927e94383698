"""The list of trials in a real browser: dense, sorted and searched, on a phone, without scripts, by everybody."""

from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from serving.console.registry import Reviewing
from tests.browser.conftest import violations
from tests.support.console_scenes import QUEUE, fill_queue
from tests.support.consoles import running_console, tokens_for
from tests.support.desks import NO_SAMPLING

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
EVERY = "&".join(
    f"col={name}"
    for name in ("label", "decision", "reason", "content", "procedure", "opened", "request", "models", "trial")
)
BROKEN = r"""cells => cells.flatMap((cell) => {
  const range = document.createRange(), walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
  while (walk.nextNode()) {
    const text = walk.currentNode;
    for (const word of text.data.matchAll(/\S+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      // A large first letter is a box of its own, on the same line.
      const boxes = [...range.getClientRects()];
      if (boxes.some((box) => box.top >= boxes[0].bottom)) found.push(word[0]);
    }
  }
  return found;
})"""
"""Words that stand on two lines."""


@pytest.fixture
def visit(tmp_path, chromium):
    """Serves a docket, signs people in, and fails if the browser reported anything, such as a breach of the policy."""
    with ExitStack() as stack:
        complaints = []
        reviewing = lambda docket: Reviewing(docket.review_queue(NO_SAMPLING))  # noqa: E731

        def open_list(path="/trials", *, who="vera", place=None, **options):
            tokens = tokens_for(tmp_path)
            served = running_console(place or fill_queue(tmp_path), tmp_path, reviewing=reviewing)
            console = stack.enter_context(served)
            context = chromium.new_context(base_url=console.url, **{"viewport": WIDE, **options})
            stack.callback(context.close)
            page = context.new_page()
            page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto("/sign-in?next=/trials")
            page.get_by_label("Token").fill(tokens[who])
            page.get_by_label("Token").press("Enter")
            page.wait_for_url("**/trials")
            page.goto(path)
            return page

        yield open_list
    # The browser reports a refusal (400) as an error, although it is a regular page.
    assert [text for text in complaints if "400" not in text] == []


def test_rows_are_dense_and_sorted_by_their_headings(visit):
    page = visit()
    rows = page.locator("[data-row]")
    heights = rows.evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
    assert heights == [34] * len(QUEUE) and page.get_by_text(f"{len(QUEUE)} trials").is_visible()
    assert rows.first.locator("img.veiled").evaluate("async (one) => { await one.decode(); return one.naturalWidth; }")
    page.get_by_role("link", name="Label").click()
    page.wait_for_url("**sort=-harm**")
    expect(page.locator("[aria-sort=descending]")).to_have_text("Label")
    expect(rows.first.locator(".tag")).to_have_text("88 % harmful")
    page.get_by_role("link", name="Label").click()
    page.wait_for_url("**sort=harm**")  # With its scripts: before, keys would reach nobody.
    expect(page.locator("[aria-sort=ascending]")).to_have_text("Label")
    page.keyboard.press("/")
    page.keyboard.type("label:harmful")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=label%3Aharmful**")
    assert "sort=harm" in page.url, "an order outlasts a search"
    page.get_by_role("link", name="Remove label:harmful").click()
    expect(rows).to_have_count(len(QUEUE))
    page.wait_for_load_state()
    page.keyboard.press("/")
    page.keyboard.type("lable:harmful")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("unknown filter `lable:`; known: label, is")
    field = page.get_by_role("searchbox")
    assert field.input_value() == "lable:harmful" and field.get_attribute("aria-invalid") == "true"


def test_list_on_a_phone_breaks_no_word_and_has_no_narrow_column(visit):
    page = visit(f"/trials?{EVERY}", viewport=PHONE)
    cells = page.locator(".list :is(th, td)")
    widths = cells.evaluate_all("all => all.map((one) => one.getBoundingClientRect().width)")
    assert len(widths) == 10 * (len(QUEUE) + 1) and min(widths) >= 120
    assert cells.evaluate_all(BROKEN) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "only the table moves sideways"
    for menu in ("Columns", "Export"):
        page.get_by_text(menu, exact=menu == "Columns").first.click()
    boxes = [one.bounding_box() for one in page.locator(".find .menu-items").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] for box in boxes)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_list_has_no_accessibility_violations(visit, scheme):
    page = visit(color_scheme=scheme)
    for path in (f"/trials?q=is:waiting+label:harmful&sort=-harm&{EVERY}", "/trials?q=lable:x"):
        page.goto(path)
        page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
        assert violations(page) == [], path
