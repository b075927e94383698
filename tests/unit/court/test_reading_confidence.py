"""Tests of the reading confidence of stacked letters: each is read with certainty, yet the words are nonsense."""

import asyncio
from io import BytesIO

import pytest
from PIL import Image, ImageDraw, ImageFont

from court.backends.ocr.reader import open_reader
from court.backends.pictures.reader import GuardedPictureReader
from court.events import TextLine, TextRead, TextSource
from court.summary import reading_confidence, stacked_letters, unsure_text


def line(text, left, top, size=60, confidence=1.0, frame=0):
    right, bottom = left + size, top + size
    box = ((left, top), (right, top), (right, bottom), (left, bottom))
    return TextLine(text=text, confidence=confidence, box=box, frame=frame)


def column(word, left=30, gap=10):
    return [line(letter, left, 20 + number * (60 + gap)) for number, letter in enumerate(word)]


@pytest.mark.parametrize(
    ("lines", "stacked"),
    [
        (column("BLUE"), 4),
        ([*column("GO"), *column("AWAY", left=200)], 6),
        ([line("OP", 30, 20), *column("BLUE", left=200)], 4),
        (column("BLU"), 0),  # a list of three
        (column("BLUE", gap=90), 0),  # tick labels of a scale
        ([line(letter, 30 + 70 * number, 20) for number, letter in enumerate("BLUE")], 0),
        ([line("?!", 30, 20 + 70 * number) for number in range(5)], 0),
        ([line(letter, 30, 20 + 70 * number, frame=number) for number, letter in enumerate("BLUE")], 0),
        ([line("A", 200 * number, 0) for number in range(4000)], 4000),
        ([line("PEOPLE", 30, 20 + 70 * number) for number in range(5)], 0),
    ],
    ids=[
        "one word",
        "two",
        "some",
        "three",
        "far apart",
        "in a row",
        "marks",
        "in different frames",
        "very many",
        "words",
    ],
)
def test_four_letters_close_below_each_other_count_as_stacked(lines, stacked):
    assert len(stacked_letters(lines)) == stacked


def read(draw_on):
    """Reads the drawn picture with the real text reader."""
    still = Image.new("RGB", (600, 600), "white")
    draw_on(ImageDraw.Draw(still))
    png = BytesIO()
    still.save(png, "PNG")

    async def work():
        pictures, reader = GuardedPictureReader(), open_reader("rapidocr", workers=1)
        try:
            return await reader.read(await pictures.read(png.getvalue()))
        finally:
            await reader.aclose()
            await pictures.aclose()

    return asyncio.run(work())


def reasons(reading):
    text = TextRead(
        trial_id="t",
        seq=2,
        at="2026-01-01T00:00:00Z",
        text=reading.text,
        source=TextSource.OCR,
        lines=reading.lines,
        latency_s=0.0,
    )
    return reading_confidence(text), unsure_text(text)


def test_reading_of_stacked_letters_has_low_confidence_and_a_review_reason():
    def stacked(draw):
        for place, word in enumerate(("PEOPLE", "BLUELAND")):
            for number, letter in enumerate(word):
                draw.text((80 + 150 * place, 20 + 64 * number), letter, "black", ImageFont.load_default(58))

    reading = read(stacked)
    assert len(reading.lines) >= 8  # each letter is read
    confidence, (review,) = reasons(reading)
    assert confidence < 0.3 and review.reason == "TEXT_UNSURE" and "one under another" in review.detail


def test_reading_of_words_in_rows_keeps_the_confidence_of_its_lines():
    def rows(draw):
        for number, words in enumerate(("PEOPLE FROM BLUELAND", "A", "DRINK SOUP")):
            draw.text((40, 30 + 80 * number), words, "black", ImageFont.load_default(44))

    confidence, found = reasons(read(rows))
    assert confidence > 0.9 and found == ()
