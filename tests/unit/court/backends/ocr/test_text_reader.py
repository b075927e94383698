import asyncio
import subprocess
import sys
import unicodedata
from contextlib import aclosing

import pytest
from PIL import Image, ImageDraw, ImageFont

from court.backends.ocr.reader import rapidocr_reader
from court.backends.ocr.worker_reader import in_reading_order
from court.backends.sandbox.process import Death, GuardedWorkers, JobFailed, Reply, WorkerDied
from court.errors import Overrun, Unavailable
from court.events import TextLine
from tests.support.pictures import captioned, decoded, encode, read_pictures

SMALL = "and this is what the small print says about it"


def small_beside_large():
    """Letters of 11 pixels under letters of 100 pixels on a picture of 1280 pixels."""
    still = captioned("HUGE", size=(1280, 960), height=100)
    ImageDraw.Draw(still).text((700, 800), SMALL, font=ImageFont.load_default(size=11), fill=(20, 20, 30))
    return still


def tall():
    """A strip of 400 x 6000 pixels; at 1280 of height its letters would be four pixels high."""
    still = Image.new("RGB", (400, 6000), (235, 235, 235))
    for number in range(4):
        place = (20, 300 + 1500 * number)
        ImageDraw.Draw(still).text(
            place, f"part {number} of it", font=ImageFont.load_default(size=22), fill=(20, 20, 30)
        )
    return still


@pytest.fixture(scope="module")
def readings():
    """All readings come from one process, because starting it is the expensive part."""
    side_by_side = captioned("LEFT", size=(640, 480))
    side_by_side.paste(captioned("RIGHT", size=(300, 100)), (340, 4))
    pictures = {
        "two lines": decoded(captioned("WHEN THE CAT", "SEES THE SNOW")),
        "two frames": decoded(captioned("FIRST STILL"), captioned("SECOND STILL"), step=3),
        "side by side": decoded(side_by_side),
        "nothing": decoded(Image.new("RGB", (300, 300), (90, 140, 90))),
        "one pixel": decoded(Image.new("RGB", (1, 1), (90, 140, 90))),
        "a thread": decoded(Image.new("RGB", (1, 1280), (90, 140, 90))),
        "a strip": decoded(captioned("A LONG STRIP", size=(1280, 100))),
        "small beside large": decoded(small_beside_large()),
        "a quarter right": decoded(captioned("FIRST LINE", "SECOND LINE").rotate(-90, expand=True)),
        "half": decoded(captioned("FIRST LINE", "SECOND LINE").rotate(180)),
        "a quarter left": decoded(captioned("FIRST LINE", "SECOND LINE").rotate(90, expand=True)),
        "tilted": decoded(captioned("UP THE HILL", height=40).rotate(12, fillcolor=(225, 230, 240))),
    }

    async def read_all():
        pictures["long"] = (await read_pictures(encode(tall(), "PNG")))[0]
        async with aclosing(rapidocr_reader(threads=2)) as reader:
            await reader.warm()
            return {name: await reader.read(one) for name, one in pictures.items()}

    return asyncio.run(read_all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("side by side", ["LEFT", "RIGHT"]),
        ("small beside large", ["HUGE", SMALL]),
        ("tilted", ["UP THE HILL"]),
        *((name, []) for name in ("nothing", "one pixel", "a thread")),
    ],
)
def test_lines_of_each_picture_are_read(readings, name, lines):
    assert [line.text for line in readings[name].lines] == lines


@pytest.mark.slow
def test_lines_are_read_from_the_top(readings):
    lines = readings["two lines"].lines
    assert [line.text for line in lines] == ["WHEN THE CAT", "SEES THE SNOW"]
    for line, top in zip(lines, (30, 142), strict=True):
        assert 0.8 < line.confidence <= 1
        (x0, y0), (x1, y1), (x2, y2), (x3, y3) = line.box
        assert x0 < x1 and x3 < x2 and y0 < y3 and y1 < y2, "clockwise from the upper left"
        assert abs(x0 - 30) < 20 and abs(y0 - top) < 30
        assert max(x1, x2) <= 640 and max(y2, y3) <= 480


@pytest.mark.slow
def test_each_frame_is_read_and_named_by_its_index(readings):
    assert [(line.text, line.frame) for line in readings["two frames"].lines] == [
        ("FIRST STILL", 0),
        ("SECOND STILL", 3),
    ]


@pytest.mark.slow
def test_very_wide_frame_is_read_with_boxes_inside_the_frame(readings):
    (line,) = readings["a strip"].lines
    assert line.text == "A LONG STRIP"
    assert max(y for _, y in line.box) <= 100


@pytest.mark.parametrize(
    ("name", "text_runs"), [("a quarter right", (0, 1)), ("half", (-1, 0)), ("a quarter left", (0, -1))]
)
@pytest.mark.slow
def test_rotated_picture_is_read_in_its_own_order_with_rotated_boxes(readings, name, text_runs):
    lines = readings[name].lines
    assert [line.text for line in lines] == ["FIRST LINE", "SECOND LINE"]
    for line in lines:
        (x0, y0), (x1, y1) = line.box[:2]
        along = (x1 - x0) * text_runs[0] + (y1 - y0) * text_runs[1]
        assert along > 200, "from the first corner to the second, as it is read"


@pytest.mark.slow
def test_long_picture_is_read_at_a_legible_size_with_boxes_on_its_frame(readings):
    lines = readings["long"].lines
    assert [line.text for line in lines] == [f"part {number} of it" for number in range(4)]
    for number, line in enumerate(lines):
        assert max(y for _, y in line.box) <= 1280 and abs(line.box[0][1] - (300 + 1500 * number) * 1280 / 6000) < 6


