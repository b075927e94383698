"""Samples drawn by a beacon: verified by the auditor alone, and chosen by nobody."""

import copy
import csv
import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.verdict import Label
from memecourt.verify import CantCheck, Violated, main, verify_sample
from serving.cli.main import cli
from serving.docket.audit.sample import commit_sample, draw_sample, sign_result
from serving.docket.log.notes import SigningKey, VerifierKey, open_note
from tests.support.desks import trial, verdict
from tests.support.dockets import NOON, append_all, audited, opened_docket, with_docket

VALUE = "ab" * 32
BOUND = {"who": "eve", "count": 5, "beacon": "a chain of drand", "round": 7, "due": NOON + timedelta(hours=1)}


async def tried(docket, names):
    for number, name in enumerate(names):
        label = Label.HARMFUL if number % 3 else Label.NOT_HARMFUL
        await append_all(docket, trial(name, verdict(label, category="nationality"), words=f"words of {name}"))


def committed(docket, **changes):
    return commit_sample(docket.transactions, docket.log, {**BOUND, **changes}, at=NOON)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A commitment over 12 trials, one over 6 of them, the sample of each, and the docket's key."""

    async def work(docket):
        await tried(docket, [f"early-{n}" for n in range(6)])
        smaller = await committed(docket)
        await tried(docket, [f"late-{n}" for n in range(6)])
        larger = await committed(docket)
        await tried(docket, ["after"])
        late = await committed(docket, due=NOON + timedelta(seconds=1))
        samples = [
            await draw_sample(docket.transactions, docket.log, each["entry"], VALUE) for each in (smaller, larger)
        ]
        report = await audited(docket)
        assert set(report.counts) <= {"PICTURE_DIFFERS"}
        return smaller, larger, late, samples, await docket.log.vkey()

    return with_docket(tmp_path_factory.mktemp("sample") / "docket.sqlite", work)


def test_sample_is_what_the_value_draws_by_its_published_rule(made):
    _, larger, _, (_, text), key = made
    sample = verify_sample(text, [key], expected=larger, value=VALUE)
    assert len(sample.trials) == len(set(sample.trials)) == 5 and sample.drawn_from.size == 36 + 1
    # By hand: SHA-256 of the bound fields, then of that and a counter, modulo the size of the log.
    names = ("checkpoint", "count", "beacon", "round", "due")
    bound = json.dumps(["memecourt-sample/1", *(larger[name] for name in names), VALUE], separators=(",", ":"))
    seed, numbers, turn = hashlib.sha256(bound.encode()).digest(), [], 0
    draws = json.loads(text)["draws"]
    while len(numbers) < len(draws):
        number = int.from_bytes(hashlib.sha256(seed + turn.to_bytes(8, "big")).digest(), "big") % 37
        numbers += [] if number in numbers else [number]
        turn += 1
    assert [each["number"] for each in draws] == numbers


def test_sample_of_another_checkpoint_size_round_or_value_is_refused(made):
    smaller, larger, _, (small, large), key = made
    for expected, text in ((smaller, large), (larger, small)):
        with pytest.raises(Violated):
            verify_sample(text, [key], expected=expected, value=VALUE)
    other = {"count": 4, "beacon": "another", "round": 8, "due": "2001-01-01T00:00:00Z", "who": "ada", "entry": 1}
    for name, value in other.items():
        with pytest.raises(Violated):
            verify_sample(large, [key], expected={**larger, name: value}, value=VALUE)
    for value in ("00" * 32, VALUE[:-2], f"{VALUE}00"):
        with pytest.raises(Violated):
            verify_sample(large, [key], expected=larger, value=value)
    stranger = str(SigningKey.create(VerifierKey.parse(key).name).verifier)
    with pytest.raises(Violated):
        verify_sample(large, [stranger], expected=larger, value=VALUE)


def test_drawn_trials_can_be_neither_left_out_nor_exchanged(made):
    _, larger, _, (_, text), key = made
    file = json.loads(text)
    verdicts = [at for at, one in enumerate(file["draws"]) if '"kind":"VerdictGiven"' in one["header"]]
    others = [at for at in range(len(file["draws"])) if at not in verdicts]
    forged = []
    for at in range(len(file["draws"])):
        forged.append({**file, "draws": file["draws"][:at] + file["draws"][at + 1 :]})  # one left out
    for at in range(len(file["draws"]) - 1):
        draws = list(file["draws"])
        draws[at], draws[at + 1] = draws[at + 1], draws[at]
        forged.append({**file, "draws": draws})
    forged.append({**file, "draws": [*file["draws"], file["draws"][0]]})
    forged.append({**file, "draws": [file["draws"][verdicts[0]]] * 5})
    # A verdict under the header of an entry that is none, and the other way round.
    for at in (verdicts[0], others[0]):
        changed = copy.deepcopy(file)
        old, new = ("VerdictGiven", "TextRead") if at in verdicts else ("", "")
        header = changed["draws"][at]["header"]
        changed["draws"][at]["header"] = header.replace(old, new) if old else header.replace('"seq":', '"seq":1')
        forged.append(changed)
    for at in range(len(file["consistency"])):
        forged.append({**file, "consistency": file["consistency"][:at]})
    for each in forged:
        with pytest.raises((Violated, CantCheck)):
            verify_sample(json.dumps(each), [key], expected=larger, value=VALUE)
    assert len(forged) > 15


