"""Bundles of trials and receipts, checked by the stand-alone verifier."""

import base64
import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memecourt.verify as alone
from memecourt.verify import CantCheck, Violated, verify_bundle, verify_receipt
from serving.docket.audit.audit import bundle, signed_count
from serving.docket.log.errors import BadNote, BadProof
from serving.docket.log.notes import SigningKey, VerifierKey, open_checkpoint, open_note, sign_checkpoint, sign_note
from tests.support.dockets import events_of
from tests.support.logs import MemoryLog, root_at, verify_consistency

TRIAL = "trial-1"


@pytest.fixture(scope="module")
def log():
    """A log of three interleaved trials; the middle one quotes a part, and somebody viewed its picture."""
    log = MemoryLog()
    log.add("Part", '{"kind":"Part","of":"p1","value":"people from Blueland again"}')
    trials = [events_of(f"trial-{place}") for place in range(3)]
    for place in range(max(map(len, trials))):
        for events in trials:
            log.add_events(events[place : place + 1])
    log.add_picture_view(TRIAL, "ada-of-nowhere")
    log.add_events(events_of("trial-9"))
    return log


def bundle_of(log, trial_id=TRIAL, **options):
    entries = [entry for entry in log.entries if entry.trial_id == trial_id]
    return bundle(
        trial_id,
        entries,
        [entry for entry in log.entries if entry.kind == "Part"],
        checkpoint=log.checkpoint(),
        size=len(log.entries),
        count=signed_count(log.key, log.opened(), trial_id, len(entries)),
        read=log.read(),
        **options,
    )


def checkpoint_at(log, size):
    """Size and checkpoint of the log when it had that many entries."""
    return size, sign_checkpoint(log.key, log.key.name, size, root_at(size, log.read()))


def keys_of(log):
    return [str(log.key.verifier)]


def test_bundle_verifies_the_whole_trial(log):
    trial = verify_bundle(bundle_of(log), keys_of(log))
    assert trial.trial_id == TRIAL and trial.checkpoint.size == len(log.entries)
    assert [entry.kind for entry in trial.entries] == [event.kind for event in events_of(TRIAL)] + ["PictureShown"]
    verdict_event = trial.last("VerdictGiven")
    assert (
        verdict_event is not None
        and verdict_event["verdict"]["label"] == events_of(TRIAL)[-1].model_dump(mode="json")["verdict"]["label"]
    )
    # The viewer's name is withheld by default; that somebody viewed the picture is shown.
    assert trial.hidden == 1 and "ada-of-nowhere" not in bundle_of(log)
    assert verify_bundle(bundle_of(log, withheld=()), keys_of(log)).hidden == 0


def test_bundle_is_refused_with_the_key_of_another_docket(log):
    other = SigningKey.create(log.key.name)
    with pytest.raises(Violated, match="not signed with the given key"):
        verify_bundle(bundle_of(log), [str(other.verifier)])
    for bad in ("", "court.example/docket", keys_of(log)[0][:-2] + "AA"):
        with pytest.raises(CantCheck, match="public key"):
            verify_bundle(bundle_of(log), [bad])


def test_trusted_docket_cannot_sign_for_another_one(log):
    other = MemoryLog("other.example/docket")
    both = [*keys_of(log), *keys_of(other)]
    assert verify_bundle(bundle_of(log), both).checkpoint.origin == log.key.name
    value = json.loads(bundle_of(log))
    count = signed_count(other.key, log.opened(), TRIAL, len(value["entries"]))
    note = sign_checkpoint(other.key, log.key.name, len(log.entries), log.opened().root)
    for forged in ({"count": count}, {"checkpoint": note}, {"known": [{"checkpoint": note, "proof": []}]}):
        with pytest.raises(Violated):
            verify_bundle(json.dumps({**value, **forged}), both)
    with pytest.raises(BadNote):
        open_checkpoint(note, [log.key.verifier, other.key.verifier])


