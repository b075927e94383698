"""Pages of the review queue, without a browser: who sees what and when, and how forms are handled.

Docket and library are real.
"""

import asyncio
import re
from datetime import timedelta
from itertools import product
from types import SimpleNamespace

import pytest

from court.errors import Unavailable
from court.events import Look, NoteLeft, ReviewOutcome, VerdictReviewed
from court.policy import DEFAULT_POLICY
from court.verdict import Label, ReviewReason, Strength
from serving.docket.review.corrections import Overrulings
from serving.docket.review.locks import LOCK_MINUTES
from serving.docket.review.projection import ReviewPriority
from serving.docket.store.log_queries import entries_of
from serving.rpc.docket import DocketService
from serving.rpc.flow_control import ReceiveBudget
from tests.support.consoles import stable_page
from tests.support.desk_pages import PICTURE, desk_pages, form_of, page_text
from tests.support.desks import trial, verdict
from tests.support.docket_service import ReviewCounter
from tests.support.dockets import NOON
from tests.support.golden import assert_matches_golden

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
TIE = (Strength.MODERATE, Strength.MODERATE)
RATIONALE = "The court's rationale."
DOUBTFUL = verdict(H, score=0.55, strengths=TIE, reasons=[ReviewReason.VOTE_DISAGREES], rationale=RATIONALE)
"""A verdict every part of which reveals the label."""


async def test_pages_of_the_review_queue_match_the_golden_file(tmp_path, request):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", DOUBTFUL, pixels=PICTURE.pixels_sha256, words="Monday people")
        await it.tried("b", DOUBTFUL, pixels=PICTURE.pixels_sha256, words="Tuesday people")
        await it.tried("c", verdict(N, rationale=RATIONALE), words="No review")
        ada, root = await it.person("ada"), await it.person("root")
        first = {path: await ada.get(path) for path in ("/desk", "/trials?q=people", "/desk/cases/a")}
        await ada.post("/desk/cases/a/take")
        first["a, taken"] = await ada.get("/desk/cases/a")
        await ada.decides("a", "NOT_HARMFUL")
        paths = ("/desk", "/desk/cases/a", "/desk/cases/a/similar", "/desk/agreement", "/trials/a")
        pages = first | {f"{path}, decided": await root.get(path) for path in paths}
    text = "".join(f"== {name}\n{stable_page(page.text)}" for name, page in pages.items())
    assert_matches_golden("review_queue.html", text, request)


# Blind review


async def test_requesting_a_verdict_that_does_not_exist_yet_preserves_blindness(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a")
        ada = await it.person("ada")
        await ada.post("/desk/cases/a/see")
        await ada.get("/trials/a")
        assert await it.desk.knows_verdict("a", "ada") is False


async def test_a_console_can_be_set_to_show_verdicts_from_the_start(tmp_path):
    async with desk_pages(tmp_path, blind_first=False) as it:
        await it.tried("a", DOUBTFUL)
        ada = await it.person("ada")
        page, queue = page_text(await ada.get("/desk/cases/a")), page_text(await ada.get("/desk"))
        await ada.decides("a", "HARMFUL")
        blind = (await it.docket.trials.record("a")).last(VerdictReviewed).blind
    assert RATIONALE in page and "sides or votes disagree" in queue and blind is False


# Reviewing


async def test_two_reviewers_never_get_the_same_case(tmp_path):
    async with desk_pages(tmp_path) as it:
        for name in ("a", "b"):
            await it.tried(name, verdict(U))
        ada, bea = await it.person("ada"), await it.person("bea")
        first, second = await asyncio.gather(ada.post("/desk/next"), bea.post("/desk/next"))
        at = first.headers["location"]
        theirs = page_text(await bea.get(at))
        refused = await bea.post(f"{at}/take")
        stolen = await bea.post(f"{at}/review", {"label": "HARMFUL", "clause": "4", "reason": "mine"})
        third = await (await it.person("cy")).post("/desk/next")
        first, second, third = at, second.headers["location"], third.headers["location"]
    assert {first, second} == {"/desk/cases/a", "/desk/cases/b"}
    assert "ada has this case" in theirs and "Take this case" not in theirs
    assert (refused.status_code, stolen.status_code) == (409, 409)
    assert "ada is looking at this case" in page_text(refused) and "not yours" in page_text(stolen)
    assert third == "/desk?none="


async def test_rejected_forms_come_back_with_their_text(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U))
        ada = await it.person("ada")
        at = "/desk/cases/a"
        await ada.post(f"{at}/take")
        fields = {"label": "HARMFUL", "other_clause": "4", "reason": "A long and careful reason."}
        await ada.view_all("a")
        answers = [
            await ada.post(f"{at}/review", {**fields, **wrong}, page=at)
            for wrong in ({"reason": " "}, {"other_clause": ""}, {"label": "MAYBE"}, {"other_clause": "none"})
        ]
        it.clock.turn(minutes=LOCK_MINUTES + 1)
        answers.append(await ada.post(f"{at}/review", fields, page=at))
        reviews = (await it.docket.trials.record("a")).all(VerdictReviewed)
    assert [answer.status_code for answer in answers] == [400, 400, 400, 400, 409]
    messages = [
        "Say why",
        "Name the clause",
        "Say whether",
        "Name the clause of the policy that the meme breaks",
        "take it",
    ]
    for answer, message in zip(answers, messages, strict=True):
        assert message in page_text(answer)
    for answer in answers[1:]:
        assert "A long and careful reason." in answer.text
    assert not reviews


