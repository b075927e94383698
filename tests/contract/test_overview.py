"""The overview of the console: figures of the docket, each with the list that it counts."""

import html
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from court.events import Look
from court.verdict import Label
from serving.docket.review.overview import read_overview
from tests.support.desk_pages import desk_pages, page_text
from tests.support.desks import opened_desk, verdict
from tests.support.dockets import parse_place

H, N = Label.HARMFUL, Label.NOT_HARMFUL
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
"""A Thursday."""


async def fill(it, now):
    """Six verdicts of three weeks: two wait, four were reviewed, two of those overruled."""
    it.clock.now = now
    for number, (age, label, look_s) in enumerate(
        [(0.5, None, 0), (30, None, 0), (1, H, 9), (1, N, 1), (15, N, 40), (15, H, 40)]
    ):
        at = now - timedelta(hours=age) if label is None else now - timedelta(days=age)
        await it.tried(f"t{number}", verdict(H, score=0.55), at=at, pixels=str(number) * 64, namespace="forum")
        if label is not None:
            await it.desk.take(f"t{number}", "ada")
            look = {"look": Look.SHOWN, "look_at": now - timedelta(seconds=look_s)}
            await it.desk.review(f"t{number}", "ada", label=label, clause="4", reason="I looked.", **look)
    await it.tried("try", verdict(H, score=0.55), at=now, pixels="9" * 64, namespace="sandbox")


async def test_figures_follow_from_the_docket(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await fill(it, NOW)
        await it.desk.take("t2", "bea", reopen=True)
        await it.desk.review("t2", "bea", label=N, clause="4", reason="I looked.")
        read = [await read_overview(it.desk, it.docket.trials, now=NOW)]
        found, other = [*read, await read_overview(it.desk, it.docket.trials, now=NOW, namespaces=frozenset({"shop"}))]
    # The third is reviewed twice, differently, and waits again.
    assert found.ages == {"1 hour": 1, "4 hours": 0, "1 day": 0, "1 week": 2, "longer": 0} and found.waiting == 3
    assert found.oldest == NOW - timedelta(hours=30)
    assert [(day.start.day, day.decided, day.reviewed, day.overruled) for day in found.days if day.decided] == [
        (11, 2, 2, 1),
        (25, 3, 2, 2),
        (26, 1, 0, 0),
    ]
    assert len(found.days) == 28 and len(found.weeks) == 13
    assert [(each.start.day, each.decided) for each in found.weeks if each.decided] == [(9, 2), (23, 4)]
    assert [(each.name, each.reviews, each.overruled, each.quick) for each in found.reviewers] == [
        ("ada", 4, 2, 1),
        ("bea", 1, 1, 0),
    ]
    (week,) = found.agreement.values()
    assert (week.all.n, week.all.observed) == (1, 0.0)
    assert other.waiting == 0 and not any(each.decided for each in other.weeks) and not other.reviewers


@pytest.mark.parametrize("name", ["vic", "ada", "root"])
async def test_the_first_page_is_the_overview_and_tells_reasons_and_reviewers_to_administrators_alone(tmp_path, name):
    async with desk_pages(tmp_path) as it:
        empty = await (await it.person(name)).get("/overview", follow_redirects=True)
        await fill(it, datetime.now(UTC))
        person = await it.person(name)
        page = await person.get("/overview")
        lists = [html.unescape(link) for link in re.findall(r'href="(/trials\?[^"]*)"', page.text)]
        codes = [(await person.get(link)).status_code for link in lists]
    assert "Overview" not in re.findall("<h1[^>]*>(.*?)</h1>", empty.text)
    text = page_text(page)
    assert "Waiting for a person 2 oldest since" in text and "Reviewed, 28 days 66.7 % 4 of 6 verdicts" in text
    assert ("Overruled, 28 days 50.0 % 2 of 4 reviewed verdicts" in text) is (name == "root")
    assert page.text.count('<svg class="curve chart"') == 6 and " style=" not in page.text
    searches = {parse_qs(urlsplit(link).query)["q"][0].split(" since:")[0] for link in lists}
    assert {"is:waiting", "is:decided", "is:reviewed", "is:overruled"} - searches <= {"is:waiting"}
    assert set(codes) == {200}
    shown = "low score" in text.lower(), "Reviewers, 28 days" in text, "ada" in text.replace("ada · reviewer", "")
    assert shown == ((True,) * 3 if name == "root" else (False,) * 3)
    # From a share of two, others could tell a verdict that is hidden from them.
    assert ("too few" in page.text or "50% of 2" not in page.text) is (name != "root")
