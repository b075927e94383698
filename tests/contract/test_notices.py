"""The link of a notice: shows that notice alone, takes one objection, and can't bury the review queue."""

import asyncio
import re
from datetime import timedelta

import pytest

from court.events import AppealOpened, ReviewOutcome, ReviewWithdrawn
from court.verdict import Label
from serving.access import tokens as token_file
from serving.access.callers import Scope
from serving.docket.review.projection import ReviewPriority
from serving.docket.review.queue import OBJECTION_EVERY
from serving.export.notice import notice_words
from serving.export.notice_links import NoticeLinks
from serving.rest import notice_page
from tests.support.desks import opened_desk, trial, verdict
from tests.support.dockets import NOON, append_all, parse_place, review_trial
from tests.support.http import an_api, reason

WHY = "It mocks our own habit."
FORM = {"content-type": "application/x-www-form-urlencoded"}


async def tried(court, trial_id="t", label=Label.HARMFUL, **options):
    # Words of its own: what is contested in one trial is so in all trials of the same content.
    options = {"words": f"text of {trial_id}", **options}
    await append_all(court.docket, trial(trial_id, verdict(label, category="nationality"), **options))


async def link_of(client, trial_id="t", **headers):
    answer = await client.get(f"/v1/trials/{trial_id}/notice", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["link"]


def same_page(answer):
    """Returns everything of an answer by which links that open nothing could be told apart."""
    return (
        answer.status_code,
        answer.content,
        {k: v for k, v in answer.headers.items() if k not in ("date", "x-request-id")},
    )


async def appeals(court, trial_id="t"):
    return (await court.docket.trials.record(trial_id)).all(AppealOpened)


async def test_without_the_setting_there_is_no_link_and_no_path(tmp_path):
    async with an_api(tmp_path) as (court, client):
        await tried(court)
        answer = (await client.get("/v1/trials/t/notice?language=de")).json()
        assert answer["link"] == "" and answer["language"] == "de" and "widersprechen" in answer["text"]
        for verb in ("GET", "POST"):
            assert reason(await client.request(verb, "/notice/x"), 404) == "NO_SUCH_ADDRESS"
        assert reason(await client.get("/v1/trials/t/notice?language=xx"), 400) == "OUT_OF_RANGE"
        assert reason(await client.get("/v1/trials/none/notice"), 404)


async def test_a_notice_requires_a_token_of_its_namespace_and_its_link_none(tmp_path):
    path = tmp_path / "tokens.toml"
    own, other, view = (
        token_file.add(path, name, scopes, namespaces)
        for name, scopes, namespaces in (
            ("own", [Scope.JUDGE], ["forum"]),
            ("other", [Scope.JUDGE], ["else"]),
            ("view", [Scope.VIEW], None),
        )
    )
    async with an_api(tmp_path, tokens=path, notice_link_days=7) as (court, client):
        await tried(court, namespace="forum")
        address = "/v1/trials/t/notice"
        assert (await client.get(address)).status_code == 401
        assert (await client.get(address, headers={"authorization": f"Bearer {other}"})).status_code == 404
        assert (await client.get(address, headers={"authorization": f"Bearer {view}"})).status_code == 403
        link = await link_of(client, authorization=f"Bearer {own}")
        page = await client.get(link)
        assert page.status_code == 200 and "nationality" not in page.headers.get("location", "")
        assert (await client.post(link, data={"statement": WHY})).status_code == 200
        # The link opens that page and nothing else: it is no token.
        token = link.rpartition("/")[2]
        assert (await client.get("/v1/trials/t", headers={"authorization": f"Bearer {token}"})).status_code == 401


async def test_the_page_shows_the_notice_only_and_takes_one_objection(tmp_path):
    async with an_api(tmp_path, notice_link_days=7) as (court, client):
        await tried(court, words="<b>tame</b> words", description="a description")
        link = await link_of(client)
        page = await client.get(link, headers={"sec-fetch-site": "cross-site"})  # it is followed from a mail
        assert page.status_code == 200 and "<form method=" in page.text and "content of t" in page.text
        for hidden in ("tame", "description", "It says what it says", "r t", "b" * 64):
            assert hidden not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["referrer-policy"] == "no-referrer" and page.headers["cache-control"] == "no-store"
        forged = await client.post(link, data={"statement": WHY}, headers={"sec-fetch-site": "cross-site"})
        assert forged.status_code == 403 and not await appeals(court)
        for bad in ("", " ", "x" * 2001, "a\0b"):
            assert (await client.post(link, data={"statement": bad})).status_code == 400
        for body in (b"", b"statement", b"statement=%ff", b"\xff", b"statement=a&statement=b", b"x" * 30_000):
            assert (await client.post(link, content=body, headers=FORM)).status_code == 400
        assert not await appeals(court)
        answers = await asyncio.gather(*(client.post(link, data={"statement": f"Nr. {n}"}) for n in range(12)))
        opened = await appeals(court)
        assert sorted(answer.status_code for answer in answers) == [200] + [404] * 11 and len(opened) == 1
        assert opened[0].by_link and opened[0].statement.startswith("Nr. ")
        assert (await court.docket.trials.record("t")).in_force.contested
        assert await link_of(client) == ""


@pytest.mark.promise("GR-1", "a link of a notice that is used, over, erased or altered at any place: one same page")
async def test_every_link_that_opens_nothing_gets_the_same_page(tmp_path):
    async with an_api(tmp_path, notice_link_days=7) as (court, client):
        for name in ("used", "gone", "late", "decided", "t"):
            await tried(court, name)
        links = {name: await link_of(client, name) for name in ("used", "gone", "decided", "t")}
        clock = {"late": lambda: NOON - timedelta(days=3000)}
        docket = court.docket
        late = NoticeLinks(docket, days=7, origin="", clock=clock["late"])
        links["late"] = (await late.link_to(await docket.trials.record("late"), "en")).address
        assert (await client.post(links["used"], data={"statement": WHY})).status_code == 200
        await docket.eraser.erase("gone", who="ada", why="asked for", at=NOON)
        await docket.reviews.review(
            "decided", outcome=ReviewOutcome.OVERRULED, label=Label.NOT_HARMFUL, reason="r", clause="", reviewer="ada",
            at=NOON,
        )  # fmt: skip
        good = links.pop("t")
        altered = [
            good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :] for at in range(len("/notice/"), len(good))
        ]
        strange = [f"{good}A", good[:-1], "/notice/x", "/notice/" + "A" * 1001, "/notice/%C3%A4", "/notice/" + "A" * 86]
        pages = [same_page(await client.get(link)) for link in (*links.values(), *altered, *strange)]
        pages += [
            same_page(await client.post(link, data={"statement": WHY})) for link in (*links.values(), altered[-1])
        ]
        assert len(pages) > 120 and all(page == pages[0] for page in pages)
        assert pages[0][0] == 404 and all(words["gone"] in pages[0][1].decode() for words in notice_words().values())
        assert not await appeals(court, "late") and not await appeals(court, "decided")
        assert (await client.get(good)).status_code == 200