def _views(it, trial_id):
    return it.docket.auditor.read(
        lambda connection: [each for each in entries_of(connection, trial_id) if each.kind == "PictureShown"]
    )


async def test_a_decision_needs_picture_and_text_to_be_shown_to_its_reviewer(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U), pixels=PICTURE.pixels_sha256, words="Monday people")
        ada, bea = await it.person("ada"), await it.person("bea")
        at, fields = "/desk/cases/a", {"label": "HARMFUL", "other_clause": "4", "reason": "r"}
        await bea.view_all("a")
        await ada.post(f"{at}/take")
        refused = await ada.post(f"{at}/review", fields, page=at)
        pages = [page_text(await ada.get(at))]
        for what in ("text", "meme"):
            shown = await ada.post("/trials/a/show", {"of": what, "back": "case"})
            pages += [(await ada.get(shown.headers["location"])).text, page_text(await ada.get(at))]
        decided = await ada.post(f"{at}/review", fields, page=at)
        review, views = (await it.docket.trials.record("a")).last(VerdictReviewed), await _views(it, "a")
    assert refused.status_code == 400 and 'id="wrong-look">First look at the picture and the text.' in refused.text
    assert "Not shown to you yet: picture and text." in pages[0]
    assert '<blockquote class="words" dir="auto">Monday people' in pages[1] and 'class="sharp"' not in pages[1]
    assert "Not shown to you yet: picture." in pages[2]
    assert 'class="sharp"' in pages[3] and "The meme was shown to you." in pages[4]
    assert decided.status_code == 303 and review.look is Look.SHOWN and len(views) == 3


async def test_everything_shown_at_once_is_one_view(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U), pixels=PICTURE.pixels_sha256, words="Monday people")
        ada = await it.person("ada")
        form = form_of((await ada.get("/trials")).text, {"of": "all", "back": "case"})
        form["headers"]["hx-request"] = "true"
        pieces = (await ada.client.post("/trials/a/show", **form)).text
        sharp = re.search(r'class="sharp" src="([^"]*)"', pieces)[1]
        fetched, views = [(await ada.get(sharp)).status_code for _ in range(2)], await _views(it, "a")
    assert pieces.count('hx-swap-oob="true"') == 3 and "The meme was shown to you." in pieces
    assert fetched == [200, 404] and len(views) == 1


async def test_reviewers_can_decide_without_an_erased_picture(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U), pixels="0" * 64, words="Monday people")
        ada = await it.person("ada")
        page = page_text(await ada.get("/desk/cases/a"))
        after = page_text(await ada.decides("a", "HARMFUL"))
        look = (await it.docket.trials.record("a")).last(VerdictReviewed).look
    assert "The picture is erased, or can’t be decoded" in page and look is Look.GONE
    assert "without the picture, which was gone" in after


async def test_the_next_case_comes_after_a_decision(tmp_path):
    async with desk_pages(tmp_path) as it:
        for name in "ab":
            await it.tried(name, verdict(H, strengths=TIE), pixels=name * 64, words=f"case {name}")
        ada = await it.person("ada")
        await ada.post("/desk/cases/a/take")
        await ada.view_all("a")
        fields = {"label": "NOT_HARMFUL", "other_clause": "none", "reason": "r"}
        decided = await ada.post("/desk/cases/a/review", fields, page="/desk/cases/a")
        onward = decided.headers["location"]
        other = await it.person("bea")
        page, others = page_text(await ada.get(onward)), page_text(await other.get(onward))
    assert onward.startswith("/desk/cases/b?last=a")
    assert "Your case" in page and "Stored: you found it not harmful, the court harmful." in page
    assert "Stored" not in others, "only to its reviewer"


