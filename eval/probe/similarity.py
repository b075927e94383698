"""Ranking of sentences by similarity to another one: BM25 (Robertson & Zaragoza 2009), computed by bm25s."""

from __future__ import annotations

from collections.abc import Sequence

import bm25s  # type: ignore[import-untyped]  # ships no types


def most_similar(sentence: str, sentences: Sequence[str], most: int) -> tuple[int, ...]:
    """Places of the sentences that are most like one, the most alike first.

    Sentences that share no word with it come last, and those of equal likeness in the order in which they stand: the
    same sentences always give the same places.

    Args:
        sentences: Sentences in any language; English function words are ignored.
    """
    scores = _scores(sentence, sentences)
    # By place among equals, so that the order is the same each time.
    return tuple(sorted(range(len(sentences)), key=lambda index: (-scores[index], index))[:most])


def words_of(sentence: str) -> list[str]:
    """Words of a sentence in lower case, without stop words."""
    (words,) = bm25s.tokenize([sentence], stopwords="en", return_ids=False, show_progress=False)
    return list(words)


def _scores(query: str, sentences: Sequence[str]) -> list[float]:
    words = [words_of(sentence) for sentence in sentences]
    known = {word for each in words for word in each}
    wanted = [word for word in words_of(query) if word in known]
    if not wanted:  # among them the case that there is no word at all, which an index can't be made of
        return [0.0] * len(sentences)
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    return [float(score) for score in index.get_scores(wanted)]
