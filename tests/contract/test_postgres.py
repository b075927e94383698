"""A library in a database: its errors, and consistent reads during changes."""

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from court.errors import BadLibrary, BadRequest, CourtError, NotLoaded, Unavailable
from court.verdict import Label
from retrieval.library.changes import ChangeKind
from retrieval.library.journal import frame_of, next_head
from retrieval.library.postgres import connections
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.push import push_library
from retrieval.library.postgres.writer import PostgresWriter
from retrieval.library.writer import LibraryWriter
from retrieval.precedents.postgres_finder import PgvectorFinder, encoder_of
from tests.support.encoders import WordEncoder
from tests.support.libraries import ENCODER, drawn_library, drawn_meme
from tests.support.postgres import postgres

SECRET = "correct%20horse"
MADE_BY = {"who": "a reviewer", "why": "as was decided"}


@pytest.fixture
def library(tmp_path):
    return drawn_library(tmp_path / "library", 7, 40)


@pytest.fixture
def finder(library, database):
    push_library(library, database)
    opened = asyncio.run(PgvectorFinder.open(database, ENCODER))
    yield opened
    opened.close()


@pytest.fixture
def own_server(postgres_server):
    """A server that may be killed. It needs the shared one, which skips tests without PostgreSQL."""
    with postgres() as server:
        yield server


def find(finder, **kwargs):
    options: dict[str, Any] = {"exhibits": 3, "tally": 1000, "alpha": None} | kwargs
    return asyncio.run(finder.find(text="cat bird", frames=(), pixels_sha256="", **options))


def run(database, *statements):
    with psycopg.connect(**database.parameters(), autocommit=True) as connection:
        return [connection.execute(statement).rowcount for statement in statements]


def refused(database):
    with pytest.raises(CourtError) as error:
        asyncio.run(PgvectorFinder.open(database, ENCODER))
    return error.value


def test_a_database_without_pgvector_is_refused_with_advice(bare_database, library):
    assert refused(bare_database).reason == "EXTENSION_MISSING"
    with pytest.raises(BadLibrary, match="CREATE EXTENSION vector"):
        push_library(library, bare_database)


def test_a_database_without_a_library_is_refused_with_advice(database):
    error = refused(database)
    assert (error.reason, "precedents push" in error.message) == ("LIBRARY_MISSING", True)


@pytest.mark.parametrize(("format_", "reason"), [(0, "LIBRARY_TOO_OLD"), (99, "LIBRARY_TOO_NEW")])
def test_tables_of_another_format_are_not_read(database, library, format_, reason):
    push_library(library, database)
    run(database, f"UPDATE memecourt.precedent_library SET format = {format_}")
    assert refused(database).reason == reason
    with pytest.raises(BadLibrary):
        push_library(library, database)
    push_library(library, database, replace=True)
    assert encoder_of(database) == ENCODER.identity


def test_a_library_of_another_encoder_is_not_searched(database, library):
    push_library(library, database)
    with pytest.raises(BadLibrary) as error:
        asyncio.run(PgvectorFinder.open(database, WordEncoder("other words")))
    assert error.value.reason == "LIBRARY_FOREIGN"


def test_a_pushed_library_keeps_name_and_digest(database, library):
    pushed = push_library(library, database)
    assert (pushed.identity, pushed.was_there, pushed.replaced) == (library.identity, False, None)
    assert push_library(library, database).was_there


def test_a_push_replaces_another_library_only_on_request(database, library, tmp_path):
    push_library(library, database)
    with PostgresWriter(database) as writer:
        writer.remove("drawn-1", **MADE_BY)
    other = drawn_library(tmp_path / "other", 8, 10, name="other")
    with pytest.raises(BadRequest) as error:
        push_library(other, database)
    assert error.value.reason == "LIBRARY_EXISTS"
    pushed = push_library(other, database, replace=True)
    assert (pushed.identity, pushed.changes_lost) == (other.identity, 1)
    assert pushed.replaced is not None and pushed.replaced.name == "drawn"


def test_a_push_includes_changes_on_disk_which_can_be_revoked(database, library):
    on_disk = LibraryWriter(library)
    on_disk.remove("drawn-5", **MADE_BY)
    on_disk.relabel("drawn-6", Label.HARMFUL, **MADE_BY)
    on_disk.remove("drawn-7", **MADE_BY)
    on_disk.compact()
    on_disk.remove("drawn-8", **MADE_BY)
    on_disk.revoke(3, **MADE_BY)
    push_library(on_disk.library, database)
    with PostgresWriter(database) as writer:
        assert writer.history() == on_disk.history()
        for number in (1, 4):
            assert writer.revoke(number, **MADE_BY).revokes == number
            on_disk.revoke(number, **MADE_BY)
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    found = find(finder)
    assert found.library.size == 40
    ids = [meme.id for meme in on_disk.library.memes]
    with psycopg.connect(**database.parameters()) as connection:
        rows = connection.execute("SELECT id FROM memecourt.precedents_1 ORDER BY row").fetchall()
    assert [id_ for (id_,) in rows] == ids
    finder.close()


