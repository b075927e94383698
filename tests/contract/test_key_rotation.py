"""Rotating a docket's key: routinely, after a theft, and against a thief who has the stolen key."""

import asyncio
import json
import shutil
import stat
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner
from google.protobuf import json_format
from sqlalchemy import update

import memecourt.verify as alone
from court.errors import Unavailable
from memecourt.v1 import court_pb2 as wire
from memecourt.verify import verify_bundle, verify_receipt
from serving.cli.main import cli
from serving.docket.audit.verify import Fault
from serving.docket.errors import DocketError
from serving.docket.log.anchors import Anchor, read_anchor
from serving.docket.log.entries import NO_SEQ, KeyRotated, body_of
from serving.docket.log.notes import SigningKey, VerifierKey, sign_checkpoint, sign_note
from serving.docket.log.rotation import sign_rotation
from serving.docket.open import Docket
from serving.docket.store import log_append
from serving.docket.store import tables as t
from tests.support.dockets import NOON, append_all, events_of, parse_place, with_docket
from tests.support.scenes import IMAGE, a_scene

WHO = {"who": "ada", "why": "the year is over", "at": NOON}


def open_docket(place, key):
    return Docket.open(parse_place(str(place)), key=key)


async def rotate_key(docket, key, compromised=False):
    """Does what the command does: creates the new key beside the old one, writes the entry, then replaces the files."""
    old = log_append.KeyFile(key)(await docket.log.vkey())
    log_append.make_key(log_append.next_key(key), old.name)
    new = log_append.read_key(log_append.next_key(key))
    number = await docket.log_keys.rotate(old, new, compromised=compromised, **WHO)
    return old, new, number


async def audit(docket, *keys, anchors=()):
    return await docket.auditor.audit([key.verifier for key in keys], anchors)


def faults(report):
    return set(report.counts) - {Fault.PICTURE_DIFFERS}


@pytest.fixture
def with_docket_and_key(docket_place, tmp_path):
    @asynccontextmanager
    async def opened():
        docket = open_docket(docket_place, tmp_path / "docket.key")
        try:
            yield docket, tmp_path / "docket.key"
        finally:
            await docket.close()

    return opened


@pytest.mark.slow
async def test_a_docket_changes_its_key_and_still_verifies_as_a_whole(with_docket_and_key):
    async with with_docket_and_key() as (docket, path):
        await append_all(docket, events_of("before"))
        receipt, anchor = await docket.log.receipt("before"), await docket.log.checkpoint()
        old, new, number = await rotate_key(docket, path)
        log_append.settle_keys(path)
        await append_all(docket, events_of("after"))
        later = await docket.log.checkpoint()
        assert await docket.log_keys.keys() == [old.verifier, new.verifier]
        assert await docket.log.vkey() == str(new.verifier) and await docket.log.receipt("before") == receipt
        anchors = (Anchor("kept", (anchor, later)),)
        for trusted in ([old], [new], [old, new]):
            report = await audit(docket, *trusted, anchors=anchors)
            assert not faults(report) and not report.unchecked, report.findings
            assert report.anchored == report.size == number + 1 + len(await docket.log.entries(number + 1, 999))
        assert reports_key_differs(await audit(docket, SigningKey.create(old.name)))
        for trial_id in ("before", "after"):
            # An anchor from before the change is continued by a bundle from after it.
            bundle = await docket.auditor.bundle(trial_id, anchors=anchors)
            assert verify_bundle(bundle, [str(old.verifier), str(new.verifier)]).trial_id == trial_id
        proof = {"entry": receipt.number, "header": receipt.header, "proof": receipt.proof}
        verify_receipt([str(old.verifier)], checkpoint=receipt.checkpoint, **proof)
        twice = await rotate_key(docket, path)
        assert not faults(await audit(docket, old)) and not faults(await audit(docket, twice[1]))


def reports_key_differs(report):
    return Fault.KEY_DIFFERS in faults(report)