@pytest.mark.parametrize("lost", ["expired", "taken", "released", "reviewed"])
async def test_a_reviewer_who_lost_a_case_is_informed_and_keeps_the_draft(tmp_path, lost):
    fields = {"label": "HARMFUL", "other_clause": "4", "reason": "A long & careful reason."}
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U))
        ada, bea = await it.person("ada"), await it.person("bea")
        at = "/desk/cases/a"
        await ada.post(f"{at}/take")
        await ada.view_all("a")
        it.clock.turn(minutes=LOCK_MINUTES + 1)
        if lost == "taken":
            await bea.post(f"{at}/take")
        elif lost == "released":
            await ada.post(f"{at}/release")
        elif lost == "reviewed":
            await bea.decides("a", "NOT_HARMFUL")
        pages = await ada.post(f"{at}/renew"), await ada.post(f"{at}/review", fields, page=at)
        early = await ada.post(f"{at}/take", {**fields, "again": "yes"})
        assert lost != "taken" or (early.status_code == 409 and "A long &amp; careful reason." in early.text)
        await bea.post(f"{at}/release")
        hidden = dict(
            re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', pages[1].text.split("/take")[-1])
        )
        again = await ada.post(f"{at}/take", {**fields, "again": "yes"})
        sent = await ada.post(f"{at}/review", fields, page=at)
        *pages, hidden, again, sent, reviews = [
            *map(page_text, pages),
            hidden,
            again,
            sent.status_code,
            (await it.docket.trials.record("a")).all(VerdictReviewed),
        ]
    message = {"taken": "bea is looking at it", "reviewed": "bea reviewed it on 2 Jan"}.get(lost, "its time was over")
    for text in pages:
        assert "This case is not yours, or no longer" in text and message in text, text
        assert "not harmful" not in text.replace("Not harmful n", ""), "bea's label stays hidden"
    assert hidden["reason"] == "A long &amp; careful reason." and hidden["label"] == "HARMFUL"
    assert again.status_code == 200 and "A long &amp; careful reason." in again.text
    assert re.search('value="HARMFUL"[^>]* checked', again.text) and 'value="4"' in again.text
    assert sent == 303 and [one.reviewer for one in reviews] == (["bea", "ada"] if lost == "reviewed" else ["ada"])


async def test_a_review_sent_twice_is_stored_once(tmp_path):
    fields = {"label": "HARMFUL", "other_clause": "4", "reason": "I looked.", "note": "Is it meant?"}
    async with desk_pages(tmp_path) as it:
        codes = []
        events = []
        it.announced = events.append
        for name, act in (("a", "review"), ("b", "note")):
            await it.tried(name, verdict(U))
            ada = await it.person("ada")
            at = f"/desk/cases/{name}"
            await ada.post(f"{at}/take")
            await ada.view_all(name)
            form = form_of((await ada.get(at)).text, fields)
            answers = await asyncio.gather(*(ada.client.post(f"{at}/{act}", **form) for _ in range(6)))
            answers.append(await ada.client.post(f"{at}/{act}", **form))  # back button, then resubmitted
            other = form_of((await ada.get(at)).text, {**fields, "reason": "From another tab.", "note": "Another tab."})
            codes.append([answer.status_code for answer in answers])
            codes.append((await ada.client.post(f"{at}/{act}", **other)).status_code)
        counts = [len((await it.docket.trials.record(name)).events) for name in "ab"]
    assert codes == [[303] * 7, 409, [303] * 7, 409]
    assert counts == [4, 4] and len(events) == 1


async def test_a_note_to_colleagues_is_read_after_the_blind_finding(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U))
        ada, bea = await it.person("ada"), await it.person("bea")
        at = "/desk/cases/a"
        await ada.post(f"{at}/take")
        await ada.post(f"{at}/note", {"note": "The hat is a costume.", "only": "note"}, page=at)
        own_page = page_text(await ada.get(at))
        waiting = (await it.desk.case("a")).reasons
        await ada.post(f"{at}/release")
        await bea.post("/desk/next")
        pages = [page_text(await bea.get(path)) for path in (at, "/desk", f"{at}/similar", "/trials")]
        await bea.view_all("a")
        fields = {"label": "HARMFUL", "other_clause": "4", "reason": "r"}
        done = await bea.post(f"{at}/review", fields, page=at)
        record = await it.docket.trials.record("a")
        after = page_text(await bea.get(done.headers["location"]))
    assert "Your case" in own_page and "The hat is a costume." in own_page
    assert [why for why, _ in waiting] == [ReviewPriority.UNDECIDED], "a note makes no case wait"
    assert "ada left a note" in pages[0] and not any("costume" in page for page in pages)
    assert "ada had noted: The hat is a costume." in after
    assert record.review.blind and record.last(NoteLeft).by == "ada" and not record.in_force.contested


