"""A large library through the finder: its fast stage is made, kept, made anew where damaged, and changes no answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from court.precedents import Findings, MinSimilarity, VoteSettings
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

SIZE, DIM = 6000, 48
MADE_BY = {"who": "a reviewer", "why": "as was decided"}
STEPS = ("rows made quick to search", "bytes of vectors read")


class Numbered(Halves):
    """Texts that are numbers become the vectors of these numbers, whose neighbours in their cluster are near."""

    def __init__(self) -> None:
        self.identity = EncoderIdentity(
            name="numbered", digest=f"sha256:{'0' * 64}", text_dim=DIM, picture_dim=DIM, text_tokens=9
        )
        self.floors = MinSimilarity(text=0.1, picture=0.1)

    def embed_texts(self, texts: list[str]) -> TextEmbeddings:
        return TextEmbeddings(unit_rows(np.stack([_half(int(text), 0) for text in texts])), (False,) * len(texts))

    def embed_pictures(self, pictures: list[list[bytes]]) -> NDArray[np.float32]:
        raise AssertionError("no picture is asked for")


ENCODER = Numbered()


def _half(number: int, half: int) -> NDArray[np.float64]:
    centre = np.random.default_rng([1, half, number % 60]).normal(size=DIM)
    return centre + np.random.default_rng([2, half, number]).normal(size=DIM) * 0.7


def _meme(number: int) -> LabelledMeme:
    return LabelledMeme(
        id=f"m{number}",
        label=Label.HARMFUL if number % 3 else Label.NOT_HARMFUL,
        text=str(number),
        source="odd" if number % 2 else "even",
        has_text=True,
        has_picture=True,
    )


def _row(number: int) -> NDArray[np.float32]:
    return unit_rows(np.stack([_half(number, 0), _half(number, 1)])).ravel()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large") / "library"
    _create(root)
    return root


def _create(root: Path, first: int = 0) -> Library:
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
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A library of a thousand memes counts as a large one; how many candidates its fast stage was asked for."""
    numbers: list[int] = []
    original = CandidateIndex.candidates

    def candidates(self: CandidateIndex, query: NDArray[np.float32], n: int) -> object:
        numbers.append(n)
        return original(self, query, n)

    monkeypatch.setattr(finders, "EXACT_UP_TO", 1000)
    monkeypatch.setattr(CandidateIndex, "candidates", candidates)
    return numbers


@pytest.fixture
def finder(written: Path) -> Iterator[LibraryFinder]:
    found = LibraryFinder(Library.open(written, ENCODER.identity), ENCODER)
    yield found
    found.close()


def answers(finder: LibraryFinder) -> list[Findings]:
    draw = random.Random(3)
    where = Filter(sources=("odd",))

    async def found() -> list[Findings]:
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


def warmed(finder: LibraryFinder) -> dict[str, tuple[int, int]]:
    """How far each step was told to be, at last."""
    told: dict[str, tuple[int, int]] = {}
    finder.warm(lambda step, done, total: told.update({step: (done, total)}))
    return told


def fast_file(library: Library) -> Path:
    return library.directory / "fast.faiss"


def test_a_small_library_is_read_and_scanned(written: Path, finder: LibraryFinder) -> None:
    assert warmed(finder) == {STEPS[1]: (SIZE * 2 * DIM * 4, SIZE * 2 * DIM * 4)}
    assert finder._snapshot.base.fast is None
    assert not fast_file(finder.searched).exists()


def test_a_large_one_is_searched_by_candidates_and_finds_the_same(finder: LibraryFinder, asked: list[int]) -> None:
    exact = answers(finder)
    assert not asked
    assert warmed(finder) == {STEPS[0]: (SIZE, SIZE), STEPS[1]: (SIZE * 2 * DIM * 4, SIZE * 2 * DIM * 4)}
    assert answers(finder) == exact
    # The fast stage took part, or this would show nothing.
    assert len(asked) >= 20
    assert warmed(finder) == {}


