"""The contract of precedent finders, for each kind: over a library on disk and over a database."""

import asyncio
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from court.errors import BadRequest
from court.verdict import Label
from retrieval.library.changes import ChangeKind
from retrieval.library.filters import Filter
from retrieval.library.manifest import Safeguards
from retrieval.library.postgres.push import push_library
from retrieval.library.postgres.writer import PostgresWriter
from retrieval.library.thumbnails import shrink
from retrieval.library.writer import LibraryWriter
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder
from tests.support.encoders import picture_of
from tests.support.libraries import ENCODER, EPOCH, PICTURES, WORDS, drawn_library, drawn_meme

MADE_BY = {"who": "a reviewer", "why": "as was decided"}


@dataclass
class Place:
    """A library with its finder and its writer."""

    finder: LibraryFinder | PgvectorFinder
    writer: LibraryWriter | PostgresWriter

    def find(self, text="", png=None, **kwargs):
        if isinstance(self.finder, LibraryFinder) and isinstance(self.writer, LibraryWriter):
            self.finder.swap(self.writer.library)
        picture = picture_of(png) if png else None
        options: dict[str, Any] = {"exhibits": 3, "tally": 25, "alpha": None} | kwargs
        return asyncio.run(
            self.finder.find(
                text=text,
                frames=picture.frames if picture else (),
                pixels_sha256=picture.pixels_sha256 if picture else "",
                **options,
            )
        )

    def pictures(self, *ids):
        return list(asyncio.run(self.finder.pictures(ids)))

    def ids(self):
        """Returns the ids of all precedents."""
        return {entry.id for entry in self.find("cat", PICTURES[1], tally=1000).tally}


@pytest.fixture
def on_disk():
    finders: list[LibraryFinder] = []

    def made(library):
        finders.append(LibraryFinder(library, ENCODER))
        return Place(finders[-1], LibraryWriter(library))

    yield made
    for finder in finders:
        finder.close()


@pytest.fixture
def in_database(database):
    places: list[Place] = []

    def made(library):
        push_library(library, database, replace=True)
        finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
        places.append(Place(finder, PostgresWriter(database)))
        return places[-1]

    yield made
    for place in places:
        place.finder.close()
        place.writer.close()


@pytest.fixture(params=["disk", "database"])
def place(request, tmp_path):
    """A library of forty memes."""
    made = request.getfixturevalue("on_disk" if request.param == "disk" else "in_database")
    return made(drawn_library(tmp_path / "library", 7, 40))