@pytest.mark.parametrize("place", ["middle", "end"])
def test_missing_entry_is_detected_even_with_a_corrected_count(log, place):
    value = json.loads(bundle_of(log))
    shorter = copy.deepcopy(value)
    events = len(events_of(TRIAL))
    del shorter["entries"][3 if place == "middle" else events]  # at the end: the entry of the viewing
    with pytest.raises(Violated, match="signed"):
        verify_bundle(json.dumps(shorter), keys_of(log))
    # A dishonest docket could sign the smaller count, but the gap would still show.
    shorter["count"] = signed_count(log.key, log.opened(), TRIAL, len(shorter["entries"]))
    if place == "middle":
        with pytest.raises(Violated, match="without gaps"):
            verify_bundle(json.dumps(shorter), keys_of(log))
    else:
        assert len(verify_bundle(json.dumps(shorter), keys_of(log)).entries) == events


def test_counts_of_other_trials_and_logs_are_refused(log):
    value = json.loads(bundle_of(log))
    entries = len(value["entries"])
    smaller = type(log.opened())(log.key.name, 5, bytes(32))
    for count in (
        signed_count(log.key, log.opened(), "trial-2", entries),
        signed_count(log.key, smaller, TRIAL, entries),
        log.checkpoint(),
        sign_note("some\nother\ntext\n", [log.key]),
    ):
        with pytest.raises(Violated, match="signed count"):
            verify_bundle(json.dumps({**value, "count": count}), keys_of(log))
    with pytest.raises(Violated, match="where a checkpoint has to"):
        verify_bundle(json.dumps({**value, "checkpoint": value["count"]}), keys_of(log))
    with pytest.raises(BadNote):
        open_checkpoint(value["count"], [log.key.verifier])
    with pytest.raises(BadNote):
        signed_count(log.key, log.opened(), "t\nentries 5", 1)


def test_swapped_entries_and_missing_parts_are_refused(log):
    value = json.loads(bundle_of(log))
    other = json.loads(bundle_of(log, "trial-2"))
    swapped = copy.deepcopy(value)
    swapped["entries"][2] = other["entries"][2]
    swapped["entries"].sort(key=lambda entry: entry["number"])
    with pytest.raises(Violated, match="another trial"):
        verify_bundle(json.dumps(swapped), keys_of(log))
    with pytest.raises(Violated, match="as a part"):
        verify_bundle(json.dumps({**value, "parts": value["entries"][:1]}), keys_of(log))
    quoting = MemoryLog()
    quoting.add("Part", '{"kind":"Part","of":"p1","value":"a text"}')
    quoting.add_events(events_of(TRIAL)[:1])
    quoting.add(
        "PrecedentsCited", f'{{"kind":"PrecedentsCited","seq":1,"text":{{"part":0}},"trial_id":"{TRIAL}"}}', TRIAL, 1
    )
    whole = json.loads(bundle_of(quoting))
    assert len(verify_bundle(json.dumps(whole), keys_of(quoting)).parts) == 1
    with pytest.raises(Violated, match="quotes entry 0"):
        verify_bundle(json.dumps({**whole, "parts": []}), keys_of(quoting))


def test_bundle_proves_consistency_with_known_checkpoints(log):
    """Any earlier size can be proven; an altered proof, or one of another size or log, proves nothing."""
    size = len(log.entries)
    known = [checkpoint_at(log, old) for old in range(size + 1)]
    value = json.loads(bundle_of(log, known=known))
    trial = verify_bundle(json.dumps(value), keys_of(log))
    assert [one.size for one in trial.known] == list(range(size + 1))
    for old, one in enumerate(value["known"]):
        other_root = sign_checkpoint(log.key, log.key.name, old, bytes(32))
        spoilt = [
            {**one, "checkpoint": other_root},
            {**one, "proof": [*one["proof"], base64.b64encode(bytes(32)).decode()]},
        ]
        if one["proof"]:
            spoilt += [{**one, "proof": one["proof"][:-1]}, {**one, "proof": one["proof"][1:]}]
        for bad in spoilt:
            with pytest.raises(Violated, match="not shown to continue"):
                verify_bundle(json.dumps({**value, "known": [bad]}), keys_of(log))
            note, proof = bad["checkpoint"], [base64.b64decode(part) for part in bad["proof"]]
            claimed = open_checkpoint(note, [log.key.verifier])
            with pytest.raises(BadProof):  # the court's own check agrees
                verify_consistency(old, size, claimed.root, log.opened().root, proof)
    larger = sign_checkpoint(log.key, log.key.name, size + 1, bytes(32))
    with pytest.raises(Violated, match="not shown to continue"):
        verify_bundle(json.dumps({**value, "known": [{"checkpoint": larger, "proof": []}]}), keys_of(log))


