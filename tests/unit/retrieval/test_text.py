from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.text import normalise_text, text_key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Two\n words ", "two words"),
        ("see https://example.org/a?b=c now", "see now"),
        ("see WWW.Example.ORG now", "see now"),
        ("laugh made with imgflip.com", "laugh"),
        ("laugh memes.example.co.uk/page", "laugh"),
        ("laugh quickmeme . com", "laugh"),
        ("by @some_body and friends", "by and friends"),
        ("from r/jokes", "from"),
        ("write to me@work today", "write to me@work today"),
        ("what???? no!!!", "what? no!"),
        ("“it’s”", '"it\'s"'),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER A}bc", "abc"),
        ("at 3.5 percent", "at 3.5 percent"),
        ("end.Next sentence", "end.next sentence"),
        ("@only_a_handle", "@only_a_handle"),
        ("", ""),
        (" \n\t", ""),
    ],
)
def test_normalised_text(text: str, expected: str) -> None:
    assert normalise_text(text) == expected


@given(st.text(max_size=200))
def test_normalising_never_empties_a_text_and_ignores_case_and_spacing(text: str) -> None:
    normal = normalise_text(text)
    assert bool(normal) == bool(text_key(text))
    assert normal == " ".join(normal.split())
    assert text_key(f" {text}\n") == text_key(text)


@pytest.mark.parametrize("piece", ["a", "a-", "a.", "@ ", ". ", "www ", "made with ", "made ", "ab.", "- ", "_", "/r/"])
def test_normalising_repetitive_text_is_fast(piece: str) -> None:
    began = time.process_time()
    normalise_text(piece * (10_000 // len(piece)))
    assert time.process_time() - began < 1