async def test_a_server_without_the_new_key_is_refused_until_it_has_it(with_docket_and_key, docket_place, tmp_path):
    async with with_docket_and_key() as (docket, path):
        await append_all(docket, events_of("a"))
        shutil.copy(path, tmp_path / "elsewhere.key")
        server, elsewhere = open_docket(docket_place, path), open_docket(docket_place, tmp_path / "elsewhere.key")
        try:
            for each in (server, elsewhere):
                await append_all(each, events_of(f"by {id(each)}"))
            _, new, _ = await rotate_key(docket, path)
            await append_all(server, events_of("b"))  # before the files are replaced
            log_append.settle_keys(path)
            await append_all(server, events_of("c"))
            with pytest.raises(DocketError) as refused:
                await append_all(elsewhere, events_of("d"))
            assert refused.value.reason == "DOCKET_KEY"
            # With the new key beside its own it continues.
            shutil.copy(path, log_append.next_key(tmp_path / "elsewhere.key"))
            await append_all(elsewhere, events_of("e"))
            assert not faults(await audit(docket, new))
        finally:
            await server.close()
            await elsewhere.close()


@pytest.mark.slow
async def test_the_retired_key_can_no_longer_sign(with_docket_and_key):
    async with with_docket_and_key() as (docket, path):
        await append_all(docket, events_of("a"))
        old, new, _ = await rotate_key(docket, path, compromised=True)
        log_append.settle_keys(path)
        await append_all(docket, events_of("b"))
        report = await audit(docket, new)
        assert not faults(report)
        # The thief signs the unaltered docket with the stolen key.
        forged = sign_checkpoint(old, old.name, report.size, report.root)
        anchored = await audit(docket, new, anchors=[Anchor("forged", (forged,))])
        assert anchored.anchors == 0 and anchored.unchecked
        await docket.transactions.write_alone(
            lambda connection: connection.execute(update(t.log).values(checkpoint=forged))
        )
        for trusted in ([old], [new], [old, new]):
            assert Fault.CHECKPOINT_UNSIGNED in faults(await audit(docket, *trusted))


@pytest.mark.slow
async def test_a_thief_s_history_is_detected_by_the_new_key_or_an_anchor(tmp_path):
    """The procedure after a theft: rotate, and keep the new public key and a checkpoint outside."""
    place, key = tmp_path / "docket.sqlite", tmp_path / "docket.key"
    stolen, thief_key = tmp_path / "stolen.sqlite", tmp_path / "stolen.key"

    async def thief_writes(old):
        docket = open_docket(stolen, thief_key)
        await append_all(docket, events_of("another verdict"))
        _, own, _ = await rotate_key(docket, thief_key)
        log_append.settle_keys(thief_key)
        await append_all(docket, events_of("b"))
        await append_all(docket, events_of("more"))
        return docket, own

    docket = open_docket(place, key)
    await append_all(docket, events_of("a"))
    await docket.close()
    shutil.copy(place, stolen)
    shutil.copy(key, thief_key)
    shutil.copytree(f"{place}-pictures", f"{stolen}-pictures", dirs_exist_ok=True)
    docket = open_docket(place, key)
    await append_all(docket, events_of("b"))
    earlier = Anchor("kept before", (await docket.log.checkpoint(),))
    old, new, _ = await rotate_key(docket, key, compromised=True)
    log_append.settle_keys(key)
    later = Anchor("kept after", (await docket.log.checkpoint(),))
    assert not faults(await audit(docket, old, new, anchors=[earlier, later]))
    await docket.close()

    docket, own = await thief_writes(old)
    found = {
        "new key": faults(await audit(docket, new)),
        "both keys": faults(await audit(docket, old, new)),
        "old key and anchor": faults(await audit(docket, old, anchors=[earlier])),
        "old key alone": faults(await audit(docket, old)),
    }
    # The anchor is signed by a key unknown to this history: no fault, but no clean docket either.
    assert (await audit(docket, old, anchors=[later])).unchecked
    assert await docket.log.vkey() == str(own.verifier)
    await docket.close()
    assert Fault.KEY_DIFFERS in found["new key"] and Fault.KEY_DIFFERS in found["both keys"]
    assert Fault.CHECKPOINT_DIFFERS in found["old key and anchor"]
    # Undetectable by the stolen key alone: docs/explanation/what-a-record-proves.md says so.
    assert not found["old key alone"]