def test_erased_bodies_are_hidden_and_the_others_verify(log):
    value = json.loads(bundle_of(log))
    for entry in value["entries"][:-1]:
        entry["body"] = entry["salt"] = None
    trial = verify_bundle(json.dumps(value), keys_of(log))
    assert trial.hidden == len(trial.entries) and trial.last("VerdictGiven") is None
    value["entries"][0]["salt"] = base64.b64encode(bytes(32)).decode()
    with pytest.raises(Violated, match="lost its body"):
        verify_bundle(json.dumps(value), keys_of(log))


def places(value, path=()):
    """Yields the paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**63, 10**400, 1.5, "", "\0", "\ud800", "\u0663", "9" * 5000),
    *([], [[]], {}, {"": None}),
    *('{"a":"\\ud800"}', "[" * 900 + "]" * 900, '{"v":' * 300 + "1" + "}" * 300),
)
"""Values that occur in no bundle or receipt."""


def variants(value):
    """Yields copies of a value with one element removed, doubled, moved, or replaced by an odd or a similar value."""
    for *path, key in places(value):

        def spoilt(path=path):
            whole = copy.deepcopy(value)
            holder = whole
            for step in path:
                holder = holder[step]
            return whole, holder

        whole, holder = spoilt()
        former = holder.pop(key)
        yield whole
        near: tuple[Any, ...] = ()
        if isinstance(former, str) and former:
            middle = len(former) // 2
            near = (former[:-1], former[1:], f"{former[:middle]}é{former[middle + 1 :]}", former + "A")
        elif isinstance(former, int):
            near = (former - 1, former + 1)
        for odd in (*ODD_VALUES, *near):
            whole, holder = spoilt()
            holder[key] = odd
            yield whole
        if isinstance(holder, list):
            whole, holder = spoilt()
            holder.insert(key, holder[key])
            yield whole
            whole, holder = spoilt()
            holder.reverse()
            yield whole


def small_log():
    """A log with the shortest possible trial and a part that it quotes."""
    log = MemoryLog()
    log.add("Part", '{"kind":"Part","of":"p1","value":"a text"}')
    log.add_events(events_of(TRIAL)[:1])
    log.add("PrecedentsCited", f'{{"kind":"PrecedentsCited","p":{{"part":0}},"seq":1,"trial_id":"{TRIAL}"}}', TRIAL, 1)
    log.add("VerdictGiven", f'{{"kind":"VerdictGiven","seq":2,"trial_id":"{TRIAL}"}}', TRIAL, 2)
    return log


def test_malformed_bundles_neither_verify_nor_crash():
    log = small_log()
    text = bundle_of(log, known=[checkpoint_at(log, 1), checkpoint_at(log, 3)])
    right = verify_bundle(text, keys_of(log))
    for value in variants(json.loads(text)):
        altered = json.dumps(value)
        try:
            trial = verify_bundle(altered, keys_of(log))
        except (Violated, CantCheck):
            continue
        assert [entry.header for entry in trial.entries] == [entry.header for entry in right.entries]
        assert [entry.header for entry in trial.parts] == [entry.header for entry in right.parts]
        assert set(trial.known) <= set(right.known)
        assert all(entry.body in (None, was.body) for entry, was in zip(trial.entries, right.entries, strict=True))


def test_empty_bundles_are_refused(log):
    """Even if the docket's own key signed a count of no entries, or only of entries that are no events."""
    for text in ("", "null", "[]", "{}", "0", '{"format":"memecourt-bundle/1"}', bundle_of(log)[:-200]):
        with pytest.raises(CantCheck):
            verify_bundle(text, keys_of(log))
    with pytest.raises(CantCheck, match="No public key"):
        verify_bundle(bundle_of(log), [])
    with pytest.raises(Violated, match="not opened"):
        verify_bundle(bundle_of(log, "trial-of-which-there-is-none"), keys_of(log))
    only_viewings = MemoryLog()
    only_viewings.add_picture_view(TRIAL, "ada")
    with pytest.raises(Violated, match="not opened"):
        verify_bundle(bundle_of(only_viewings), keys_of(only_viewings))
    # A duplicate key: other programs may read the first.
    text = bundle_of(log).replace('"trial":', '"trial": "trial-2",\n "trial":', 1)
    with pytest.raises(CantCheck):
        verify_bundle(text, keys_of(log))


