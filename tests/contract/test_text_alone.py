"""Texts without a picture, over a real socket: the contract, clients, reuse, the docket and the console's pages."""

import asyncio
import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from court.backends.chat.scripted import ScriptedModel
from court.errors import Unavailable
from court.events import VerdictReviewed
from court.verdict import Label
from memecourt.client import AsyncClient, Client, JudgeError, judge_request
from memecourt.v1 import court_pb2 as wire
from serving.docket.backup import back_up
from serving.judging.judge import TrialRunner
from tests.support.cast import Cast
from tests.support.desk_pages import desk_pages, page_text
from tests.support.dockets import audited
from tests.support.real_court import IMAGE, real_court
from tests.support.service_calls import refusal_of

WORDS = "People from Blueland, go back to bed"


# The contract


async def test_a_text_alone_gets_a_verdict_that_reports_the_missing_picture(tmp_path):
    async with real_court(tmp_path) as it:
        response = await it.judge.Judge(wire.JudgeRequest(text=WORDS), timeout=60)
        record, read = await it.docket.trials.record(response.verdict_id), it.reader.calls
    assert response.label == wire.LABEL_UNDECIDED, "the library has nothing comparable"
    assert not response.HasField("picture")
    assert wire.REVIEW_REASON_PICTURE_NOT_SENT in [one.reason for one in response.signals]
    assert (response.text.text, response.text.source) == (WORDS, wire.TEXT_SOURCE_CALLER)
    assert response.HasField("receipt") and response.precedents
    assert not any(one.HasField("picture_similarity") for one in response.precedents)
    assert not record.opened.meme.picture_given and read == 0


@pytest.mark.parametrize("request_", [{}, {"text": ""}, {"text": " \n"}], ids=["nothing", "empty", "blank"])
async def test_a_request_without_picture_and_text_is_an_error(tmp_path, request_):
    async with real_court(tmp_path) as it:
        refusal = await refusal_of(it.judge.Judge(wire.JudgeRequest(**request_), timeout=60))
        trials = await it.docket.index.list(limit=5)
    assert refusal.summary == ("INVALID_ARGUMENT", "PICTURE_EMPTY", "image")
    assert "Neither a picture nor a text was sent" in refusal.message and not trials


async def test_an_operator_can_have_texts_alone_refused(tmp_path):
    async with real_court(tmp_path, text_alone=False) as it:
        pictured = await it.judge.Judge(wire.JudgeRequest(image=IMAGE, text=WORDS), timeout=60)
        refusal = await refusal_of(it.judge.Judge(wire.JudgeRequest(text=WORDS), timeout=60))
    assert pictured.HasField("picture")
    assert refusal.summary == ("INVALID_ARGUMENT", "PICTURE_EMPTY", "image")
    assert "does not judge a text alone" in refusal.message


async def test_the_python_clients_can_judge_without_a_picture(tmp_path):
    async with real_court(tmp_path) as it:

        def ask():
            with Client(it.address) as court:
                one = court.judge(text=WORDS, timeout=60)
                many = dict(
                    court.judge_many(
                        [judge_request(text=WORDS, request_id="a"), judge_request(IMAGE, text=WORDS, request_id="b")]
                    )
                )
                return one, many

        async with AsyncClient(it.address) as court:
            other = await court.judge(text="another text", timeout=60)
        one, many, other = *await asyncio.to_thread(ask), other
    assert not one.message.HasField("picture") and not other.message.HasField("picture")
    assert not many["a"].message.HasField("picture") and many["b"].message.HasField("picture")


async def test_clients_reject_an_empty_file(tmp_path):
    with pytest.raises(ValueError, match="has no bytes"):
        judge_request(b"", text=WORDS)
    async with real_court(tmp_path) as it, AsyncClient(it.address) as court:
        with pytest.raises(JudgeError) as error:
            await court.judge(b"", timeout=60)
        assert error.value.reason == "PICTURE_EMPTY"


# Reuse


async def test_the_same_text_is_tried_once_and_differs_from_one_with_a_picture(tmp_path):
    async with real_court(tmp_path) as it:
        alone = wire.JudgeRequest(text=WORDS, content=wire.Content(namespace="forum"))
        first, *again = [await it.judge.Judge(alone, timeout=60) for _ in range(3)]
        several = await asyncio.gather(*(it.judge.Judge(wire.JudgeRequest(text="at once")) for _ in range(8)))
        others = [
            await it.judge.Judge(wire.JudgeRequest(**fields), timeout=60)
            for fields in (
                {"image": IMAGE, "text": WORDS, "content": alone.content},
                {"text": WORDS.upper(), "content": alone.content},
                {"text": WORDS, "content": wire.Content(namespace="blog")},
            )
        ]
    assert {one.verdict_id for one in again} == {first.verdict_id}
    assert all(one.reused_from.verdict_id == first.verdict_id and not one.reused_from.near for one in again)
    assert len({one.verdict_id for one in several}) == 1
    assert len({first.verdict_id, *(one.verdict_id for one in others)}) == 4


async def test_a_text_that_killed_a_process_affects_no_other_text(tmp_path):
    """Pictures that killed an encoder twice are refused by their digest; texts alone have none."""
    async with real_court(tmp_path) as it:
        find = it.finder.find

        async def die(**_):
            raise Unavailable("The encoder ended.", reason="ENCODER_ENDED")

        it.reception._executor.court.finder.find = die  # type: ignore[method-assign]
        for _ in range(3):
            assert (await refusal_of(it.judge.Judge(wire.JudgeRequest(text="one")))).reason == "ENCODER_ENDED"
        it.reception._executor.court.finder.find = find  # type: ignore[method-assign]
        assert (await it.judge.Judge(wire.JudgeRequest(text="two"), timeout=60)).verdict_id