def test_an_interrupted_push_has_no_effect(database, library, tmp_path):
    class Broken(Exception):
        pass

    def break_off(step, done, total):
        raise Broken

    with pytest.raises(Broken):
        push_library(library, database, progress=break_off)
    assert refused(database).reason == "LIBRARY_MISSING"
    push_library(library, database)
    other = drawn_library(tmp_path / "other", 8, 10, name="other")
    with pytest.raises(Broken):
        push_library(other, database, replace=True, progress=break_off)
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    assert finder.library == library.identity
    finder.close()


def test_a_push_drops_old_generations_but_the_previous_one(database, library, tmp_path):
    others = [drawn_library(tmp_path / str(seed), seed, 5, name=f"l{seed}") for seed in range(3)]
    for one in others:
        push_library(one, database, replace=True)
    with psycopg.connect(**database.parameters()) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE tablename ~ '^vectors_'").fetchall()
    assert sorted(tables) == [("vectors_2",), ("vectors_3",)]


def test_a_search_sees_one_complete_library_during_replacements(database, tmp_path):
    libraries = {
        name: drawn_library(tmp_path / name, seed, size, name=name)
        for seed, (name, size) in enumerate([("a", 30), ("b", 55)])
    }
    # Duplicates count once.
    distinct = {name: len({meme.duplicate_key for meme in library.memes}) for name, library in libraries.items()}
    push_library(libraries["a"], database)
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    done = threading.Event()

    seen: set[str] = set()

    def replacing():
        round_ = 0
        while round_ < 12 or (len(seen) < 2 and round_ < 1000):  # however slow searches are
            push_library(libraries["ba"[round_ % 2]], database, replace=True)
            round_ += 1
        done.set()

    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(replacing)
        while not done.is_set() and not work.done():
            found = find(finder)
            assert found.library == libraries[found.library.name].identity
            assert {entry.id.partition("-")[0] for entry in found.tally} == {found.library.name}
            assert len(found.tally) == distinct[found.library.name]
            seen.add(found.library.name)
        work.result()
    assert seen == {"a", "b"}
    finder.close()


def test_a_search_sees_complete_changes_of_concurrent_writers(finder, database, library):
    """No change of two writers is lost, each has its own number, and the digest covers all of them."""

    searched = threading.Event()

    def writing(name):
        draw, writer = random.Random(name), PostgresWriter(database)
        for number in range(12):
            meme, vector, png = drawn_meme(draw, f"{name}-{number}")
            writer.add(meme, vector, png, **MADE_BY)
            if number % 3 == 0:
                writer.remove(meme.id, **MADE_BY)
            # Some searches run between the changes, however slow they are.
            searched.clear()
            if number < 8:
                searched.wait(60)

    sizes = set()
    with ThreadPoolExecutor(2) as threads:
        work = [threads.submit(writing, name) for name in ("one", "other")]
        while not all(each.done() for each in work):
            found = find(finder)
            # A note counts the duplicates that were passed over; with them, all precedents are accounted for.
            (clones,) = [int(note.split()[2]) for note in found.notes if "clones count once" in note]
            assert len(found.tally) + clones == found.library.size
            sizes.add(found.library.size)
            searched.set()
        for each in work:
            each.result()
    assert len(sizes) > 2
    found = find(finder)
    assert found.library.size == 40 + 2 * (12 - 4)
    with PostgresWriter(database) as writer:
        history = [recorded.change for recorded in writer.history()]
        assert writer.identity == found.library
    assert [change.number for change in history] == list(range(1, 33))

    head = library.digest.removeprefix("sha256:")
    contents = {}
    for name in ("one", "other"):
        draw = random.Random(name)
        contents |= {
            meme.id: (vector, png) for meme, vector, png in (drawn_meme(draw, f"{name}-{n}") for n in range(12))
        }
    for change in history:
        head = next_head(head, frame_of(change, *(contents[change.meme] if change.kind == "add" else (None, None))))
    assert found.library.digest == f"sha256:{head}"