def forged_notes(docket_name, old, new, number, root):
    stranger = SigningKey.create(docket_name)
    whole = sign_rotation(old, new, number=number, root=root)
    text = whole.rpartition("\n\n")[0] + "\n"
    yield "by the old key alone", sign_note(text, [old])
    yield "by the new key alone", sign_note(text, [new])
    yield "by a stranger", sign_note(text, [stranger, new])
    yield "for another place", sign_rotation(old, new, number=number + 1, root=root)
    yield "over another tree", sign_rotation(old, new, number=number, root=bytes(32))
    yield "from another key", sign_rotation(stranger, new, number=number, root=root)
    yield "none", "nothing\n"


@pytest.mark.slow
@pytest.mark.parametrize("note_index", range(7))
async def test_a_rotation_not_signed_by_both_keys_for_its_place_has_no_effect(with_docket_and_key, note_index):
    async with with_docket_and_key() as (docket, path):
        await append_all(docket, events_of("a"))
        old = log_append.KeyFile(path)(await docket.log.vkey())
        new = SigningKey.create(old.name)

        def forge(connection):
            with log_append.signing(connection, lambda _: new):
                log = log_append.open_appender(connection)
                notes = list(forged_notes(old.name, old, new, log.size, log.root()))
                entry = KeyRotated(at=NOON, who="eve", why="so", note=notes[note_index][1])
                body = body_of(entry).encode()
                log.add([log_append.EntryDraft(kind=entry.kind, trial_id="", seq=NO_SEQ, at=t.stamp(NOON), body=body)])
                log.key = str(new.verifier)

        await docket.transactions.write_alone(forge)
        assert reports_key_differs(await audit(docket, old))


async def test_the_key_changes_only_with_an_entry(with_docket_and_key):
    async with with_docket_and_key() as (docket, path):
        await append_all(docket, events_of("a"))
        with pytest.raises((DocketError, Unavailable)):
            await docket.transactions.write_alone(lambda c: c.execute(update(t.log).values(key="another")))
        old = log_append.KeyFile(path)(await docket.log.vkey())
        for new in (old, SigningKey.create("another-docket")):
            with pytest.raises(Exception, match="another one"):
                await docket.log_keys.rotate(old, new, compromised=False, **WHO)
        assert await docket.log_keys.keys() == [old.verifier]


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    with_docket(tmp_path / "docket.sqlite", lambda docket: append_all(docket, events_of("a")))
    return lambda *words, **options: CliRunner().invoke(cli, ["docket", *map(str, words)], **options)


@pytest.mark.slow
def test_the_command_rotates_the_key_and_finishes_interrupted_rotations(invoke, tmp_path, monkeypatch):
    key = tmp_path / "docket.key"
    (tmp_path / "first").write_text(invoke("key").stdout)
    arguments = ("rotate-key", "--who", "ada", "--why", "the year is over", "--yes")
    assert invoke("rotate-key", "--yes").exit_code == 2
    assert invoke(*arguments[:-1], input="n\n").exit_code == 1 and not log_append.next_key(key).exists()
    prepared = invoke("rotate-key", "--prepare").stdout
    assert invoke("rotate-key", "--prepare").stdout == prepared, "generated once"

    def killed(_):
        raise OSError("killed")

    with monkeypatch.context() as cut:
        cut.setattr("serving.cli.rotation.settle_keys", killed)
        assert invoke(*arguments).exit_code != 0
    assert invoke("key").stdout == prepared, "the docket has changed its key, the files have not"
    refused = invoke("rotate-key", "--prepare")
    assert refused.exit_code == 1 and "has already gone over to" in refused.stderr and prepared not in refused.stdout
    result = invoke(*arguments)
    assert result.exit_code == 0 and result.stdout == prepared
    assert "(ada: the year is over)" in result.stderr and "No further rotation was made" in result.stderr
    assert str(log_append.read_key(key).verifier) == prepared.strip() and not log_append.next_key(key).exists()
    (retired,) = tmp_path.glob("docket.key.retired-*")
    for path in (key, retired):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    every = invoke("key", "--all").stdout
    assert every.splitlines() == [(tmp_path / "first").read_text().strip(), prepared.strip()]
    (tmp_path / "keys").write_text(every)
    for keys in ("first", "keys"):
        verified = invoke("verify", "--key", tmp_path / keys)
        assert "KEY" not in verified.output and "CHECKPOINT" not in verified.output, verified.output
    again = invoke(*arguments)
    assert again.exit_code == 0 and len(invoke("key", "--all").stdout.splitlines()) == 3
    assert "No further" not in again.stderr

    # A further rotation first finishes the interrupted one, and does not claim to have been made itself.
    with monkeypatch.context() as cut:
        cut.setattr("serving.cli.rotation.settle_keys", killed)
        assert invoke(*arguments).exit_code != 0
    stolen = ("rotate-key", "--who", "ada", "--why", "a laptop was stolen", "--compromised", "--yes")
    finished = invoke(*stolen)
    assert finished.exit_code == 3 and "No further rotation was made" in finished.stderr
    assert len(invoke("key", "--all").stdout.splitlines()) == 4 and not log_append.next_key(key).exists()
    assert invoke(*stolen).exit_code == 0 and len(invoke("key", "--all").stdout.splitlines()) == 5