ALIKE = {"pixels": PICTURE.pixels_sha256, "words": "Monday people"}


async def test_one_decision_for_identical_cases_is_a_review_of_each_and_is_undone_together(tmp_path):
    async with desk_pages(tmp_path) as it:
        for name in ("a", "twin", "held"):
            await it.tried(name, verdict(U), **ALIKE)
        await it.tried("other", verdict(U), words="quite another")
        ada, bea = await it.person("ada"), await it.person("bea")
        at, fields = "/desk/cases/a", {"label": "HARMFUL", "other_clause": "4", "reason": "Both.", "alike": "twin"}
        await bea.post("/desk/cases/held/take")
        await ada.post(f"{at}/take")
        await ada.view_all("a")
        before = (await ada.get(at)).text
        unseen = await ada.post(f"{at}/review", fields, page=at)
        shown = await ada.post(f"{at}/alike")
        side_by_side = (await ada.get(shown.headers["location"])).text
        await bea.post("/desk/cases/twin/take")
        refused = await ada.post(f"{at}/review", fields, page=at)
        between = [(await it.docket.trials.record(name)).reviews for name in ("a", "twin")]
        await bea.post("/desk/cases/twin/release")
        done = await ada.post(f"{at}/review", fields, page=at)
        reviews = [(await it.docket.trials.record(name)).review for name in ("a", "twin")]
        page = (await ada.get(done.headers["location"])).text
        undo = {name: re.search(f'name="{name}" value="([^"]+)"', page)[1] for name in ("of", "alike")}
        await ada.post(f"{at}/undo", undo)
        left = [(await it.docket.trials.record(name)).review for name in ("a", "twin")]
        views = await it.docket.reviews.views("twin", "ada")
        shown, views, waiting = side_by_side, [*views], await it.waiting("cy")
    assert before.count('/trials/twin/picture?of=meme" width="160"') == 1 and 'name="alike"' not in before
    assert "like this one" in before and '/trials/held/picture?of=meme" width="160' not in before
    assert unseen.status_code == 400 and "side by side" in page_text(unseen)
    assert "/trials/twin/sharp/" in shown and 'name="alike" value="twin"' in shown
    assert refused.status_code == 409 and "bea is looking at this case" in page_text(refused) and between == [(), ()]
    assert [(one.trial_id, one.reviewer, one.label, one.blind, one.look) for one in reviews] == [
        (name, "ada", H, True, Look.SHOWN) for name in ("a", "twin")
    ]
    assert left == [None, None] and views == ["meme"] and {"a", "twin"} <= {*waiting, "a"}


async def test_the_picture_stays_visible_after_deciding(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U), **ALIKE)
        ada = await it.person("ada")
        await ada.decides("a", "HARMFUL")
        page = (await ada.get("/desk/cases/a")).text
        sharp = await ada.get(re.search(r"/trials/a/sharp/[^\"]+", page)[0])
        it.clock.turn(minutes=2)
        later = (await ada.get("/desk/cases/a")).text
    assert sharp.status_code == 200 and '<blockquote class="words" dir="auto">Monday people' in page
    assert "/sharp/" not in later


async def test_only_the_holder_of_a_case_can_ask_for_a_second_opinion(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U))
        ada, bea = await it.person("ada"), await it.person("bea")
        await ada.post("/desk/cases/a/take")
        answer = await bea.post("/desk/cases/a/note", {"note": "I would like to know."})
        last = (await it.docket.trials.record("a")).events[-1].kind
    assert answer.status_code == 409 and "I would like to know." in answer.text and last == "VerdictGiven"


async def test_a_stored_review_is_published_even_if_the_docket_fails_afterwards(tmp_path, monkeypatch):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(H, strengths=TIE))
        events = []
        it.announced = events.append
        ada = await it.person("ada")
        await ada.post("/desk/cases/a/take")
        await ada.view_all("a")
        form = form_of(
            (await ada.get("/desk/cases/a")).text, {"label": "NOT_HARMFUL", "other_clause": "4", "reason": "r"}
        )
        write = it.docket.transactions.write

        async def write_then_fail(batch, ask):
            result = await write(batch, ask)
            monkeypatch.setattr(it.docket.log, "entries", fail)
            return result

        async def fail(*_, **__):
            raise Unavailable("gone")

        monkeypatch.setattr(it.docket.transactions, "write", write_then_fail)
        code = (await ada.client.post("/desk/cases/a/review", **form)).status_code
    assert code == 303 and [event.trial_id for event in events] == ["a"]