def test_withheld_last_review_is_not_replaced_by_an_earlier_one():
    log = small_log()
    for seq, outcome in ((3, "UPHELD"), (4, "OVERRULED")):
        body = f'{{"kind":"VerdictReviewed","outcome":"{outcome}","seq":{seq},"trial_id":"{TRIAL}"}}'
        log.add("VerdictReviewed", body, TRIAL, seq)
    value = json.loads(bundle_of(log))
    last = verify_bundle(json.dumps(value), keys_of(log)).last("VerdictReviewed")
    assert last is not None and last["outcome"] == "OVERRULED"
    value["entries"][-1] |= {"body": None, "salt": None}
    trial = verify_bundle(json.dumps(value), keys_of(log))
    assert trial.last("VerdictReviewed") is None and trial.kinds_hidden == ("VerdictReviewed",)


def receipt_of(log, number):
    return {
        "checkpoint": log.checkpoint(),
        "entry": number,
        "header": log.entries[number].header(),
        "proof": log.proof(number),
    }


def test_receipt_proves_that_the_verdict_is_logged(log):
    (number,) = (one.number for one in log.entries if (one.trial_id, one.kind) == (TRIAL, "VerdictGiven"))
    receipt = receipt_of(log, number)
    logged = verify_receipt(keys_of(log), **receipt, trial_id=TRIAL)
    assert (logged.number, logged.trial_id, logged.kind) == (number, TRIAL, "VerdictGiven")
    wrong: list[tuple[str, Any]] = [
        ("entry", number + 1),
        ("header", log.entries[number].header().replace(b'"v":1', b'"v":2')),
        ("header", b" " + log.entries[number].header()),
        ("header", b'{"v":1,' + log.entries[number].header()[1:]),
        ("proof", receipt["proof"][:-1]),
        ("proof", [*receipt["proof"], bytes(32)]),
        ("checkpoint", receipt["checkpoint"].replace(f"\n{len(log.entries)}\n", f"\n{len(log.entries) + 1}\n")),
        ("trial_id", "trial-2"),
    ]
    for field, value in wrong:
        with pytest.raises(Violated):
            verify_receipt(keys_of(log), **{**receipt, "trial_id": TRIAL, field: value})
    with pytest.raises(Violated, match="another entry"):
        verify_receipt(keys_of(log), **receipt_of(log, 0))


def response_json(log, number):
    """A response with its receipt, as protobuf's JSON."""
    receipt = receipt_of(log, number)
    return {
        "verdictId": log.entries[number].trial_id,
        "receipt": {
            "checkpoint": receipt["checkpoint"],
            "entry": str(number),
            "header": base64.b64encode(receipt["header"]).decode(),
            "proof": [base64.b64encode(one).decode() for one in receipt["proof"]],
        },
    }


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(log, tmp_path, capsys):
    (tmp_path / "key").write_text(f"{log.key.verifier}\n")

    def run(name, content, *arguments):
        (tmp_path / name).write_text(content)
        status = alone.main([str(tmp_path / name), "--key", str(tmp_path / "key"), *arguments])
        output = capsys.readouterr()
        return status, output.out + output.err

    return run