def test_forgotten_content_is_erased_everywhere_but_the_history_remains(database, library, tmp_path):
    on_disk = LibraryWriter(library)
    meme, vector, _ = drawn_meme(random.Random(1), "to be forgotten")
    secret = "words of no other meme"
    on_disk.add(meme.model_copy(update={"text": secret}), vector, None, **MADE_BY)
    push_library(library, database)
    on_disk.relabel("drawn-6", Label.HARMFUL, **MADE_BY)
    push_library(on_disk.library, database, replace=True)  # keeps the previous generation with all its contents
    with PostgresWriter(database) as writer:
        removed = writer.remove("to be forgotten", **MADE_BY)
        restored = writer.remove("drawn-7", **MADE_BY)
        writer.revoke(restored.number, **MADE_BY)
        head = writer.identity
        assert found_in(database, secret) and found_in(database, "to be forgotten")
        writer.forget()
        assert not found_in(database, secret)
        assert writer.identity == head, "forgetting does not change the library that is searched"
        assert [(each.change.kind, each.change.who) for each in writer.history("to be forgotten")] == [
            (ChangeKind.ADD, MADE_BY["who"]),
            (ChangeKind.REMOVE, MADE_BY["who"]),
        ]
        with pytest.raises(BadRequest, match="forgotten on purpose"):
            writer.revoke(removed.number, **MADE_BY)
        assert writer.meme("drawn-7") is not None
        assert any(each.change.before for each in writer.history("drawn-7")), "existing precedents are not forgotten"
    with psycopg.connect(**database.parameters()) as connection:
        for table in ("vectors", "precedents"):
            counts = [connection.execute(f"SELECT count(*) FROM memecourt.{table}_{n}").fetchone() for n in (1, 2)]
            assert counts == [(40,), (40,)]
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    assert find(finder).library.size == 40
    finder.close()


def found_in(database, text_):
    """True if a text occurs in any column of any table of the library."""
    with psycopg.connect(**database.parameters()) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'memecourt'").fetchall()
        return any(
            connection.execute(f"SELECT 1 FROM memecourt.{table} t WHERE strpos(t::text, %s) > 0", (text_,)).fetchone()
            for (table,) in tables
        )


def test_an_altered_picture_is_not_shown(finder, database, library):
    with_picture = next(meme.id for meme in library.memes if meme.kept)
    assert asyncio.run(finder.pictures([with_picture]))[0] is not None
    run(database, "UPDATE memecourt.pictures_1 SET jpeg = jpeg || 'x'::bytea")
    with pytest.raises(BadLibrary) as error:
        asyncio.run(finder.pictures([with_picture]))
    assert error.value.reason == "LIBRARY_DAMAGED"


def test_a_meme_missing_beside_its_vectors_is_detected(finder, database):
    run(database, "DELETE FROM memecourt.precedents_1 WHERE row = 3")
    with pytest.raises(BadLibrary, match="damaged"):
        find(finder)


def test_pictures_come_from_the_library_of_the_search(finder, database, library, tmp_path):
    exhibits = [exhibit.id for exhibit in find(finder, exhibits=40).exhibits]
    shown = asyncio.run(finder.pictures(exhibits))
    assert any(shown)
    # The same ids, but other memes.
    push_library(drawn_library(tmp_path / "other", 9, 40), database, replace=True)
    assert asyncio.run(finder.pictures(exhibits)) == shown


