import pytest

from court.errors import BadText
from court.meme import LIMITS, Picture
from tests.support.fakes import a_meme, a_picture


def test_oversized_text_is_refused_with_its_length_and_the_limit():
    with pytest.raises(BadText) as caught:
        a_meme("x" * 1_000_000)
    assert "1,000,000" in caught.value.message and "10,000" in caught.value.message
    assert (caught.value.field, caught.value.reason) == ("text", "TEXT_TOO_LONG")
    assert a_meme("x" * LIMITS.max_text).text


def test_lone_surrogate_is_refused():
    with pytest.raises(BadText, match="surrogate"):
        a_meme("half \ud83d")


def test_picture_without_a_frame_is_refused():
    values = {name: getattr(a_picture(), name) for name in Picture.__slots__}
    with pytest.raises(ValueError, match="frame"):
        Picture(**{**values, "frames": ()})