def test_command_status_separates_right_violated_and_unchecked(log, run, tmp_path):
    text = bundle_of(log)
    number = next(one.number for one in log.entries if (one.trial_id, one.kind) == (TRIAL, "VerdictGiven"))
    status, output = run("bundle.json", text)
    assert status == 0 and output.endswith("right\n") and f"trial     {TRIAL}" in output and "hidden    1" in output
    assert run("bundle.json", text.replace("Blueland", "Redland")) == (
        1,
        "violated: The body of entry 0 is not the one that was logged.\n",
    )
    assert run("bundle.json", text[:-5])[0] == 2
    assert run("receipt.json", json.dumps(response_json(log, number))) == (
        0,
        f"trial {TRIAL}: its verdict is entry {number} of {len(log.entries)}\n"
        "receipts alone were checked: what else stands in the file, a bundle of the trial shows\nright\n",
    )
    # An option that can't be honoured is an error.
    for option in ("--receipt", "--anchor"):
        status, output = run(
            "receipt.json", json.dumps(response_json(log, number)), option, str(tmp_path / "receipt.json")
        )
        assert status == 2 and "right" not in output
    several = {**response_json(log, number), "format": "PNG"}
    assert run("receipts.jsonl", f"{json.dumps(several)}\n{json.dumps(several)}\n")[0] == 0
    assert run("receipt.json", json.dumps(response_json(log, number)["receipt"]))[0] == 0
    assert run("receipt.json", json.dumps(response_json(log, 0)))[0] == 1
    for content in ("{}", "no json", "", "\n\n", "[]", "{}\n{}\n"):
        assert run("none.json", content)[0] == 2
    assert alone.main([str(tmp_path / "missing"), "--key", str(tmp_path / "key")]) == 2


def test_bundle_is_compared_with_stored_receipts(log, run, tmp_path):
    number = next(one.number for one in log.entries if (one.trial_id, one.kind) == (TRIAL, "VerdictGiven"))
    receipts = tmp_path / "receipts.jsonl"
    # The file may contain receipts of other trials.
    others = [one.number for one in log.entries if one.kind == "VerdictGiven"]
    receipts.write_text("".join(json.dumps(response_json(log, other)) + "\n" for other in others))
    status, output = run("bundle.json", bundle_of(log), "--receipt", str(receipts))
    assert status == 0 and "receipts  1 agree" in output
    receipts.write_text(json.dumps(response_json(log, others[0])))
    assert log.entries[others[0]].trial_id != TRIAL
    assert run("bundle.json", bundle_of(log), "--receipt", str(receipts))[0] == 2
    receipts.write_text("")
    assert run("bundle.json", bundle_of(log), "--receipt", str(receipts))[0] == 2
    receipts.write_text(json.dumps({**response_json(log, number), "rationale": "a\u2028b"}, ensure_ascii=False))
    assert run("bundle.json", bundle_of(log), "--receipt", str(receipts))[0] == 0
    # The key's owner rewrites the log: the bundle alone verifies, but not together with the receipt.
    forged = MemoryLog()
    forged.key = log.key
    for entry in log.entries:
        body = (entry.body or "").replace("HARMFUL", "NOT_HARMFUL") if entry.number == number else entry.body or ""
        forged.add(entry.kind, body, entry.trial_id, entry.seq, entry.at)
    assert run("bundle.json", bundle_of(forged))[0] == 0
    assert run("bundle.json", bundle_of(forged), "--receipt", str(receipts)) == (
        1,
        f"violated: The docket has signed two different logs of {len(log.entries)} entries.\n",
    )
    forged.add_picture_view(TRIAL, "eve")
    assert run("bundle.json", bundle_of(forged), "--receipt", str(receipts))[1].startswith("violated: The receipt is")


def test_receipt_newer_than_the_bundle_is_no_violation(log, run, tmp_path):
    """The bundle was made during the trial."""
    events = events_of(TRIAL)
    running = MemoryLog()
    running.key = log.key
    running.add_events(events[:-1])
    text = bundle_of(running)
    running.add_events(events[-1:])
    (tmp_path / "receipt.json").write_text(json.dumps(response_json(running, len(events) - 1)))
    assert run("bundle.json", bundle_of(running), "--receipt", str(tmp_path / "receipt.json"))[0] == 0
    status, output = run("bundle.json", text, "--receipt", str(tmp_path / "receipt.json"))
    assert status == 2 and "came after this bundle" in output


