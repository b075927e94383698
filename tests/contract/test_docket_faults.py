"""A docket whose processes are killed, or whose database is locked, full or gone."""

import asyncio
import hashlib
import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from court.errors import Unavailable
from court.events import VerdictReviewed
from court.record import TrialState
from retrieval.library.postgres.address import Address
from serving.docket.errors import DocketError
from serving.docket.open import Docket
from serving.docket.store.requests import RequestName
from tests.support import docket_faults, dockets
from tests.support.fakes import a_picture
from tests.support.postgres import PostgresServer
from tests.support.sizes import FULL
from tests.support.tampering import drawn

NAME = RequestName("n", "r")


def write_until_killed(place, name, pipe):
    """Runs trials, four at once, until it is killed; reports each acknowledgement at once."""
    events = dockets.events_of()

    def report(*word):
        pipe.send_bytes(json.dumps(word).encode())

    async def run_trials(docket, line):
        for number in itertools.count(line, 4):
            trial = f"{name}-{number}"
            await docket.leases.claim(RequestName("n", trial), payload="p", trial_id=trial, owner=name)
            report("claim", trial)
            await docket.writer.keep_picture(a_picture(hashlib.sha256(trial.encode()).hexdigest()))
            report("picture", trial)
            for event in events:
                await docket.writer.append(event.model_copy(update={"trial_id": trial}))
                report("event", trial, event.seq)
            await asyncio.gather(
                docket.verdict_keys.put(f"key {trial}", trial), docket.fingerprints.put_fingerprint(trial, b"look")
            )
            report("known", trial)
            await dockets.review_trial(docket, trial)
            report("reviewed", trial)

    async def main():
        docket = Docket.open(dockets.parse_place(place))
        await asyncio.gather(*(run_trials(docket, line) for line in range(4)))

    asyncio.run(main())


def write_and_kill(forks, place, name, chance):
    """Lets a process write until a random moment, kills it, and returns what it had acknowledged by then."""
    receiver, sender = forks.Pipe(duplex=False)
    process = forks.Process(target=write_until_killed, args=(place, name, sender))
    process.start()
    sender.close()
    messages = [receiver.recv_bytes() for _ in range(chance.randrange(1, 120))]
    time.sleep(chance.random() / 100)
    process.kill()
    try:
        while True:
            messages.append(receiver.recv_bytes())
    except (EOFError, OSError):  # it ended, perhaps in the middle of a message
        pass
    process.join()
    receiver.close()
    return [json.loads(message) for message in messages]


async def faults_of(docket):
    """Returns what `memecourt docket verify` reports, except for missing pictures, which trials here never had."""
    report = await dockets.audited(docket)
    return {fault: count for fault, count in report.counts.items() if fault != "PICTURE_DIFFERS"}


def erase_and_die(place, pictures):
    """Erases a trial and is killed just before its picture is deleted."""

    async def scene(docket):
        await docket.writer.keep_picture(drawn(7))
        opened, *more = dockets.events_of("t")
        meme = opened.meme.model_copy(update={"pixels_sha256": drawn(7).pixels_sha256})
        await dockets.append_all(docket, [opened.model_copy(update={"meme": meme}), *more])
        docket.pictures.forget_now = lambda pixels: os.kill(os.getpid(), signal.SIGKILL)
        await docket.eraser.erase("t", who="Ruth", why="asked for", at=dockets.NOON)

    dockets.with_docket(dockets.parse_place(place), scene, pictures=pictures)


