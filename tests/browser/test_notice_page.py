"""The page behind a notice's link in a real browser: read and objected to without scripts, once."""

from datetime import timedelta

import pytest
from anyio.from_thread import start_blocking_portal

from court.verdict import Label
from serving.export.notice import notice_words
from serving.export.notice_links import NoticeLinks
from tests.browser.conftest import violations
from tests.support.desks import trial, verdict
from tests.support.dockets import NOON, append_all
from tests.support.http import an_api

WORDS = notice_words()["en"]
NAMES = ("open", "used", "late", "erased")


async def noticed(court, client):
    """Tries a meme for each name; returns the links of the notices, and an altered one."""
    found = {}
    for name in NAMES:
        await append_all(
            court.docket, trial(name, verdict(Label.HARMFUL, category="nationality"), words=f"text of {name}")
        )
        found[name] = f"{court.http}{(await client.get(f'/v1/trials/{name}/notice')).json()['link']}"
    before = NoticeLinks(court.docket, days=7, origin=court.http, clock=lambda: NOON - timedelta(days=3000))
    found["late"] = (await before.link_to(await court.docket.trials.record("late"), "en")).address
    await court.docket.eraser.erase("erased", who="ada", why="asked for", at=NOON)
    return {**found, "altered": f"{found['open'][:-1]}{'A' if found['open'][-1] != 'A' else 'B'}"}


@pytest.fixture(scope="module")
def links(tmp_path_factory, chromium):
    """Links of notices by name, of a server in another thread, as the browser's driver runs an event loop in this."""
    del chromium  # requested so that the test is skipped without a browser
    api = an_api(tmp_path_factory.mktemp("court"), notice_link_days=7)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(api) as served:
        yield portal.call(noticed, *served)


@pytest.fixture(params=[False, True], ids=["without scripts", "with scripts"])
def page(chromium, request):
    context = chromium.new_context(java_script_enabled=request.param)
    found, complaints = context.new_page(), []
    found.on("pageerror", lambda error: complaints.append(str(error)))
    yield found
    context.close()
    assert complaints == []


def test_a_notice_takes_one_objection_and_then_shows_the_page_of_links_that_open_nothing(page, links, request):
    scripted = request.node.callspec.params["page"]
    own = links["open" if scripted else "used"]
    page.goto(own)
    assert page.get_by_role("heading", level=1).inner_text() == page.title() == WORDS["title"]
    assert "clause 4" in page.content() and "text of" not in page.content()
    assert not scripted or violations(page) == []
    page.get_by_role("textbox").fill("It mocks our own habit.")
    page.get_by_role("button", name=WORDS["send"]).press("Enter")
    page.get_by_text(WORDS["received"]).wait_for()
    assert not scripted or violations(page) == []
    pages = set()
    for link in (own, links["late"], links["erased"], links["altered"]):
        assert page.goto(link).status == 404
        page.get_by_text(WORDS["gone"]).wait_for()
        pages.add(page.content())
    assert len(pages) == 1 and not page.get_by_role("textbox").count()
    assert not scripted or violations(page) == []