def test_identity_names_engine_and_models():
    assert rapidocr_reader().identity.startswith("rapidocr/3.")
    assert rapidocr_reader().identity.endswith(" PP-OCRv6-small, coarse to fine 1")


def test_parent_process_imports_no_dependency_of_its_workers():
    program = (
        "import sys, court.backends.ocr.reader as t, court.backends.pictures.reader\n"
        "t.rapidocr_reader()\n"
        "print([m for m in ('numpy', 'onnxruntime', 'rapidocr', 'PIL', 'cv2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "[]"


async def read_after(monkeypatch, answer):
    """The reading for this answer of the worker."""

    async def run(self, body, payloads=()):
        if isinstance(answer, Exception):
            raise answer
        return Reply(answer, [], 0.1, 1)

    monkeypatch.setattr(GuardedWorkers, "run", run)
    return await rapidocr_reader().read(decoded(Image.new("RGB", (9, 9))))


BOX = [[0.0, 0.0], [9.0, 0.0], [9.0, 5.0], [0.0, 5.0]]


@pytest.mark.parametrize(
    "answer",
    [
        JobFailed("RuntimeError"),
        WorkerDied(Death.CRASHED, "signal SIGSEGV"),
        {},
        {"lines": None},
        {"lines": [{"text": "x", "confidence": 0.5}]},
        {"lines": [{"text": "x", "confidence": float("nan"), "box": BOX}]},
        {"lines": [{"text": "x", "confidence": 0.5, "box": BOX[:3]}]},
        {"lines": [{"text": "x", "confidence": 0.5, "box": BOX}] * 1001},
    ],
)
async def test_worker_failure_is_an_error_and_never_an_empty_text(monkeypatch, answer):
    with pytest.raises(Unavailable) as caught:
        await read_after(monkeypatch, answer)
    assert caught.value.reason == "TEXT_READER_FAILED"


async def test_external_kill_of_a_worker_is_not_blamed_on_the_picture(monkeypatch):
    with pytest.raises(Unavailable, match="Ask again") as caught:
        await read_after(monkeypatch, WorkerDied(Death.KILLED, "signal SIGKILL"))
    assert caught.value.reason == "TEXT_READER_KILLED" and caught.value.retry_after


async def test_overrun_is_passed_on_unchanged(monkeypatch):
    with pytest.raises(Overrun):
        await read_after(monkeypatch, Overrun("No time."))


async def test_text_is_in_nfc_without_control_characters(monkeypatch):
    texts = ["cafe\u0301 \x00\x1b[31m", "\x07\x85", "  ", "a\u2028b\r\nc"]
    lines = [{"text": text, "confidence": 1.0000001, "box": BOX} for text in texts]
    reading = await read_after(monkeypatch, {"lines": lines})
    assert [line.text for line in reading.lines] == ["café [31m", "a b c"]
    assert all(unicodedata.is_normalized("NFC", line.text) for line in reading.lines)
    assert {line.confidence for line in reading.lines} == {1.0}


async def test_warming_fails_if_the_sample_is_misread(monkeypatch):
    await read_after(monkeypatch, {"lines": []})
    with pytest.raises(Unavailable):
        await rapidocr_reader().warm()


def line(text, left, top, height=10.0, width=30.0, slant=0.0):
    upper = (left, top), (left + width, top + slant)
    lower = (left + width, top + slant + height), (left, top + height)
    return TextLine(text=text, confidence=1, box=(*upper, *lower), frame=0)


def with_rotated_corners(one, corners):
    return one.model_copy(update={"box": (*one.box[corners:], *one.box[:corners])})


def running_down(one):
    return with_rotated_corners(one, 1)


def upside_down(one):
    return with_rotated_corners(one, 2)


def running_up(one):
    return with_rotated_corners(one, 3)


@pytest.mark.parametrize(
    ("lines", "order"),
    [
        ([line("c", 0, 40), line("a", 0, 0), line("b", 0, 20)], "abc"),
        ([line("b", 50, 0), line("a", 0, 3), line("c", 100, -3)], "abc"),
        ([line("d", 50, 21), line("a", 0, 2), line("b", 50, 0), line("c", 0, 20)], "abcd"),
        ([line("b", 50, 6, height=4), line("a", 0, 0, height=20)], "ab"),
        ([line("a", 90, 0), line("b", 60, 4), line("c", 30, 8), line("d", 0, 12)], "badc"),
        ([line("a", 0, 0, slant=8), line("b", 0, 14, slant=8)], "ab"),
        ([line("b", 9, 5, height=0), line("a", 0, 0)], "ab"),
        ([upside_down(line("a", 0, 40)), upside_down(line("b", 0, 0))], "ab"),
        ([upside_down(line("b", 0, 0)), upside_down(line("a", 50, 3))], "ab"),
        ([line("a", 0, 0), line("c", 0, 40), upside_down(line("b", 0, 20, width=50))], "abc"),
        (
            [running_down(line("a", 80, 0, height=60, width=9)), running_down(line("b", 60, 0, height=60, width=9))],
            "ab",
        ),
        (
            [running_down(line("b", 80, 70, height=60, width=9)), running_down(line("a", 79, 0, height=60, width=9))],
            "ab",
        ),
        ([running_up(line("a", 0, 0, height=60, width=9)), running_up(line("b", 20, 0, height=60, width=9))], "ab"),
        ([], ""),
    ],
)
def test_lines_are_put_in_reading_order(lines, order):
    assert "".join(ordered.text for ordered in in_reading_order(lines)) == order
    assert "".join(ordered.text for ordered in in_reading_order(lines[::-1])) == order
