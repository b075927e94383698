"""Topics of the misbeliefs that a target does not understand: words, and pairs of words, that they share.

No model is asked, and nothing is drawn: the same misbeliefs have the same topics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import bm25s  # type: ignore[import-untyped]  # ships no types

from eval.probe.folder import Scored, Step


def most_similar(sentence: str, sentences: Sequence[str], most: int) -> tuple[int, ...]:
    """Places of the sentences that are most like one, the most alike first.

    Sentences that share no word with it come last, and those of equal likeness in the order in which they stand: the
    same sentences always give the same places.
    """
    words, scores = [words_of(each) for each in sentences], [0.0] * len(sentences)
    known = {word for each in words for word in each}
    # Without any common word nothing is alike; and an index can't be made of no word at all.
    if wanted := [word for word in words_of(sentence) if word in known]:
        index = bm25s.BM25()
        index.index(words, show_progress=False)
        scores = [float(score) for score in index.get_scores(wanted)]
    # By place among equals, so that the order is the same each time.
    return tuple(sorted(range(len(sentences)), key=lambda place: (-scores[place], place))[:most])


def words_of(sentence: str) -> list[str]:
    """Words of a sentence in lower case, without stop words."""
    (words,) = bm25s.tokenize([sentence], stopwords="en", return_ids=False, show_progress=False)
    return list(words)


@dataclass(frozen=True, slots=True)
class Topic:
    """Words that several misbeliefs share."""

    words: str
    """One, or two that follow each other but for words that say nothing."""
    n: int
    """Misbeliefs that have them, of those with a score."""
    failed: int
    """Number of those behind a meme that was not understood, as it is or rewritten."""
    mean: float


def topics_of(scored: Sequence[Scored], steps: Sequence[Step], threshold: int) -> tuple[Topic, ...]:
    """Up to 15 topics of failures: those with most failures first, of as many the ones with the lowest scores.

    What fails no more often with the words than without says nothing and is left out. Of words that stand in just the
    same misbeliefs one topic is told: a pair before a single word, and the pair whose words are the rarest.
    """
    misbeliefs = {(one.meme, one.category): one.misbelief for one in scored if one.usable}
    by_pair: dict[tuple[str, str], int] = {}
    every: list[Scored | Step] = [*scored, *steps]
    for one in every:
        pair = (one.meme, one.category)
        if one.score is not None and pair in misbeliefs:
            by_pair[pair] = min(one.score, by_pair.get(pair, one.score))
    # The lowest score of each meme and category, as it is or rewritten, and the misbelief behind it.
    lowest = [(score, misbeliefs[pair]) for pair, score in by_pair.items()]
    if not lowest:
        return ()
    found: dict[str, set[int]] = {}
    for index, (_, misbelief) in enumerate(lowest):
        words = words_of(misbelief)
        # A set, so that a topic counts once for each misbelief. Its order changes from process to process; rarity
        # brings an order of its own, down to the words.
        for topic in {*(" ".join(pair) for pair in pairwise(words)), *words}:
            found.setdefault(topic, set()).add(index)
    failed = {index for index, (score, _) in enumerate(lowest) if score <= threshold}
    usual = len(failed) / len(lowest)

    def rarity(topic: str) -> tuple[int, int, str]:
        words = topic.split()
        return -len(words), sum(len(found[word]) for word in words), topic

    chosen: dict[frozenset[int], str] = {}
    for topic in sorted(found, key=rarity):
        # One topic for the same misbeliefs: a pair goes before its words.
        chosen.setdefault(frozenset(found[topic]), topic)
    # Where everything failed no topic fails more often than usual, and all of them count.
    topics = [
        Topic(words, len(indices), len(indices & failed), sum(lowest[index][0] for index in indices) / len(indices))
        for indices, words in chosen.items()
        if len(indices) >= 2 and len(indices & failed) and (len(indices & failed) / len(indices) > usual or usual == 1)
    ]
    return tuple(sorted(topics, key=lambda one: (-one.failed, one.mean, one.words))[:15])
