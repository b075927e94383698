"""Requests at the court as it is wired for a server: real pictures, encoder, library and docket."""

import asyncio
import subprocess
import sys
import textwrap

import pytest

from court.errors import BadRequest, NotLoaded
from court.record import TrialState
from serving.docket.ports import RequestName
from serving.runner.request import RequiredVersions, TrialRequest
from serving.runner.runner import TrialRunner
from serving.settings import Settings
from serving.wiring import open_court
from tests.support.pictures import captioned, encode

MEME = captioned("A picture", "with two lines")


def settings_for(home, tmp_path, **given):
    return Settings(home=home, docket=tmp_path / "docket.sqlite", picture_workers=1, text_workers=1, **given)


def served(settings, work):
    async def scene():
        async with open_court(settings, read_text=False) as house, TrialRunner(house, settings) as reception:
            return await work(reception)

    return asyncio.run(scene())


def test_the_same_pixels_in_another_file_are_known_and_other_pixels_are_not(home, tmp_path):
    settings = settings_for(home, tmp_path)
    files = [encode(MEME, "PNG", compress_level=0), encode(MEME, "PNG", compress_level=9), encode(MEME, "GIF")]
    files += [encode(MEME, "WEBP", lossless=True), encode(MEME, "JPEG", quality=60)]
    assert len(set(files)) == 5

    async def scene(reception):
        return [await reception.answer(TrialRequest(image=file, text="two lines")) for file in files]

    first, *others = served(settings, scene)
    assert not first.reused and first.record.state is TrialState.DECIDED
    lossless = [answer.record.opened.meme.pixels_sha256 == first.record.opened.meme.pixels_sha256 for answer in others]
    assert [answer.reused for answer in others] == lossless
    assert lossless[0] and lossless[2] and not lossless[3]
    # Again, by another process that knows nothing yet.
    again = served(settings, scene)
    assert [answer.reused for answer in again] == [True] * 5


def test_the_same_picture_with_other_text_is_not_given_an_earlier_verdict(home, tmp_path):
    settings = settings_for(home, tmp_path)
    file = encode(MEME, "PNG")

    async def scene(reception):
        return [await reception.answer(TrialRequest(image=file, text=f"text number {number}")) for number in range(3)]

    answers = served(settings, scene)
    assert len({answer.record.trial_id for answer in answers}) == 3 and not any(each.reused for each in answers)


def test_where_the_operator_allows_it_a_nearly_same_meme_is_given_the_earlier_verdict(home, tmp_path):
    first, nearly = encode(MEME, "PNG"), encode(MEME, "JPEG", quality=95)

    async def scene(reception):
        first_of = await reception.answer(TrialRequest(image=first, text="two lines", request_id="first"))
        results = [first_of]
        for number in range(2):
            results.append(
                await reception.answer(TrialRequest(image=nearly, text="two lines", request_id=f"near {number}"))
            )
        results.append(await reception.answer(TrialRequest(image=nearly, text="two lines", request_id="near 0")))
        results.append(await reception.answer(TrialRequest(image=nearly, text="other words", request_id="other")))
        results.append(
            await reception.answer(TrialRequest(image=nearly, text="two lines", language="de", request_id="language"))
        )
        return results

    (tmp_path / "on").mkdir()
    found = served(settings_for(home, tmp_path / "on", reuse_near=True), scene)
    assert [(answer.reused, answer.near) for answer in found] == [
        (False, False),
        (True, True),
        (True, True),
        (True, True),
        (False, False),
        (False, False),
    ]
    (tmp_path / "off").mkdir()
    found = served(settings_for(home, tmp_path / "off"), scene)
    assert [(answer.reused, answer.near) for answer in found[:3]] == [(False, False), (False, False), (True, False)]


def test_a_pin_on_the_library_that_is_searched_holds(home, tmp_path):
    settings, file = settings_for(home, tmp_path), encode(MEME, "PNG")

    async def scene(reception):
        first = await reception.answer(TrialRequest(image=file, text="x"))
        loaded = first.record.opened.versions.library
        assert (
            await reception.answer(TrialRequest(image=file, text="x", pins=RequiredVersions(library=loaded)))
        ).reused
        with pytest.raises(NotLoaded) as caught:
            await reception.answer(TrialRequest(image=file, text="x", pins=RequiredVersions(library="sha256:0")))
        return caught.value

    assert served(settings, scene).field == "pins.library"


CRASH = """
    import asyncio, os, sys
    from pathlib import Path
    from serving.runner.request import TrialRequest
    from serving.wiring import open_court
    from serving.runner.runner import TrialRunner
    from serving.settings import Settings

    async def main():
        settings = Settings(home=Path(sys.argv[1]), docket=Path(sys.argv[2]), picture_workers=1, text_workers=1)
        async with open_court(settings, read_text=False) as house:
            async def watch(event):
                if event.kind == "TextRead":
                    print(event.trial_id, flush=True)
                    os._exit(9)

            async with TrialRunner(house, settings) as reception:
                house.feed.subscribe(watch)
                await reception.answer(
                    TrialRequest(image=Path(sys.argv[3]).read_bytes(), text="two lines", request_id="cut")
                )

    asyncio.run(main())
"""


def test_what_a_killed_process_left_is_taken_over_by_the_next(home, tmp_path, monkeypatch):
    monkeypatch.setattr("serving.runner.heartbeat.DEAD_S", 1.0)
    monkeypatch.setattr("serving.runner.heartbeat.BEAT_S", 0.1)
    settings, file = settings_for(home, tmp_path), tmp_path / "meme.png"
    file.write_bytes(encode(MEME, "PNG"))
    command = [sys.executable, "-c", textwrap.dedent(CRASH), str(home), str(settings.docket), str(file)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == 9, killed.stderr
    trial_id = killed.stdout.strip()

    async def scene(reception):
        assert await reception.trial_of(RequestName("", "cut")) == trial_id
        return await reception.answer(TrialRequest(image=file.read_bytes(), text="two lines", request_id="cut"))

    answer = served(settings, scene)
    assert answer.record.trial_id == trial_id and answer.record.state is TrialState.DECIDED
    kinds = [event.kind for event in answer.record.events]
    assert kinds.count("TrialResumed") == kinds.count("TrialOpened") == kinds.count("PrecedentsCited") == 1


def test_a_court_does_not_open_with_an_expert_witness_and_no_source_of_evidence(home, tmp_path):
    async def scene(reception):
        return None

    always = {"expert": "always"}
    with pytest.raises(NotLoaded, match=r"trial\.expert to off") as caught:
        served(settings_for(home, tmp_path, procedure="SUMMARY", trial=always), scene)
    assert caught.value.reason == "EVIDENCE_SOURCE_MISSING"
    gone = f"onnx:{tmp_path / 'gone'}"
    with pytest.raises(BadRequest, match="is no folder"):
        served(settings_for(home, tmp_path, procedure="SUMMARY", trial=always, entailment=gone), scene)