# The full procedure


async def test_a_text_that_killed_the_model_server_twice_is_quarantined(tmp_path):
    cast = Cast()
    dying = Unavailable("The model server broke off.", reason="MODEL_UNAVAILABLE")
    dying.broke_off = 1

    def die(_):
        raise dying

    cast.models["accuser"] = ScriptedModel(die, name="accuser-model")
    async with real_court(tmp_path) as it:
        executor = it.reception._executor
        full = replace(executor, court=replace(executor.court, role_models=cast.role_models))
        async with TrialRunner(full, it.court._settings) as reception:
            it.court.open(full, reception)
            request = wire.JudgeRequest(text="deadly", procedure=wire.PROCEDURE_FULL)
            ends = [(await refusal_of(it.judge.Judge(request, timeout=60))).summary for _ in range(3)]
            spared = await it.judge.Judge(wire.JudgeRequest(text="deadly", procedure=wire.PROCEDURE_SUMMARY))
            other = wire.JudgeRequest(text="another", procedure=wire.PROCEDURE_FULL)
            other = (await refusal_of(it.judge.Judge(other, timeout=60))).reason
    assert [end[1] for end in ends] == ["MODEL_UNAVAILABLE", "MODEL_UNAVAILABLE", "QUARANTINED"]
    assert ends[-1] == ("INVALID_ARGUMENT", "QUARANTINED", "text")
    assert spared.verdict_id and other == "MODEL_UNAVAILABLE"


# The docket


async def audit(docket):
    """Signs and audits a docket as a whole."""
    await docket.log.sign()
    return await audited(docket)


async def test_a_docket_with_texts_alone_verifies_and_can_be_backed_up(tmp_path):
    async with real_court(tmp_path) as it:
        for text in (WORDS, "another"):
            await it.judge.Judge(wire.JudgeRequest(text=text), timeout=60)
        report = await audit(it.docket)
        place, folder = tmp_path / "docket.sqlite", tmp_path / "backup"
        backup = await back_up(it.docket, place, folder, settings="", software="test", tell=lambda _: None)
    assert report.findings == [] and report.pictures == 0 and report.trials == 2
    assert (backup.trials, backup.pictures) == (2, 0)


async def test_an_erased_text_leaves_no_trace(tmp_path):
    text = "a text that is found nowhere else, 7d1f0c"
    async with real_court(tmp_path) as it:
        first, _ = [await it.judge.Judge(wire.JudgeRequest(text=words), timeout=60) for words in (text, "another")]
        await it.docket.eraser.erase(first.verdict_id, who="ada", why="asked", at=datetime.now(UTC))
        anew = await it.judge.Judge(wire.JudgeRequest(text="another"), timeout=60)
        report = await audit(it.docket)
    assert anew.HasField("reused_from") and report.findings == []
    digest = hashlib.sha256(text.encode())
    for file in tmp_path.glob("docket.sqlite*"):
        if file.is_file():
            contents = file.read_bytes()
            assert text.encode() not in contents and digest.hexdigest().encode() not in contents, file
            assert digest.digest() not in contents, file


# The console


async def test_pages_report_the_missing_picture_and_show_no_broken_image(tmp_path):
    async with real_court(tmp_path) as it:
        response = await it.judge.Judge(wire.JudgeRequest(text=WORDS), timeout=60)
        await it.judge.Judge(wire.JudgeRequest(text=WORDS.upper()), timeout=60)
        trial_id = response.verdict_id
    async with desk_pages(tmp_path, blind_first=False, place=tmp_path / "docket.sqlite") as it:
        # Neither a veiled nor a sharp picture exists.
        ada = await it.person("ada")
        pages = {
            path: await ada.get(path)
            for path in ("/", "/desk", f"/trials/{trial_id}", f"/desk/cases/{trial_id}", f"/trials/{trial_id}/compare")
        }
        similar = await ada.get(f"/desk/cases/{trial_id}/similar")
        veiled = await ada.get(f"/trials/{trial_id}/picture")
        shown = await ada.post(f"/trials/{trial_id}/show", {"of": "meme"})
    assert {page.status_code for page in pages.values()} == {200}
    for path in (f"/trials/{trial_id}", f"/desk/cases/{trial_id}"):
        assert "No picture was sent: the text was judged alone." in page_text(pages[path])
        assert "of=meme" not in pages[path].text and "0×0" not in pages[path].text
    assert "No other trial of this text is kept here." in page_text(pages[f"/trials/{trial_id}/compare"])
    for path in ("/", "/desk"):
        assert f"/trials/{trial_id}/picture" not in pages[path].text and "no picture" in page_text(pages[path])
    assert "the same text" in page_text(similar) and "the same picture" not in page_text(similar)
    assert veiled.status_code == 200 and veiled.headers["content-type"] == "image/png"
    assert shown.status_code == 404 and "No picture was sent." in page_text(shown)


async def test_the_review_queue_shows_a_text_alone(tmp_path):
    async with real_court(tmp_path) as it:
        # The library is too small to be calibrated, so that every verdict requests a review.
        response = await it.judge.Judge(wire.JudgeRequest(text=WORDS), timeout=60)
        assert response.needs_human_review
        trial_id = response.verdict_id
    async with desk_pages(tmp_path, place=tmp_path / "docket.sqlite") as it:
        ada = await it.person("ada")
        queue = await ada.get("/desk")
        decided = await ada.decides(trial_id, "HARMFUL")
        queue = page_text(queue)
        decided = page_text(decided)
        review = (await it.docket.trials.record(trial_id)).last(VerdictReviewed)
    assert WORDS in queue and "no picture" in queue
    assert review.label is Label.HARMFUL and review.blind and "The court:" in decided