async def test_a_second_opinion_goes_to_another_reviewer_with_its_reason_hidden(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U))
        ada, bea = await it.person("ada"), await it.person("bea")
        at = "/desk/cases/a"
        await ada.post(f"{at}/take")
        empty = await ada.post(f"{at}/note", {"note": ""}, page=at)
        await ada.post(f"{at}/note", {"note": "Is the costume meant?"}, page=at)
        lists = page_text(await ada.get("/desk")), page_text(await bea.get("/desk"))
        refused = await ada.post(f"{at}/take")
        own = page_text(await ada.get(at))
        taken = await bea.post("/desk/next")
        before = page_text(await bea.get(taken.headers["location"]))
        empty, after = empty.status_code, page_text(await bea.decides("a", "HARMFUL"))
    assert empty == 400
    assert "No case is waiting" in lists[0] and "1 waiting" in lists[1]
    assert "second opinion asked" not in lists[1], "it tells why the case is here"
    assert refused.status_code == 409 and "another person" in page_text(refused)
    assert "ada asked for a second opinion" in before and "it is shown once you have decided" in before
    assert "Is the costume meant?" not in before, "it could reveal ada's label"
    assert "Is the costume meant?" in own and "Is the costume meant?" in after


async def test_an_appeal_is_announced_but_its_statement_is_hidden_until_decided(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(H))
        appeal = {"by": "forum", "statement": "It mocks our own habit.", "reference": "appeal 12"}
        await it.docket.reviews.open_appeal("a", at=NOON, **appeal)
        bea = await it.person("bea")
        queue = page_text(await bea.get("/desk"))
        taken = await bea.post("/desk/next")
        before = page_text(await bea.get(taken.headers["location"]))
        after = page_text(await bea.decides("a", "NOT_HARMFUL"))
    assert "1 waiting" in queue and "forum handed in an appeal" in before
    assert "what it says is shown once you have decided" in before
    assert "habit" not in queue + before and "appeal 12" not in queue + before
    assert "(appeal 12): It mocks our own habit." in after


async def test_an_overruling_becomes_a_precedent_that_an_admin_can_withdraw(tmp_path):
    async with desk_pages(tmp_path, library=True) as it:
        for name in ("a", "b"):
            await it.tried(name, verdict(H, strengths=TIE), pixels=PICTURE.pixels_sha256, words="cat dog")
        ada, root = await it.person("ada"), await it.person("root")
        page = page_text(await ada.decides("a", "NOT_HARMFUL", precedent="yes"))
        await ada.decides("b", "NOT_HARMFUL")
        assert it.writer.meme("trial:a") is None and "becomes a precedent once the minute for an undo is over" in page
        await it.minute_over()
        page = page_text(await ada.get("/desk/cases/a"))
        made = it.writer.meme("trial:a"), it.writer.meme("trial:b")
        not_hers = await ada.post("/desk/cases/a/take-back", {"back_why": "no"})
        empty = await root.post("/desk/cases/a/take-back", {"back_why": ""})
        taken = await root.post("/desk/cases/a/take-back", {"back_why": "Too special."})
        codes, after = (not_hers.status_code, empty.status_code, taken.status_code), it.writer.meme("trial:a")
    assert "Precedent trial:a , not harmful , added by ada" in page
    assert made[0].label is N and made[0].source == "trial:a" and made[1] is None
    assert codes == (403, 400, 303) and after is None


async def test_precedents_are_not_offered_when_switched_off(tmp_path):
    async with desk_pages(tmp_path, overrulings=Overrulings.NEVER, library=True) as it:
        await it.tried("a", verdict(H, strengths=TIE))
        ada = await it.person("ada")
        await ada.post("/desk/cases/a/take")
        page = page_text(await ada.get("/desk/cases/a"))
        await ada.decides("a", "NOT_HARMFUL", precedent="yes")
        await it.minute_over()
        meme = it.writer.meme("trial:a")
    assert "precedent" not in page and meme is None


async def test_a_decision_is_undone_from_the_next_case(tmp_path):
    async with desk_pages(tmp_path, library=True) as it:
        for name in "ab":
            await it.tried(name, DOUBTFUL, pixels=name * 64)
        ada = await it.person("ada")
        await ada.post("/desk/cases/a/take")
        await ada.view_all("a")
        fields = {"label": "NOT_HARMFUL", "other_clause": "4", "reason": "r", "precedent": "yes"}
        decided = await ada.post("/desk/cases/a/review", fields, page="/desk/cases/a")
        following = await ada.get(decided.headers["location"])
        (number,) = re.findall(r'action="/desk/cases/a/undo"[^~]*?name="of" value="(\d+)"', following.text)
        odd = [(await ada.post("/desk/cases/a/undo", {"of": value})).status_code for value in ("", "²", "9" * 20, "1")]
        undone = await ada.post("/desk/cases/a/undo", {"of": number})
        page, record = page_text(await ada.get("/desk/cases/a")), await it.docket.trials.record("a")
        await it.minute_over()
        late = await ada.post("/desk/cases/a/undo", {"of": number}), await ada.get(decided.headers["location"])
        meme, case = it.writer.meme("trial:a"), await it.desk.case("a")
    assert odd == [400, 400, 400, 409] and undone.headers["location"] == "/desk/cases/a"
    # Theirs again, with the verdict that they know by now.
    assert "Your case" in page and RATIONALE in page and record.review is None and case.waiting
    assert record.last(VerdictReviewed).precedent and meme is None
    assert late[0].status_code == 303 and "Undo" not in page_text(late[1])