def test_the_fast_stage_is_kept_for_the_next_start(tmp_path: Path, asked: list[int]) -> None:
    library = _create(tmp_path / "library")
    first = LibraryFinder(library, ENCODER)
    assert STEPS[0] in warmed(first)
    written = fast_file(library).stat().st_mtime_ns
    second = LibraryFinder(Library.open(library.root, ENCODER.identity), ENCODER)
    assert STEPS[0] not in warmed(second)
    assert second._snapshot.base.fast is not None
    assert fast_file(library).stat().st_mtime_ns == written
    assert answers(second) == answers(first)
    for finder in (first, second):
        finder.close()


@pytest.mark.parametrize("damage", ["a bit", "cut", "gone", "sidecar", "another library's"])
def test_a_damaged_fast_stage_is_made_anew(tmp_path: Path, asked: list[int], damage: str) -> None:
    library = _create(tmp_path / "library")
    finder = LibraryFinder(library, ENCODER)
    exact = answers(finder)
    warmed(finder)
    finder.close()
    file = fast_file(library)
    sidecar = file.with_name(f"{file.name}.json")
    sound = file.read_bytes()
    if damage == "a bit":
        flipped = bytearray(sound)
        flipped[len(sound) // 2] ^= 1
        file.write_bytes(flipped)
    elif damage == "cut":
        file.write_bytes(sound[:-100])
    elif damage == "gone":
        file.unlink()
    elif damage == "sidecar":
        sidecar.write_text("{}")
    else:
        other = _create(tmp_path / "other", first=SIZE)
        foreign = LibraryFinder(other, ENCODER)
        warmed(foreign)
        foreign.close()
        for path in (file, sidecar):
            path.write_bytes(fast_file(other).with_name(path.name).read_bytes())

    again = LibraryFinder(Library.open(library.root, ENCODER.identity), ENCODER)
    assert warmed(again)[STEPS[0]] == (SIZE, SIZE)
    asked.clear()
    assert answers(again) == exact
    assert len(asked) >= 20
    again.close()
    third = LibraryFinder(Library.open(library.root, ENCODER.identity), ENCODER)
    assert STEPS[0] not in warmed(third)
    third.close()


def test_live_changes_lie_on_top_of_it(tmp_path: Path, asked: list[int]) -> None:
    library = _create(tmp_path / "library")
    finder = LibraryFinder(library, ENCODER)
    warmed(finder)
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
    asked.clear()
    found = answers(finder)
    assert len(asked) >= 20
    finder.close()

    exact = LibraryFinder(Library.open(library.root, ENCODER.identity), ENCODER)
    assert answers(exact) == found
    exact.close()
    # Some of what was found went in by the changes, or they would not have been tried.
    assert {entry.id for findings in found for entry in findings.tally} - {f"m{number}" for number in range(SIZE)}

    # A new generation has a fast stage of its own, made before it is searched.
    compacted = writer.compact()
    following = LibraryFinder(library, ENCODER)
    following.swap(compacted)
    assert fast_file(compacted).exists()
    assert following._snapshot.base.fast is not fast
    assert [[(e.id, e.similarity) for e in one.tally] for one in answers(following)] == [
        [(e.id, e.similarity) for e in one.tally] for one in found
    ]
    following.close()


def test_what_takes_long_is_told_in_tenths(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("serving.wiring.time.monotonic", lambda: clock[0])
    said: list[str] = []
    progress = _warming(said.append)
    for done in range(101):
        progress(STEPS[0], done, 100)
    assert said == []
    for done in range(0, 10_001, 500):
        clock[0] += 1.0
        progress(STEPS[1], done, 10_000)
    assert said[0] == "Warming the precedent library: 10 % of 10,000 bytes of vectors read …"
    assert [line.split(": ")[1].split(" %")[0] for line in said] == [str(10 * tenth) for tenth in range(1, 11)]