async def test_a_link_belongs_to_the_decision_that_stands(tmp_path):
    async with an_api(tmp_path, notice_link_days=7) as (court, client):
        await tried(court)
        before = await link_of(client)
        review = await review_trial(court.docket, "t", ReviewOutcome.UPHELD, Label.HARMFUL)
        upheld = await link_of(client)
        undone = ReviewWithdrawn(trial_id="t", seq=review.seq + 1, at=NOON, by=review.reviewer, of=review.seq)
        await append_all(court.docket, [undone])
        assert await link_of(client) == before != upheld
        assert [(await client.get(link)).status_code for link in (before, upheld)] == [200, 404]


async def test_no_link_where_the_decision_restricts_nothing(tmp_path):
    async with an_api(tmp_path, notice_link_days=7) as (court, client):
        await tried(court, "fine", Label.NOT_HARMFUL)
        await tried(court, "open", Label.UNDECIDED)
        await tried(court, "try", namespace="sandbox")
        assert [await link_of(client, name) for name in ("fine", "open")] == ["", ""]
        record = await court.docket.trials.record("try")
        assert await NoticeLinks(court.docket, days=7, origin="").link_to(record, "en") is None


async def test_objections_and_requests_are_bounded_in_each_minute(tmp_path, monkeypatch):
    monkeypatch.setattr(notice_page, "monotonic", lambda: 0.0)
    monkeypatch.setattr(notice_page, "_OPENED_A_MINUTE", 3)
    async with an_api(tmp_path, notice_link_days=7) as (court, client):
        links = []
        for number in range(5):
            await tried(court, f"t-{number}")
            links.append(await link_of(client, f"t-{number}"))
        codes = [(await client.post(link, data={"statement": WHY})).status_code for link in links]
        assert codes == [200, 200, 200, 429, 429] and not await appeals(court, "t-4")
        # A link that is asked for again and again takes nothing from the others.
        codes = [(await client.get(links[4])).status_code for _ in range(40)]
        assert codes.count(200) == notice_page._READ_A_MINUTE - 1 and codes[-1] == 429
        assert (await client.get(links[3])).status_code == 200
        monkeypatch.setattr(notice_page, "monotonic", lambda: 61.0)
        assert (await client.post(links[4], data={"statement": WHY})).status_code == 200


