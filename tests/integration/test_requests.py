"""Trial requests to a court wired as in a server: real pictures, encoder, library and docket."""

import asyncio

import pytest

from court.errors import NotLoaded
from court.record import TrialState
from serving.judging.judge import TrialRunner
from serving.judging.request import TrialRequest
from serving.settings import Settings
from serving.wiring import open_court
from tests.support.pictures import captioned, encode

MEME = captioned("A picture", "with two lines")


def settings_for(home, tmp_path, **options):
    return Settings(home=home, docket=tmp_path / "docket.sqlite", picture_workers=1, text_workers=1, **options)


def with_runner(settings, send):
    async def scene():
        async with open_court(settings, read_text=False) as court, TrialRunner(court, settings) as runner:
            return await send(runner)

    return asyncio.run(scene())


def test_verdict_is_reused_for_the_same_pixels_in_another_file_only(home, tmp_path):
    settings = settings_for(home, tmp_path)
    files = [encode(MEME, "PNG", compress_level=0), encode(MEME, "PNG", compress_level=9), encode(MEME, "GIF")]
    files += [encode(MEME, "WEBP", lossless=True), encode(MEME, "JPEG", quality=60)]
    assert len(set(files)) == 5

    async def scene(runner):
        return [await runner.answer(TrialRequest(image=file, text="two lines")) for file in files]

    first, *others = with_runner(settings, scene)
    assert not first.reused and first.record.state is TrialState.DECIDED
    lossless = [answer.record.opened.meme.pixels_sha256 == first.record.opened.meme.pixels_sha256 for answer in others]
    assert [answer.reused for answer in others] == lossless
    assert lossless[0] and lossless[2] and not lossless[3]
    # Again with an empty cache, as after a restart: the docket has the verdicts.
    again = with_runner(settings, scene)
    assert [answer.reused for answer in again] == [True] * 5


def test_verdict_is_reused_for_a_near_duplicate_if_configured(home, tmp_path):
    first, similar = encode(MEME, "PNG"), encode(MEME, "JPEG", quality=95)

    async def scene(runner):
        first_result = await runner.answer(TrialRequest(image=first, text="two lines", request_id="first"))
        results = [first_result]
        for number in range(2):
            results.append(
                await runner.answer(TrialRequest(image=similar, text="two lines", request_id=f"near {number}"))
            )
        results.append(await runner.answer(TrialRequest(image=similar, text="two lines", request_id="near 0")))
        results.append(await runner.answer(TrialRequest(image=similar, text="other words", request_id="other")))
        results.append(
            await runner.answer(TrialRequest(image=similar, text="two lines", language="de", request_id="language"))
        )
        return results

    (tmp_path / "on").mkdir()
    answers = with_runner(settings_for(home, tmp_path / "on", reuse_near=True), scene)
    assert [(answer.reused, answer.near) for answer in answers] == [
        (False, False),
        (True, True),
        (True, True),
        (True, True),
        (False, False),
        (False, False),
    ]
    (tmp_path / "off").mkdir()
    answers = with_runner(settings_for(home, tmp_path / "off"), scene)
    assert [(answer.reused, answer.near) for answer in answers[:3]] == [(False, False), (False, False), (True, False)]


def test_expert_witness_without_a_source_of_evidence_is_refused_at_start(home, tmp_path):
    async def scene(runner):
        return None

    always = {"expert": "always"}
    with pytest.raises(NotLoaded, match=r"trial\.expert to off") as caught:
        with_runner(settings_for(home, tmp_path, procedure="SUMMARY", trial=always), scene)
    assert caught.value.reason == "EVIDENCE_SOURCE_MISSING"
