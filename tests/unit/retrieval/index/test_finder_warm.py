"""The candidate index of a large library in the finder: built, saved, rebuilt if damaged, without altering results."""

import asyncio
import random
from functools import cache

import numpy as np
import pytest

from court.precedents import MinSimilarity, VoteSettings
from court.verdict import Label
from retrieval.embed.encoder import EncoderIdentity, Halves, TextEmbeddings, unit_rows
from retrieval.index.candidates import CandidateIndex
from retrieval.library.filters import Filter
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from retrieval.library.writer import LibraryWriter
from retrieval.precedents import finder as finders
from retrieval.precedents.finder import LibraryFinder
from serving.wiring import _warming

SIZE, DIM = 2000, 48
MADE_BY = {"who": "a reviewer", "why": "as was decided"}
STEPS = ("rows made quick to search", "bytes of vectors read")


class NumberEncoder(Halves):
    """Encodes texts that are numbers; numbers of the same cluster get similar vectors."""

    def __init__(self):
        self.identity = EncoderIdentity(
            name="numbered", digest=f"sha256:{'0' * 64}", text_dim=DIM, picture_dim=DIM, text_tokens=9
        )
        self.floors = MinSimilarity(text=0.1, picture=0.1)

    def embed_texts(self, texts):
        return TextEmbeddings(unit_rows(np.stack([_half(int(text), 0) for text in texts])), (False,) * len(texts))

    def embed_pictures(self, pictures):
        raise AssertionError("no picture is embedded here")


ENCODER = NumberEncoder()


@cache
def _centre(cluster, half):
    return np.random.default_rng([1, half, cluster]).normal(size=DIM)


@cache
def _half(number, half):
    return _centre(number % 60, half) + np.random.default_rng([2, half, number]).normal(size=DIM) * 0.7


def _meme(number):
    return LabelledMeme(
        id=f"m{number}",
        label=Label.HARMFUL if number % 3 else Label.NOT_HARMFUL,
        text=str(number),
        source="odd" if number % 2 else "even",
        has_text=True,
        has_picture=True,
    )


def _row(number):
    return unit_rows(np.stack([_half(number, 0), _half(number, 1)])).ravel()


@pytest.fixture(scope="module")
def large_library(tmp_path_factory):
    root = tmp_path_factory.mktemp("large") / "library"
    _create(root)
    return root


def _create(root, first=0):
    return Library.create(
        root,
        name="large",
        encoder=ENCODER.identity,
        memes=[_meme(number) for number in range(first, first + SIZE)],
        rows=np.stack([_row(number) for number in range(first, first + SIZE)]),
        tuning=Tuning(
            alpha=1.0,
            vote=VoteSettings(k=7, tau=0.1, prior=0.5),
            floors=MinSimilarity(text=0.3, picture=0.5),
            calibration=Calibration(method="defaults", n=0, majority=0.5),
        ),
        replace=True,
    )


@pytest.fixture
def candidate_counts(monkeypatch):
    """Numbers of candidates requested from candidate indexes; a library of a thousand memes counts as large here."""
    numbers: list[int] = []
    original = CandidateIndex.candidates

    def candidates(self, query, n):
        numbers.append(n)
        return original(self, query, n)

    monkeypatch.setattr(finders, "EXACT_UP_TO", 1000)
    monkeypatch.setattr(CandidateIndex, "candidates", candidates)
    return numbers


@pytest.fixture
def finder(large_library):
    found = LibraryFinder(Library.open(large_library, ENCODER.identity), ENCODER)
    yield found
    found.close()


def search_results(finder):
    draw = random.Random(3)
    where = Filter(sources=("odd",))

    async def found():
        return [
            await finder.find(
                text=str(draw.randrange(2 * SIZE)),
                frames=(),
                pixels_sha256="",
                exhibits=3,
                tally=12,
                alpha=None,
                exclude=exclude,
                where=chosen,
            )
            for exclude in ((), ("m5", "m6", "m7"))
            for chosen in (None, where)
            for _ in range(15)
        ]

    return asyncio.run(found())