async def test_the_server_in_the_same_process_is_notified_at_once(tmp_path):
    async with desk_pages(tmp_path) as it:
        for name in ("a", "b"):
            await it.tried(name, verdict(H, strengths=TIE))
        counter, changes = ReviewCounter(), []
        service = DocketService(counter, memory=ReceiveBudget(64 * 2**20, 20.0))
        service.open(SimpleNamespace(docket=it.docket), lambda: changes.append(None))
        it.announced = service.reviewed
        ada = await it.person("ada")
        await ada.decides("a", "NOT_HARMFUL")
        await ada.decides("b", "HARMFUL")
        outcomes = counter.outcomes
    assert len(changes) == 2  # the next request follows either
    assert outcomes == [ReviewOutcome.OVERRULED, ReviewOutcome.UPHELD]  # and metrics count both


# Search


async def test_lists_continue_on_the_next_page(tmp_path):
    async with desk_pages(tmp_path) as it:
        for number in range(60):
            await it.tried(f"t{number:02}", verdict(U), words=f"word{number:02}", at=NOON + timedelta(minutes=number))
        ada = await it.person("ada")
        found = {}
        for path, most in (("/desk", 3), ("/trials", 3)):
            words, query = [], ""
            for _ in range(most):
                page = (await ada.get(f"{path}{query}")).text
                words += [part[:6] for part in page.split(">word")[1:]]
                onward = re.search(rf'href="{path}(\?[^"]*)" rel="next"', page)
                if onward is None:
                    break
                query = onward[1].replace("&amp;", "&")
            found[path] = [part[:2] for part in words]
    assert found["/desk"] == [f"{number:02}" for number in range(60)]
    assert found["/trials"] == [f"{number:02}" for number in reversed(range(60))]


async def test_the_list_keeps_its_place_while_its_cases_are_reviewed(tmp_path):
    async with desk_pages(tmp_path) as it:
        for number in range(60):
            await it.tried(f"u{number:02}", verdict(U), words=f"word{number:02}", at=NOON + timedelta(minutes=number))
        await it.tried("low", verdict(H, score=0.55), words="the low one")
        ada = await it.person("root")
        taken = await ada.post("/desk/next", {"why": "LOW_SCORE"})
        page = (await ada.get(taken.headers["location"])).text
        fields = {"label": "HARMFUL", "other_clause": "4", "reason": "r"}
        await ada.view_all("low")
        decided = await ada.post("/desk/cases/low/review?why=LOW_SCORE", fields, page="/desk/cases/low")
        onward = re.search(r'href="/desk(\?[^"]*)" rel="next"', (await ada.get("/desk")).text)[1].replace("&amp;", "&")
        second = (await ada.get(f"/desk{onward}")).text
        link = re.search(r'href="(/desk/cases/u55\?[^"]*)"', second)[1].replace("&amp;", "&")
        neighbour = page_text(await ada.get(link))
        malformed = await ada.get("/desk/cases/u55?why=NONE&after=none")
        taken, decided = taken.headers["location"], decided.headers["location"]
    assert taken == "/desk/cases/low?why=LOW_SCORE" and decided == "/desk/cases/low?why=LOW_SCORE&last=low#done"
    assert "the low one" in page and "word00" not in page and 'name="why" value="LOW_SCORE"' in page
    assert "word55" in neighbour and "word50" in neighbour and "word49" not in neighbour and "First page" in neighbour
    assert malformed.status_code == 200 and "word00" in malformed.text, "a malformed address does not hide the case"