def test_an_unreachable_server_is_reported_and_used_again_when_back(own_server, library):
    database = Address(own_server.url())
    push_library(library, database)
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    before = find(finder)
    own_server.stop()
    for _ in range(2):
        with pytest.raises(Unavailable) as away:
            find(finder)
        assert away.value.reason == "LIBRARY_AWAY"
    with pytest.raises(Unavailable):
        PostgresWriter(database).remove("drawn-1", **MADE_BY)
    assert refused(database).reason == "LIBRARY_AWAY"
    own_server.start()
    assert find(finder) == before

    # Restarted between two searches: the pooled connection is dead without notice.
    own_server.stop()
    own_server.start()
    assert find(finder) == before

    # Killed during a search, which waits for a lock.
    blocker = psycopg.connect(own_server.url())
    blocker.execute("LOCK TABLE memecourt.vectors_1 IN ACCESS EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as thread:
        search = thread.submit(find, finder)
        time.sleep(0.3)
        assert not search.done()
        own_server.stop()
        with pytest.raises(Unavailable) as broken:
            search.result()
    blocker.close()
    assert broken.value.reason == "LIBRARY_AWAY"
    own_server.start()
    assert find(finder) == before
    finder.close()


def test_a_server_that_dies_during_a_push_keeps_the_previous_library(own_server, library, tmp_path):
    database = Address(own_server.url())
    push_library(library, database)
    other = drawn_library(tmp_path / "other", 8, 60, name="other")
    with pytest.raises(Unavailable):
        push_library(other, database, replace=True, progress=lambda *_: own_server.stop())
    own_server.start()
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    assert find(finder).library == library.identity
    finder.close()


def test_a_slow_search_times_out(database, library, monkeypatch):
    push_library(library, database)
    monkeypatch.setattr(connections, "_SEARCH_S", 3)
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    with psycopg.connect(**database.parameters()) as blocker:
        blocker.execute("LOCK TABLE memecourt.vectors_1 IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable) as slow:
            find(finder)
    assert slow.value.reason == "LIBRARY_SLOW"
    assert find(finder).library == library.identity
    finder.close()


def test_waiting_for_another_writer_times_out(database, library, monkeypatch):
    push_library(library, database)
    monkeypatch.setattr("retrieval.library.postgres.writer._WAIT_S", 0.2)
    with psycopg.connect(**database.parameters()) as blocker:
        blocker.execute("SELECT pg_advisory_xact_lock(hashtext('memecourt.precedents'))")
        with pytest.raises(Unavailable) as locked:
            PostgresWriter(database).remove("drawn-1", **MADE_BY)
    assert locked.value.reason == "LIBRARY_LOCKED"


def test_ids_with_nul_are_refused_and_texts_with_nul_are_stored(finder, database, library):
    meme, vector, _ = drawn_meme(random.Random(1), "with a \0 in it")
    with pytest.raises(BadRequest, match="NUL"):
        PostgresWriter(database).add(meme, vector, None, **MADE_BY)
    meme, vector, _ = drawn_meme(random.Random(1), "plain")
    PostgresWriter(database).add(meme.model_copy(update={"text": "cat \0 bird"}), vector, None, **MADE_BY)
    exhibits = {exhibit.id: exhibit.text for exhibit in find(finder, exhibits=41).exhibits}
    assert exhibits["plain"] == "cat \0 bird"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://court:{SECRET}@db:5432/memes", "postgresql://court:***@db:5432/memes"),
        (f"postgres://court@db/memes?password={SECRET}&host=a", "postgres://court@db/memes?password=***&host=a"),
        ("postgresql:///memes?host=/run/db", "postgresql:///memes?host=/run/db"),
    ],
)
def test_displayed_address_hides_the_password(url, shown):
    address = Address(url)
    assert (str(address), repr(address)) == (shown, f"Address({shown!r})")
    assert Address.named_by(url)
    assert not Address.named_by("libraries/postgresql")


@pytest.mark.parametrize(
    "url", [f"postgresql://court:{SECRET}/x@db:5432/", f"mysql://court:{SECRET}@db/memes", f"postgresql://[{SECRET}/m"]
)
def test_malformed_addresses_are_rejected_without_quoting_them(url):
    with pytest.raises(BadRequest) as error:
        Address(url)
    assert SECRET not in str(error.value)


def test_no_error_contains_the_password(own_server, library, caplog):
    import traceback

    own_server.stop()
    socket = own_server.url().partition("host=")[2]
    for url in (
        f"postgresql://court:{SECRET}@/postgres?host={socket}",
        f"postgresql://court:{SECRET}@127.0.0.1:1/postgres",
        f"postgresql://court:{SECRET}@/postgres?no_such_parameter=1",
    ):
        for work in (lambda a: refused(a), lambda a: _raised(push_library, library, a)):
            error = work(Address(url))
            output = "".join(traceback.format_exception(error)) + caplog.text
            assert "correct" not in output
            assert "horse" not in output
            assert error.reason in ("LIBRARY_AWAY", "ADDRESS_UNUSABLE")


def _raised(work, *arguments):
    with pytest.raises(CourtError) as error:
        work(*arguments)
    return error.value


def test_a_missing_driver_is_reported_with_the_install_command(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(NotLoaded, match=r"memecourt\[postgres\]"):
        connections.Connections(Address("postgresql://db/memes"))


def test_ties_beyond_the_fetched_rows_are_decided_by_row_number(database, tmp_path):
    library = drawn_library(tmp_path / "ties", 3, 3000)
    push_library(library, database)
    # After the update every other row lies behind all others on disk: the physical order must not matter.
    run(database, "UPDATE memecourt.vectors_1 SET row = row WHERE row % 2 = 0")
    finder = asyncio.run(PgvectorFinder.open(database, ENCODER))
    found = [int(entry.id.removeprefix("drawn-")) for entry in find(finder, tally=7, alpha=1.0).tally]
    same = [row for row, meme in enumerate(library.memes) if meme.text == "cat bird"]
    assert len(same) > 300
    assert found == same[:7]
    finder.close()