def warm(finder):
    """Warms the finder, and returns the last progress reported for each step."""
    progress: dict[str, tuple[int, int]] = {}
    finder.warm(lambda step, done, total: progress.update({step: (done, total)}))
    return progress


def index_file(library):
    return library.directory / "fast.faiss"


def test_small_library_is_scanned_without_a_candidate_index(large_library, finder):
    assert warm(finder) == {STEPS[1]: (SIZE * 2 * DIM * 4, SIZE * 2 * DIM * 4)}
    assert finder._snapshot.base.fast is None
    assert not index_file(finder.searched).exists()


def test_candidate_search_of_a_large_library_gives_identical_results(finder, candidate_counts):
    exact = search_results(finder)
    assert not candidate_counts
    assert warm(finder) == {STEPS[0]: (SIZE, SIZE), STEPS[1]: (SIZE * 2 * DIM * 4, SIZE * 2 * DIM * 4)}
    assert search_results(finder) == exact
    # Without this, the comparison would hold even if the candidate index were never used.
    assert len(candidate_counts) >= 20
    assert warm(finder) == {}


def test_candidate_index_is_saved_for_the_next_start(tmp_path, candidate_counts):
    library = _create(tmp_path / "library")
    first = LibraryFinder(library, ENCODER)
    assert STEPS[0] in warm(first)
    saved_at = index_file(library).stat().st_mtime_ns
    second = LibraryFinder(Library.open(library.root, ENCODER.identity), ENCODER)
    assert STEPS[0] not in warm(second)
    assert second._snapshot.base.fast is not None
    assert index_file(library).stat().st_mtime_ns == saved_at
    assert search_results(second) == search_results(first)
    for finder in (first, second):
        finder.close()


def test_live_changes_are_applied_on_top_of_the_candidate_index(tmp_path, candidate_counts):
    library = _create(tmp_path / "library")
    finder = LibraryFinder(library, ENCODER)
    warm(finder)
    fast = finder._snapshot.base.fast
    writer, draw = LibraryWriter(library), random.Random(5)
    for number in draw.sample(range(SIZE, 2 * SIZE), 60):
        writer.add(_meme(number), _row(number), None, **MADE_BY)
    for number in draw.sample(range(SIZE), 60):
        writer.remove(f"m{number}", **MADE_BY)
    for number in draw.sample(range(SIZE), 60):
        if writer.library.row_of(f"m{number}") is not None:
            other = Label.NOT_HARMFUL if _meme(number).harmful else Label.HARMFUL
            writer.relabel(f"m{number}", other, **MADE_BY)
    finder.swap(writer.library)
    assert finder._snapshot.base.fast is fast is not None
    candidate_counts.clear()
    found = search_results(finder)
    assert len(candidate_counts) >= 20
    finder.close()

    exact = LibraryFinder(Library.open(library.root, ENCODER.identity), ENCODER)
    assert search_results(exact) == found
    exact.close()
    # Some results come from the changes, so the changes were in fact searched.
    assert {entry.id for findings in found for entry in findings.tally} - {f"m{number}" for number in range(SIZE)}

    # A new generation gets its own candidate index, built before it is searched.
    compacted = writer.compact()
    following = LibraryFinder(library, ENCODER)
    following.swap(compacted)
    assert index_file(compacted).exists()
    assert following._snapshot.base.fast is not fast
    assert [[(e.id, e.similarity) for e in one.tally] for one in search_results(following)] == [
        [(e.id, e.similarity) for e in one.tally] for one in found
    ]
    following.close()


def test_slow_warming_is_reported_in_steps_of_ten_percent(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("serving.wiring.time.monotonic", lambda: clock[0])
    messages: list[str] = []
    progress = _warming(messages.append)
    for done in range(101):
        progress(STEPS[0], done, 100)
    assert messages == []
    for done in range(0, 10_001, 500):
        clock[0] += 1.0
        progress(STEPS[1], done, 10_000)
    assert messages[0] == "Warming the precedent library: 10 % of 10,000 bytes of vectors read …"
    assert [line.split(": ")[1].split(" %")[0] for line in messages] == [str(10 * tenth) for tenth in range(1, 11)]