async def test_reasons_are_shown_to_administrators_alone_before_a_decision(tmp_path):
    async with desk_pages(tmp_path) as it:
        for number in range(52):
            await it.tried(f"u{number:02}", verdict(U), words=f"word{number:02}", at=NOON + timedelta(minutes=number))
        await it.tried("low", verdict(H, score=0.55), words="the low one")
        people = [await it.person(name) for name in ("ada", "root")]
        pages = [[(await one.get(at)).text for at in ("/desk", "/desk?why=LOW_SCORE")] for one in people]
        taken = [(await one.post("/desk/next", {"why": "LOW_SCORE"})).headers["location"] for one in people]
        ada, root = pages
    # Neither list, filter, counters nor the address of the next page.
    for page in ada:
        assert not re.search(
            "low score|undecided|LOW_SCORE|UNDECIDED|urgency", page.split("<main")[1].split("</main")[0]
        )
        assert "word00" in page and "53</span> waiting" in page
    assert "low score" in root[0] and "word00" not in root[1] and "the low one" in root[1]
    assert taken == ["/desk/cases/u00", "/desk/cases/low?why=LOW_SCORE"]


async def test_a_skipped_case_goes_back_and_the_next_one_comes(tmp_path):
    async with desk_pages(tmp_path) as it:
        for number in range(3):
            await it.tried(f"u{number}", verdict(U), at=NOON + timedelta(minutes=number), pixels=str(number) * 64)
        ada = await it.person("ada")
        at = (await ada.post("/desk/next")).headers["location"]
        way = [at]
        for _ in range(3):
            at = (await ada.post(f"{at}/skip", page=at)).headers["location"]
            way.append(at)
        locked = [(await it.desk.case(f"u{number}")).lock is not None for number in range(3)]
    assert way == [f"/desk/cases/u{number}" for number in (0, 1, 2, 0)] and locked == [True, False, False]


async def test_a_reason_of_the_clause_can_be_chosen(tmp_path):
    policy = DEFAULT_POLICY.model_copy(
        update={"clauses": (DEFAULT_POLICY.clauses[0].model_copy(update={"reasons": ("It names a <group>.",)}),)}
    )
    async with desk_pages(tmp_path) as it:
        for name in "ab":
            events = trial(name, DOUBTFUL)
            reference = events[0].policy.model_copy(update={"content": policy, "digest": policy.digest})
            for event in [events[0].model_copy(update={"policy": reference}), *events[1:]]:
                await it.docket.writer.append(event)
        ada = await it.person("ada")
        await ada.post("/desk/cases/a/take")
        page = (await ada.get("/desk/cases/a")).text
        refused = await ada.decides("a", "HARMFUL", clause="1", reason="", chosen="Of another clause.")
        await ada.decides("a", "HARMFUL", clause="1", reason="", chosen="It names a <group>.")
        review = (await it.docket.trials.record("a")).review
    assert 'value="It names a &lt;group&gt;." data-key="d"' in page
    assert refused.status_code == 400 and review.reason == "It names a <group>."
    assert policy.digest == policy.model_copy(update={"clauses": DEFAULT_POLICY.clauses[:1]}).digest