async def test_the_link_works_under_a_public_path(tmp_path):
    async with an_api(tmp_path, notice_link_days=7, http_origin="https://example.org/court") as (court, client):
        await tried(court)
        link = await link_of(client)
        assert re.match(r"https://example\.org/court/notice/[\w-]+\Z", link)
        inner = link.removeprefix("https://example.org")
        for path in (inner, inner.removeprefix("/court")):  # passed on by the proxy, or taken off
            assert (await client.get(path, headers={"sec-fetch-site": "cross-site"})).status_code == 200


@pytest.mark.promise("BO-4", "60 objections by link beside 10 cases: one of four given out, all others in order")
async def test_a_flood_of_objections_takes_its_share_of_the_queue_and_no_more(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        links = NoticeLinks(it.docket, days=7, origin="", clock=it.clock)

        async def object_to(name):
            await it.tried(name, verdict(Label.HARMFUL), at=it.clock(), words=name)
            it.clock.turn(seconds=1)
            opened = await links.opened((await links.link_to(await it.docket.trials.record(name), "en")).address[8:])
            assert await links.object_to(opened[0], WHY)

        for number in range(60):
            await object_to(f"flood-{number:02}")
        honest = []
        for number in range(9):
            it.clock.turn(seconds=1)
            honest.append(await it.tried(f"doubt-{number}", verdict(Label.UNDECIDED), at=it.clock(), words=str(number)))
        await it.tried("appeal", verdict(Label.HARMFUL))
        await it.docket.reviews.open_appeal("appeal", by="forum", statement=WHY, reference="1", at=NOON)
        listed = await it.waiting("ada")
        taken = [(await it.desk.take_next(f"r{number}")).trial_id for number in range(16)]
        counts = await it.desk.counts()
    assert listed[:10] == ["appeal", *honest]
    flood = [name for name in taken if name.startswith("flood")]
    assert taken[0] == "appeal" and [name for name in taken if name.startswith("doubt")] == honest
    # One of four while others wait: neither buried nor burying, the oldest first.
    assert [at for at, name in enumerate(taken[:13], 1) if name.startswith("flood")] == [4, 8, 12]
    assert OBJECTION_EVERY == 4 and flood == sorted(flood)
    assert counts[ReviewPriority.OBJECTION] == 60


@pytest.mark.parametrize("also_undecided", [False, True])
async def test_objections_go_to_another_person_than_the_one_who_decided(docket_place, also_undecided):
    async with opened_desk(parse_place(docket_place)) as it:
        links = NoticeLinks(it.docket, days=7, origin="", clock=it.clock)
        await it.tried("t", verdict(Label.UNDECIDED if also_undecided else Label.HARMFUL))
        await it.reviewed("t", "ada", Label.HARMFUL, again=True)
        record = await it.docket.trials.record("t")
        assert await links.object_to(record, WHY)
        await it.docket.reviews.review(
            "t", outcome=ReviewOutcome.UPHELD, label=Label.HARMFUL, reason="r", clause="", reviewer="ada", at=NOON
        )
        waiting = [await it.waiting(who) for who in ("ada", "ben")]
        contested = (await it.docket.trials.record("t")).in_force.contested
        await it.reviewed("t", "ben", Label.NOT_HARMFUL)
        label = (await it.docket.trials.record("t")).label_in_force
    assert waiting == [[], ["t"]] and contested and label is Label.NOT_HARMFUL