async def test_an_erased_picture_is_deleted_even_if_the_process_was_killed_before(docket_place, tmp_path, forks):
    process = forks.Process(target=erase_and_die, args=(docket_place, tmp_path / "pictures"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [*(tmp_path / "pictures").rglob("*.png")], "killed before the deletion"
    async with dockets.opened_docket(dockets.parse_place(docket_place), pictures=tmp_path / "pictures") as docket:
        (line,) = await docket.index.list(limit=9)
        assert (line.erased, await faults_of(docket), (await docket.auditor.audit([])).counts["PICTURE_DIFFERS"]) == (
            True,
            {},
            0,
        )
    assert not [*(tmp_path / "pictures").rglob("*.png")]


@pytest.mark.promise("RE-2", "500 kills each in SQLite and PostgreSQL: 0 acknowledged events lost")
@pytest.mark.slow
def test_acknowledged_writes_survive_sigkill_at_any_moment(docket_place, using, forks):
    kills = 500 if FULL else 15
    chances = [random.Random(time.time_ns() + n) for n in range(kills)]
    # Three at a time: each is killed while others are in the middle of writing.
    with ThreadPoolExecutor(3) as threads:
        outcomes = list(threads.map(lambda n: write_and_kill(forks, docket_place, f"p{n}", chances[n]), range(kills)))
    acknowledged = [word for words in outcomes for word in words]

    async def scene(docket):
        lines = {line.trial_id: line for line in await docket.index.list(limit=10**6)}
        records = {trial_id: await docket.trials.record(trial_id) for trial_id in lines}
        fingerprints = {trial_id for _, trial_id, _ in await docket.fingerprints.fingerprints(0, most=10**6)}
        claims = {
            t: await docket.leases.claim_of(RequestName("n", t)) for word, t, *_ in acknowledged if word == "claim"
        }
        keys = {t: await docket.verdict_keys.get(f"key {t}") for word, t, *_ in acknowledged if word == "known"}
        pixels = {t: hashlib.sha256(t.encode()).hexdigest() for word, t, *_ in acknowledged if word == "picture"}
        frames = {trial: await docket.trials.frames(digest) for trial, digest in pixels.items()}
        return lines, records, fingerprints, claims, keys, frames

    lines, records, fingerprints, claims, keys, frames = using(scene)
    assert not using(faults_of)  # the whole log, from its entries to the signature, and all tables derived from it
    for word, trial, *seq in acknowledged:
        if word == "claim":
            assert claims[trial].trial_id == trial
        elif word == "picture":
            assert frames[trial] == [b"png"]
        elif word == "event":
            assert len(records[trial].events) > seq[0]
        elif word == "known":
            assert trial in fingerprints
            assert keys[trial] == (None if records[trial].last(VerdictReviewed) else trial)
        else:
            assert records[trial].last(VerdictReviewed) is not None
    assert {"claim", "picture", "event", "known", "reviewed"} == {word for word, *_ in acknowledged}
    for trial_id, record in records.items():  # nothing is half-written
        assert {
            name: getattr(lines[trial_id], name) for name in dockets.listing_fields(record)
        } == dockets.listing_fields(record)


async def all_writes_refused(docket, event):
    """Asserts that every write is refused in the database's current state, and returns the messages."""
    writes = (
        docket.writer.append(event),
        docket.reviews.record_access("t", who="Ruth", what="frame 0", at=dockets.NOON),
        docket.eraser.erase("t", who="Ruth", why="asked for", at=dockets.NOON),
        docket.leases.claim(NAME, payload="p", trial_id="t", owner="A"),
        docket.heartbeats.beat("A"),
        docket.verdict_keys.put("k", "t"),
        docket.fingerprints.put_fingerprint("t", b"look"),
        docket.writer.append(event.model_copy(update={"trial_id": "other", "seq": 0})),
    )
    errors = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(error) for error in errors] == [Unavailable] * len(writes), errors
    assert {error.reason for error in errors} == {"DOCKET_UNAVAILABLE"}
    return {error.message for error in errors}


async def check_recovered(docket, events):
    """Asserts that the docket works again and that no refused write took effect."""
    assert await docket.leases.claim_of(NAME) is None
    assert await docket.verdict_keys.get("k") is None
    assert await docket.fingerprints.fingerprints(0) == []
    assert await docket.heartbeats.heartbeats() == {}
    assert [line.trial_id for line in await docket.index.list(limit=9)] == ["t"]
    await dockets.append_all(docket, events)
    assert (await docket.trials.record("t")).state is TrialState.DECIDED


WORDS = {
    docket_faults.locked_file: "writing to it",
    docket_faults.full_disk: "",
    docket_faults.missing_file: "gone",
    docket_faults.locked_database: "locked",
    docket_faults.full_database_disk: "disk is full",
}
"""What the message of each fault has to say."""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.slow] * (fault in docket_faults.POSTGRES)) for fault in WORDS],
    ids=lambda fault: fault.__name__,
)
async def test_a_fault_is_reported_for_every_write_and_loses_none_that_was_acknowledged(request, tmp_path, fault):
    path, events = tmp_path / "d.sqlite", dockets.events_of()
    url = request.getfixturevalue("docket_database") if fault in docket_faults.POSTGRES else ""
    async with dockets.opened_docket(Address(url) if url else path, patience=0.2) as docket:
        await dockets.append_all(docket, events[:2])
        with fault(url or path):
            messages = await all_writes_refused(docket, events[2])
            if fault is docket_faults.missing_file:
                with pytest.raises(Unavailable):
                    await docket.trials.record("t")
                assert not path.exists()
            else:  # reads still work
                assert len((await docket.trials.record("t")).events) == 2
        await check_recovered(docket, events[2:])
        assert all(WORDS[fault] in message for message in messages)
    if not url:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_the_picture_folder_may_be_full_or_gone_and_recovers(tmp_path):
    place, large = tmp_path / "d.sqlite-pictures", a_picture("1" * 64)
    large = replace(large, frames=(replace(large.frames[0], png=bytes(50_000)),))
    async with dockets.opened_docket(tmp_path / "d.sqlite") as docket:
        with docket_faults.file_size_limit(10_000), pytest.raises(Unavailable) as full:
            await docket.writer.keep_picture(large)
        assert await docket.trials.frames(large.pixels_sha256) == [], "no partial write"
        await docket.writer.keep_picture(large)
        place.rename(tmp_path / "elsewhere")
        for ask in (docket.writer.keep_picture(a_picture("2" * 64)), docket.trials.frames(large.pixels_sha256)):
            with pytest.raises(Unavailable) as gone:
                await ask
        assert not place.exists()
        (tmp_path / "elsewhere").rename(place)
        assert await docket.trials.frames(large.pixels_sha256) == [bytes(50_000)]
        reasons, messages = {full.value.reason, gone.value.reason}, full.value.message + gone.value.message
    assert reasons == {"DOCKET_UNAVAILABLE"} and str(tmp_path) not in messages