def verify(response, key):
    """Verifies the receipt of a response and returns its contents."""
    receipt = response.receipt
    return alone.verify_receipt(
        [key],
        checkpoint=receipt.checkpoint,
        entry=receipt.entry,
        header=receipt.header,
        proof=receipt.proof,
        trial_id=response.verdict_id,
    )


def request_for(text, request_id=""):
    return wire.JudgeRequest(image=IMAGE, text=text, request_id=request_id)


def test_every_verdict_has_a_receipt_even_if_it_is_reused(tmp_path):
    async def scene():
        async with a_scene(tmp_path, reuse="namespace") as scene:
            key = await scene.docket.log.vkey()
            first = await scene.stub.Judge(request_for("one", "r1"))
            logged = verify(first, key)
            # Repeated by the same request id, by others, and by a request answered from memory.
            for again in ("r1", "r2", "r3", "r4"):
                response = await scene.stub.Judge(request_for("one", again))
                assert response.verdict_id == first.verdict_id and verify(response, key) == logged
            second = await scene.stub.Judge(request_for("two", "r5"))
            assert verify(second, key).number > logged.number

            async def requests():
                for number in range(3):
                    yield wire.JudgeStreamRequest(request=request_for(f"text {number}", f"s{number}"))

            numbers = set()
            async for response in scene.stub.JudgeStream(requests()):
                assert response.HasField("verdict")
                numbers.add(verify(response.verdict, key).number)
            assert len(numbers) == 3
            other = VerifierKey("another", b"\x01" * 32)
            with pytest.raises(alone.Violated):
                verify(first, str(other))

    asyncio.run(scene())


@pytest.mark.slow
def test_receipts_as_json_are_verified_by_command_and_are_anchors(tmp_path, capsys):
    """A client's stored receipts serve as checkpoints: with them, an exported trial is proven to be the one judged."""
    answers, keys, bundle = tmp_path / "answers.jsonl", tmp_path / "key", tmp_path / "bundle.json"

    async def scene():
        async with a_scene(tmp_path) as scene:
            key = await scene.docket.log.vkey()
            keys.write_text(f"{key}\n")
            responses = [await scene.stub.Judge(request_for(f"text {number}")) for number in range(3)]
            lines = [json_format.MessageToJson(response, indent=None) + "\n" for response in responses]
            answers.write_text("".join(lines))
            (tmp_path / "one.json").write_text(json_format.MessageToJson(responses[0]))
            bundle.write_text(await scene.docket.auditor.bundle(responses[1].verdict_id))
            anchor = read_anchor(answers)
            assert len(anchor.notes) == 3
            report = await scene.docket.auditor.audit([VerifierKey.parse(key)], [anchor])
            assert report.anchors == 3 and not report.unchecked
            # The scene's pictures are fakes, everything else is intact.
            assert {str(fault) for fault in report.counts} == {"PICTURE_DIFFERS"}
            assert report.anchored == max(alone.open_checkpoint(note, [key]).size for note in anchor.notes)

    asyncio.run(scene())
    assert alone.main([str(tmp_path / "one.json"), "--key", str(keys)]) == 0
    assert alone.main([str(answers), "--key", str(keys)]) == 0
    assert alone.main([str(bundle), "--key", str(keys), "--receipt", str(answers)]) == 0
    assert "receipts  1 agree" in capsys.readouterr().out
    # A response with another response's receipt is rejected.
    first, second = (json.loads(line) for line in answers.read_text().splitlines()[:2])
    (tmp_path / "swapped.json").write_text(json.dumps({**first, "receipt": second["receipt"]}))
    assert alone.main([str(tmp_path / "swapped.json"), "--key", str(keys)]) == 1