def queries(draw, ids, count):
    for _ in range(count):
        search_filter = Filter(
            sources=draw.choice(((), ("first",), ("first", "second"), ("third",))),
            splits=draw.choice(((), ("train",), ("",))),
            languages=draw.choice(((), ("en", "de"), ("",))),
            since=draw.choice((None, EPOCH + timedelta(days=10))),
            until=draw.choice((None, EPOCH + timedelta(days=20))),
            verified=draw.random() < 0.2,
        )
        yield {
            "text": draw.choice(WORDS),
            "png": draw.choice(PICTURES),
            "exhibits": draw.choice((0, 3, 10)),
            "tally": draw.choice((1, 25, 60)),
            "alpha": draw.choice((None, 0.0, 0.1, 0.37, 0.5, 0.9, 1.0)),
            "exclude": draw.sample(ids, draw.choice((0, 0, min(3, len(ids)), len(ids) // 2)))
            + draw.choice(([], ["no such id\0"])),
            "where": draw.choice((None, None, search_filter)),
            "leave_out_duplicates": draw.random() < 0.3,
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "size", "harm", "safeguards"),
    [
        (1, 1, 0.0, {}),
        (2, 5, 1.0, {}),
        (3, 60, 0.5, {}),
        (4, 400, 0.02, {}),
        (5, 1200, 0.4, {}),
        (6, 60, 0.5, {"no_sole_acquittal": True, "per_cluster": 1}),
        (7, 400, 0.3, {"no_sole_acquittal": True, "per_cluster": 3, "per_source": 30, "sources": 2}),
    ],
)
def test_finders_agree_on_every_bit(seed, size, harm, safeguards, tmp_path, on_disk, in_database):
    library = drawn_library(tmp_path / "library", seed, size, harm=harm, safeguards=Safeguards(**safeguards))
    disk, database = on_disk(library), in_database(library)
    assert disk.finder.library == database.finder.library
    found = 0
    for query in queries(random.Random(seed), [meme.id for meme in library.memes], 60):
        expected = disk.find(**query)
        assert database.find(**query) == expected
        found += len(expected.tally)
    assert found > 60 * min(size, 5) / 4


def test_changes_are_found_by_the_next_search_and_can_be_revoked(place):
    before, digest = place.find("cat").tally, place.finder.library.digest
    meme, vector, png = drawn_meme(random.Random(1), "new")
    # A duplicate of an existing meme would not be found.
    meme = meme.model_copy(update={"text": f"{meme.text} unheard of"})
    jpeg = None if png is None else shrink(picture_of(png).frames[0])
    place.writer.add(meme, vector, jpeg, **MADE_BY)
    assert place.find("cat").library.size == 41
    assert "new" in place.ids()

    place.writer.remove("drawn-3", **MADE_BY)
    assert "drawn-3" not in place.ids()
    label = next(entry.label for entry in before if entry.id == before[0].id)
    other = Label.HARMFUL if label is Label.NOT_HARMFUL else Label.NOT_HARMFUL
    place.writer.relabel(before[0].id, other, **MADE_BY)
    assert {entry.id: entry.label for entry in place.find("cat", tally=100).tally}[before[0].id] is other
    changed = place.find("cat").library
    assert (changed.size, place.finder.library.digest) == (40, changed.digest)
    assert changed.digest != digest

    for number in (3, 2, 1):
        place.writer.revoke(number, **MADE_BY)
    assert place.find("cat").tally == before
    assert place.find("cat").library.size == 40
    history = place.writer.history()
    assert [each.change.kind for each in history] == [ChangeKind.ADD, ChangeKind.REMOVE, ChangeKind.RELABEL] + [
        ChangeKind.REVOKE
    ] * 3
    assert [each.revoked_by for each in history] == [6, 5, 4, None, None, None]
    assert [each.change.number for each in place.writer.history("drawn-3")] == [2, 5]


def test_invalid_changes_are_refused_and_change_nothing(place):
    meme, vector, _ = drawn_meme(random.Random(2), "drawn-0")
    before = place.find("cat")
    with pytest.raises(BadRequest, match="already") as taken:
        place.writer.add(meme, vector, None, **MADE_BY)
    assert taken.value.reason == "DUPLICATE_ID"
    with pytest.raises(ValueError, match="halves"):
        place.writer.add(meme.model_copy(update={"id": "x"}), vector * 2, None, **MADE_BY)
    for change in (
        lambda: place.writer.remove("nobody", **MADE_BY),
        lambda: place.writer.relabel("nobody\0", Label.HARMFUL, **MADE_BY),
    ):
        with pytest.raises(BadRequest) as unknown:
            change()
        assert unknown.value.reason == "PRECEDENT_UNKNOWN"
    with pytest.raises(BadRequest, match="history"):
        place.writer.revoke(1, **MADE_BY)
    with pytest.raises(BadRequest, match="reason"):
        place.writer.remove("drawn-0", who="a reviewer", why="")
    assert place.find("cat") == before

    place.writer.remove("drawn-0", **MADE_BY)
    with pytest.raises(BadRequest, match="records may name it"):
        place.writer.add(meme, vector, None, **MADE_BY)
    place.writer.revoke(1, **MADE_BY)
    with pytest.raises(BadRequest, match="revoked already"):
        place.writer.revoke(1, **MADE_BY)
    with pytest.raises(BadRequest, match="revocation itself"):
        place.writer.revoke(2, **MADE_BY)


def test_the_last_precedent_cannot_be_removed(request, tmp_path):
    for kind in ("on_disk", "in_database"):
        place = request.getfixturevalue(kind)(drawn_library(tmp_path / kind, 1, 1))
        with pytest.raises(BadRequest) as refused:
            place.writer.remove("drawn-0", **MADE_BY)
        assert refused.value.reason == "LIBRARY_EMPTY"


def test_pictures_are_those_stored(place, tmp_path):
    from retrieval.library.thumbnails import frame_of

    library = drawn_library(tmp_path / "again", 7, 40)
    stored = {meme.id: library.picture_of(meme) for meme in library.memes}
    assert sum(jpeg is not None for jpeg in stored.values()) > 5
    shown = place.pictures(*stored, "nobody", "nobody\0")
    assert shown == [*(None if jpeg is None else frame_of(jpeg) for jpeg in stored.values()), None, None]


def test_a_restored_meme_gets_its_picture_back(place):
    meme, vector, _ = drawn_meme(random.Random(2), "new")
    jpeg = shrink(picture_of(PICTURES[1] or b"").frames[0])
    place.writer.add(meme, vector, jpeg, **MADE_BY)
    place.find("cat")
    (shown,) = place.pictures("new")
    assert shown is not None
    place.writer.remove("new", **MADE_BY)
    place.find("cat")
    assert place.pictures("new") == [None]
    place.writer.revoke(2, **MADE_BY)
    place.find("cat")
    assert place.pictures("new") == [shown]


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"alpha": float("nan")}, {"exhibits": -1}, {"tally": -1}])
def test_invalid_searches_are_refused(place, options):
    with pytest.raises(ValueError, match=r"alpha|negative"):
        place.find("cat", **options)


def test_binding_copies_follow_every_change(place):
    names = [f"drawn-{number}" for number in range(20)]
    memes = [meme for name in names if (meme := place.writer.meme(name)) is not None and meme.text]
    meme = next(meme for meme in memes if meme.pixels_sha256)
    other = Label.NOT_HARMFUL if meme.harmful else Label.HARMFUL

    def copies(text=meme.text, pixels=meme.pixels_sha256):
        place.find("cat")  # swaps a changed library on disk
        found = asyncio.run(place.finder.copies(pixels_sha256=pixels, text=text))
        return [(copy.id, copy.label, copy.who) for copy in found]

    assert copies() == []
    place.writer.relabel(meme.id, other, binding=True, **MADE_BY)
    bound = [(meme.id, other, MADE_BY["who"])]
    assert copies() == copies(None) == copies(f" {meme.text.upper()} ") == bound
    assert copies("another text") == copies(pixels="") == copies(pixels="f" * 64) == []
    removal = place.writer.remove(meme.id, **MADE_BY)
    assert copies() == []
    place.writer.revoke(removal.number, **MADE_BY)
    assert copies() == bound
    place.writer.relabel(meme.id, meme.label, binding=False, **MADE_BY)
    assert copies() == []