async def test_another_file_may_take_the_docket_s_place(tmp_path):
    """Restores a copy while the docket is open."""
    path, events = tmp_path / "d.sqlite", dockets.events_of()
    async with dockets.opened_docket(path) as docket:
        await dockets.append_all(docket, events[:3])
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / "copy")) as copy:
            source.backup(copy)
        await docket.writer.append(events[3])
        for file in (path, tmp_path / "d.sqlite-wal", tmp_path / "d.sqlite-shm"):
            file.unlink(missing_ok=True)
        shutil.copy(tmp_path / "copy", path)
        assert len((await docket.trials.record("t")).events) == 3
        await check_recovered(docket, events[3:])
    async with dockets.opened_docket(path) as docket:
        assert len((await docket.trials.record("t")).events) == len(events)


async def test_a_file_that_is_no_longer_a_docket_is_refused(tmp_path):
    path, events = tmp_path / "d.sqlite", dockets.events_of()
    async with dockets.opened_docket(path) as docket:
        await dockets.append_all(docket, events[:2])
        path.unlink()
        path.touch()
        with pytest.raises(DocketError, match="no docket"):
            await docket.writer.append(events[2])


async def test_a_database_loses_nothing_by_a_restart(postgres_server, docket_database):
    events = dockets.events_of()
    async with dockets.opened_docket(Address(docket_database), patience=0.5) as docket:
        await dockets.append_all(docket, events[:2])
        await docket.trials.record("t")  # so that the pools hold connections of both kinds
        postgres_server.stop()
        try:
            (message,) = await all_writes_refused(docket, events[2])
            with pytest.raises(Unavailable) as unread:
                await docket.trials.record("t")
            assert unread.value.reason == "DOCKET_UNAVAILABLE"
            with pytest.raises(Unavailable):
                await asyncio.to_thread(Docket.open, Address(docket_database), patience=0.2)
        finally:
            postgres_server.start()
        assert len((await docket.trials.record("t")).events) == 2
        await check_recovered(docket, events[2:])
    assert "can't be reached" in message and "court" not in message


async def test_silently_broken_connections_are_replaced(docket_database):
    import psycopg

    events = dockets.events_of()
    async with dockets.opened_docket(Address(docket_database)) as docket:
        for event in events:
            with psycopg.connect(docket_database, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND application_name = 'memecourt'"
                )
            await docket.writer.append(event)  # the caller notices nothing
            assert (await docket.trials.record("t")).events[-1] == event