async def test_commitment_comes_before_the_round_and_no_entry_but_one_is_drawn_by(tmp_path):
    async with opened_docket(tmp_path / "docket.sqlite") as docket:
        await tried(docket, ["a", "b"])
        with pytest.raises(BadRequest):
            await committed(docket, due=NOON)
        with pytest.raises(BadRequest):
            await draw_sample(docket.transactions, docket.log, 0, VALUE)
        one = await committed(docket, count=9)
        with pytest.raises(BadRequest):
            await draw_sample(docket.transactions, docket.log, one["entry"], "no hex")
        text = await draw_sample(docket.transactions, docket.log, one["entry"], VALUE)
        key = await docket.log.vkey()
    # Of a log with fewer trials all are drawn, and it is shown that there are no more.
    assert sorted(verify_sample(text, [key], expected=one, value=VALUE).trials) == ["a", "b"]
    file = json.loads(text)
    file["draws"] = file["draws"][:-1]
    with pytest.raises(Violated):
        verify_sample(json.dumps(file), [key], expected=one, value=VALUE)


def test_all_trials_are_drawn_equally_often(tmp_path):
    from memecourt.verify import sample_numbers

    commitment = {"checkpoint": "c", "count": 1, "beacon": "b", "round": 1, "due": "d"}
    first = [next(sample_numbers(commitment, 10, f"{turn:04x}")) for turn in range(4000)]
    counts = [first.count(number) for number in range(10)]
    # Chi-square with nine degrees of freedom: 27.9 is passed by chance once in a thousand.
    assert sum((count - 400) ** 2 / 400 for count in counts) < 27.9


def test_result_is_signed_with_error_and_interval():
    key = SigningKey.create("court")
    pairs = {f"t{n}": (Label.HARMFUL, Label.HARMFUL if n else Label.NOT_HARMFUL) for n in range(8)}
    pairs["u"] = (Label.UNDECIDED, Label.HARMFUL)
    note = sign_result({"entry": 3, "beacon": "b", "round": 7}, [*pairs, "x"], pairs, key)
    lines = open_note(note, [key.verifier]).splitlines()
    expected = ["drawn 10", "not judged 1", "undecided 1", "compared 8", "wrong 1", "error 0.1250"]
    assert lines[:3] == ["memecourt-audit/1", "commitment 3", "beacon b 7"] and lines[3:9] == expected
    low, high = map(float, lines[9].split()[1:])
    assert (round(low, 3), round(high, 3)) == (0.022, 0.471)  # Wilson's interval for 1 of 8


def test_commands_commit_draw_and_audit_blind(tmp_path, monkeypatch):
    place = tmp_path / "docket.sqlite"
    with_docket(place, lambda docket: tried(docket, [f"t{n}" for n in range(6)]))
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        result = CliRunner().invoke(cli, ["docket", *arguments])
        assert result.exit_code == code, result.output
        return result.stdout

    due = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"
    bound = ("--who", "eve", "--count", "4", "--beacon", "drand", "--round", "9")
    run("commit", *bound, "--due", "2001-01-01", code=1)
    (tmp_path / "commitment.json").write_text(run("commit", *bound, "--due", due))
    run("sample", "commitment.json", "--value", VALUE)
    (tmp_path / "key").write_text(run("key"))
    check = ["sample.json", "--key", "key", "--commitment", "commitment.json", "--value"]
    assert main([*check, VALUE]) == 0 and main([*check, "00" * 32]) == 1
    sheet = (tmp_path / "sheet.csv").read_text()
    assert "HARMFUL" not in sheet.upper() and "nationality" not in sheet and "words of t" in sheet
    with (tmp_path / "sheet.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    filled = "trial_id,label\n" + "".join(f"{row['trial_id']},harmful\n" for row in rows[:3])
    (tmp_path / "filled.csv").write_text(filled)
    terms = ("--commitment", "commitment.json", "--value", VALUE)
    note = run("audit", "sample.json", "filled.csv", *terms)
    lines = open_note(note, [VerifierKey.parse((tmp_path / "key").read_text())]).splitlines()
    wrong = sum(int(row["trial_id"][1:]) % 3 == 0 for row in rows[:3])
    assert {"drawn 4", "not judged 1", "compared 3", f"wrong {wrong}"} <= set(lines)
    (tmp_path / "filled.csv").write_text("trial_id,label\nanother,harmful\n")
    run("audit", "sample.json", "filled.csv", *terms, code=1)