def test_bundle_is_compared_with_stored_checkpoints(log, run, tmp_path):
    anchor = tmp_path / "anchor"
    anchor.write_text(checkpoint_at(log, 7)[1] + "\n" + checkpoint_at(log, 20)[1])
    shown = bundle_of(log, known=[checkpoint_at(log, 7), checkpoint_at(log, 20)])
    status, output = run("bundle.json", shown, "--anchor", str(anchor))
    assert status == 0 and "anchors   2 agree" in output
    # A checkpoint without a consistency proof can't be compared; one of another log proves a fork.
    status, output = run("bundle.json", bundle_of(log, known=[checkpoint_at(log, 7)]), "--anchor", str(anchor))
    assert status == 2 and "over 20 entries is not shown" in output
    anchor.write_text(sign_checkpoint(log.key, log.key.name, 20, bytes(32)))
    status, output = run("bundle.json", shown, "--anchor", str(anchor))
    assert status == 1 and "two different logs of 20 entries" in output
    anchor.write_text("nothing")
    assert run("bundle.json", shown, "--anchor", str(anchor))[0] == 2


def test_malformed_receipts_neither_verify_nor_crash(log, run):
    number = next(one.number for one in log.entries if (one.trial_id, one.kind) == (TRIAL, "VerdictGiven"))
    shown = 0
    for value in variants(response_json(log, number)):
        text = json.dumps(value)
        status, printed = run("receipt.json", text)
        if status == 0:
            # The trial's id is optional, and the entry may be a number or a string.
            assert value["receipt"] == response_json(log, number)["receipt"] and printed.endswith("right\n")
            shown += 1
    assert shown == 2  # without an id, and with an empty one


def test_control_characters_of_a_bundle_are_not_printed():
    log = MemoryLog()
    trial_id = "t\u009b2J\u202e"
    log.add("TrialOpened", json.dumps({"kind": "TrialOpened", "seq": 0, "trial_id": trial_id}), trial_id, 0)
    trial = verify_bundle(bundle_of(log, trial_id), keys_of(log))
    assert all(line.isascii() and line.isprintable() for line in alone._bundle_lines(trial))


def test_verifier_runs_as_a_single_file(log, tmp_path):
    """The single file runs from another folder without any of our packages or dependencies."""
    source = Path(alone.__file__).read_text()
    (tmp_path / "verify.py").write_text(source)
    (tmp_path / "bundle.json").write_text(bundle_of(log))
    (tmp_path / "key").write_text("".join(f"{key}\n" for key in keys_of(log)))
    program = (
        "import runpy, sys\n"
        "class Ours:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('court', 'serving', 'memecourt', 'grpc', 'pydantic', 'rfc8785'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Ours())\n"
        "sys.argv = ['verify.py', 'bundle.json', '--key', 'key']\n"
        "runpy.run_path('verify.py', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["right"]), done.stderr


def test_both_verifiers_agree_on_keys_and_notes(log):
    """Both accept and refuse the same notes, published and altered."""
    from tests.support import notes as published

    cases = [(published.SPEC_NOTE, published.SPEC_PUBLIC)]
    cases += [(f"{published.TEXT}\n{published.PETER_SIGNED}{published.ENOCH_SIGNED}", published.ENOCH_PUBLIC)]
    cases += [(log.checkpoint(), keys_of(log)[0])]
    rng = random.Random(1)
    for note, key in cases:
        assert alone._open_note(note, [key]) == open_note(note, [VerifierKey.parse(key)])
        for _ in range(200):
            place = rng.randrange(len(note))
            other = note[:place] + rng.choice("a \n+—=") + note[place + 1 :]
            taken = []
            for opened in (
                lambda other=other, key=key: alone._open_note(other, [key]),
                lambda other=other, key=key: open_note(other, [VerifierKey.parse(key)]),
            ):
                try:
                    taken.append(opened())
                except (Violated, BadNote):
                    taken.append(None)
            assert taken[0] == taken[1], other