class FaultyRelay:
    """Relays to a PostgreSQL server and breaks connections on request."""

    def __init__(self, directory, on_break=lambda: None):
        self.server = f"{directory}/.s.PGSQL.5432"
        self.on_break = on_break  # called just before the connection is closed
        self.breaks = []  # "before" or "after": whether the server still receives COMMIT
        self.broke = 0
        self.over = False

    def __enter__(self):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()
        return self.listening.getsockname()[1]

    def __exit__(self, *_):
        self.over = True
        for thread in self.threads:
            thread.join()

    def accept(self):
        with self.listening:
            while not self.over:
                if select.select([self.listening], [], [], 0.05)[0]:
                    client, _ = self.listening.accept()
                    self.threads.append(threading.Thread(target=self.relay, args=(client,)))
                    self.threads[-1].start()

    def relay(self, client):
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self.server)
            while not self.over:
                for ready in select.select([client, server], [], [], 0.05)[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    if ready is client and b"COMMIT" in data and self.breaks:
                        self.broke += 1
                        if self.breaks.pop(0) == "after":
                            server.sendall(data)
                            assert server.recv(65536)
                        self.on_break()
                        return
                    (server if ready is client else client).sendall(data)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_broken_during_commit_loses_nothing(docket_database, when):
    """If the server received COMMIT or not: the event is stored exactly once and acknowledged."""
    events = dockets.events_of()
    relay = FaultyRelay(docket_database.partition("host=")[2])

    with relay as port:
        address = f"postgresql://court@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"
        async with dockets.opened_docket(Address(address)) as docket:
            for event in events:
                relay.breaks.append(when)
                await docket.writer.append(event)
                assert not relay.breaks
            assert list((await docket.trials.record("t")).events) == events
    assert relay.broke == len(events)


def test_a_commit_lost_in_a_database_crash_is_not_taken_for_stored():
    """After a crash PostgreSQL reuses ids of lost transactions, whose commit status then says nothing about ours."""
    import psycopg

    events = dockets.events_of()
    server = PostgresServer()

    def crash():
        with psycopg.connect(server.url(), autocommit=True) as victim:
            os.kill(victim.execute("SELECT pg_backend_pid()").fetchone()[0], signal.SIGKILL)
        others, begun = 0, time.monotonic()
        while others < 20:  # other clients write as soon as they can
            try:
                with psycopg.connect(server.url()) as other:
                    other.execute("SELECT pg_current_xact_id()")
                others += 1
            except psycopg.OperationalError:
                if time.monotonic() > begun + 120:
                    raise  # the database has not recovered
                time.sleep(0.05)

    async def scene(docket):
        await dockets.append_all(docket, events[:2])
        relay.breaks.append("before")
        with pytest.raises(Unavailable):
            await docket.writer.append(events[2])
        assert len((await docket.trials.record("t")).events) == 2
        await check_recovered(docket, events[2:])

    try:
        relay = FaultyRelay(server.url().partition("host=")[2], crash)
        with relay as port:
            address = f"postgresql://court@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"
            dockets.with_docket(Address(address), scene, patience=10.0)
        assert relay.broke == 1
    finally:
        server.close()


async def test_a_read_only_server_is_left_as_soon_as_there_is_a_primary(docket_database):
    """After a failover new connections reach the new primary, but existing ones do not."""
    import psycopg

    events = dockets.events_of()
    async with dockets.opened_docket(Address(docket_database)) as docket:
        await dockets.append_all(docket, events[:2])
        with psycopg.connect(docket_database, autocommit=True) as other:
            other.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
            try:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND application_name = 'memecourt'"
                )
                for _ in range(2):
                    (message,) = await all_writes_refused(docket, events[2])
            finally:
                other.execute("SET default_transaction_read_only = off")
                other.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        await dockets.append_all(docket, events[2:])  # no read comes first, which would replace the connection
        assert "name the primary" in message


async def test_a_write_of_a_fingerprint_that_hangs_does_not_delay_records(docket_database):
    import psycopg

    events = dockets.events_of()
    async with dockets.opened_docket(Address(docket_database)) as docket:
        with psycopg.connect(docket_database) as other:
            other.execute("SELECT pg_advisory_xact_lock(hashtext('memecourt.looks'))")
            writing = asyncio.create_task(docket.fingerprints.put_fingerprint("t", b"look"))
            await dockets.append_all(docket, events)
            assert not writing.done()
        await writing
        assert len(await docket.fingerprints.fingerprints(0)) == 1