async def test_rows_show_text_and_reason_and_never_begin_with_an_id(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("5b8a3d1f-waits", DOUBTFUL, pixels="1" * 64, words="Ferry\nstaff", namespace="forum")
        await it.tried("5b8a3d1f-sure", verdict(N, score=0.04), pixels="2" * 64, words="Printer\nworks")
        await it.tried("5b8a3d1f-failed", "GONE", pixels="3" * 64, words="")
        ada, vic, bea = [await it.person(name) for name in ("ada", "vic", "bea")]
        await bea.post("/desk/cases/5b8a3d1f-waits/take")
        reviewer, reader, queue = (await ada.get("/")).text, (await vic.get("/")).text, (await ada.get("/desk")).text
    rows = [
        re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", re.split("</(?:li|tr)>", row)[0]))
        for page in (reviewer, reader, queue)
        for row in re.split('<(?:li|tr) class="row"', page)[1:]
    ]
    assert len(rows) == 7 and not [row for row in rows if "5b8a3d1f-" in row.replace("content of 5b8a3d1f-", "")]
    waits, sure, failed = rows[:3]
    assert "no text" in failed and "GONE" in failed and "failed" in failed
    assert "Printer works" in sure and "96 % not harmful" in sure
    assert (
        "Ferry staff" in waits and "waiting for review" in waits and "disagree" not in waits and "bea has it" in waits
    )
    assert "armful" not in waits and "55" not in waits, "hidden from reviewers who may still decide"
    assert "55 % harmful" in rows[3] and "sides or votes disagree · low score" in rows[3]
    assert "Ferry staff" in rows[6] and "bea has it" in rows[6] and "0.55" not in rows[6]


async def test_agreement_is_shown(tmp_path):
    async with desk_pages(tmp_path) as it:
        names = "abcdefghijkl"
        for name in names:
            # Separate memes: several trials of one meme count once.
            await it.tried(name, verdict(H, strengths=TIE), words=f"words of {name}")
        ada, bea = await it.person("ada"), await it.person("bea")
        few = ""
        for name, (one, other) in zip(names, 3 * [(H, H), (N, N), (N, H), (H, H)], strict=True):
            await ada.decides(name, one)
            await bea.decides(name, other)
            few = few or page_text(await ada.get("/desk/agreement"))
        page = page_text(await ada.get("/desk/agreement"))
        drawn = page_text(await ada.get("/desk/agreement?drawn=yes"))
    assert "2 reviews of 1 memes" in few and "ada, bea 1 100 % too few memes to say" in few
    assert "All together (Fleiss’ kappa): too few memes to say" in few
    assert "24 reviews of 12 memes" in page
    assert "ada, bea 12 75 % 0.50" in page
    assert "0 reviews of 0 memes" in drawn


# Permissions


async def test_each_page_checks_role_and_namespace(tmp_path):
    reading = ("/desk", "/desk/agreement", "/desk/cases/a", "/trials", "/desk/cases/a/similar")
    doing = ("take", "renew", "release", "see", "review", "note", "take-back")
    async with desk_pages(tmp_path) as it:
        await it.tried("a", verdict(U), namespace="shop", words="only the shop's")
        await it.tried("b", verdict(U), namespace="forum", words="the forum's")
        vic, forum = await it.person("vic"), await it.person("forum")
        viewer = [(await vic.get(path)).status_code for path in reading]
        viewer += [(await vic.post(f"/desk/cases/a/{act}")).status_code for act in doing]
        viewer.append((await vic.post("/desk/next")).status_code)
        other = [(await forum.get(path)).status_code for path in reading[2:]]
        other += [(await forum.post(f"/desk/cases/a/{act}")).status_code for act in doing[:-1]]
        seen = [page_text(await forum.get(path)) for path in ("/desk", "/trials")]
        refused = (await forum.get("/trials?q=namespace:shop")).status_code
        last = (await it.docket.trials.record("a")).events[-1].kind
    assert viewer == [403, 403, 403, 200, 200, *[403] * 8]
    assert other == [404, 200, 404, *[404] * 6]
    assert all("the forum's" in page and "shop" not in page for page in seen)
    assert refused == 403 and last == "VerdictGiven"


MARKUP = (
    '<script>window.evil=1</script>', '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "{{ 7*7 }}",
    "</textarea><script>1</script>", "' hx-get=/desk/next hx-trigger=load '", "\u202etxet", "<!--", "]]>", "&lt;b&gt;",
)  # fmt: skip


async def test_markup_of_users_and_reviewers_stays_text(tmp_path):
    async with desk_pages(tmp_path) as it:
        for number, markup in enumerate(MARKUP):
            doubtful = verdict(U, rationale=f"why {markup}")
            await it.tried(f"t{number}", doubtful, words=f"x {markup}", namespace=markup, description=f"d {markup}")
        ada, bea = await it.person("ada"), await it.person("bea")
        for number, markup in enumerate(MARKUP):
            await ada.decides(f"t{number}", "HARMFUL", reason=f"r {markup}", other_clause=markup[:200])
            at = f"/desk/cases/t{number}"
            await bea.post(f"{at}/take", {"again": "yes"})
            await bea.post(f"{at}/note", {"note": f"o {markup}"}, page=at)
        names = [f"t{number}" for number in range(len(MARKUP))]
        of_each = ("/desk/cases/{}", "/desk/cases/{}/similar", "/trials/{}")
        paths = ["/trials", "/desk", *(path.format(name) for path, name in product(of_each, names))]
        pages = [(await person.get(path)).text for person in (ada, bea) for path in paths]
    assert len(pages) > 60
    for page in pages:
        for executable in ("<script>window", "<script>1", "<img src=x", "' hx-get", "<!--", ">49<"):
            assert executable not in page
        assert not re.search(">[^<]*\u202e", page)  # in a field's value it stays as typed
    assert any("U+202E" in page for page in pages)


async def test_malformed_requests_are_client_errors(tmp_path):
    async with desk_pages(tmp_path) as it:
        await it.tried("open")
        root = await it.person("root")
        paths = (
            "/desk?why=NONE", "/desk?after=none", "/desk/cases/none",
            "/desk/cases/..%2f..%2fetc", "/trials?after=zz", "/desk/agreement?since=x", "/desk/cases/open",
            "/desk/cases/none/similar",
        )  # fmt: skip
        codes = [(await root.get(path)).status_code for path in paths]
        taken = (await root.post("/desk/cases/open/take")).status_code
    assert codes == [400, 400, 404, 404, 400, 400, 200, 404] and taken == 409
