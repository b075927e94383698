"""The whole of ``memecourt-eval reproduce`` on drawn memes: every figure is the one that the oracle has to come to."""

import contextlib
import faulthandler
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.reproduce.demo import arguments, stand_ins
from eval.reproduce.drawn import ABILITIES, draw_benches
from eval.runs.folder import RunFolder
from eval.synthetic.make import read_key
from eval.synthetic.oracle import expected, rounds_of

TRAIN, TEST = 24, 16
RULED = (("people from Blueland never wash a cup", None, True),)
"""A precedent that is labelled by the hidden rule, as all are that a trial may be shown."""
ALTERED = {
    "full": {"precedents": RULED},
    "no-precedents": {},
    "no-advocates": {"precedents": RULED, "advocates": False},
    "no-captioner": {"precedents": RULED, "captioner": False},
    "dull-judge": {"dull": True},
    "post-stance": {"precedents": RULED, "stance_from_start": False},
}
ROWS = {
    "T1.hc": ("32b", "harm-c", "full"),
    "T1.hp": ("32b", "harm-p", "full"),
    "T1.fhm": ("32b", "fhm", "full"),
    "T2.rag": ("32b", "harm-c", "no-precedents"),
    "T2.da": ("32b", "harm-c", "no-advocates"),
    "T2.cc": ("32b", "harm-c", "no-captioner"),
    "T2.dull": ("32b", "harm-c", "dull-judge"),
    "T3.3b": ("3b", "harm-c", "full"),
    "T3.7b": ("7b", "harm-c", "full"),
    "T3.32b": ("32b", "harm-c", "full"),
    "T3.post": ("32b", "harm-c", "post-stance"),
}


def called(root, urls, *words, code=0):
    result = CliRunner().invoke(cli, [*arguments(root, urls), *words])
    assert result.exit_code == code, result.output[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """The command's folder, and the figures that it told."""
    # All runs of a paper take longer, on a busy machine, than a test may before it counts as hung.
    faulthandler.cancel_dump_traceback_later()
    root = tmp_path_factory.mktemp("reproduced")
    draw_benches(root / "data", train=TRAIN, test=TEST, size=(320, 240))
    with pytest.MonkeyPatch.context() as patched, stand_ins() as urls:
        patched.setenv("MEMECOURT_HOME", str(root / "home"))
        # Nothing is asked ahead: here servers and command share the processors, and what turns out to be superfluous
        # is in no figure.
        patched.setenv("MEMECOURT_LLM__CONCURRENCY", "1")
        told = json.loads(called(root, urls, "--json", "--with-leaks"))
        yield root, urls, told


def judged(root, bench):
    """Memes of a bench that are scored: of three levels, those that are not somewhat harmful."""
    test = "test_seen" if bench == "fhm" else "test"
    memes = [meme for meme in read_key(root / "data" / bench) if meme.split == test]
    return [meme for meme in memes if bench == "fhm" or meme.level != 1]


def rates(pairs):
    """Accuracy and macro-F1 of (gold, said), by their definitions."""
    f1s = []
    for label in (False, True):
        hits = sum(gold is label and said is label for gold, said in pairs)
        named = sum((gold is label) + (said is label) for gold, said in pairs)
        f1s.append(2 * hits / named if named else 0.0)
    return sum(gold is said for gold, said in pairs) / len(pairs), sum(f1s) / 2


def said_by_the_oracle(root, size, bench, arm):
    ability = ABILITIES[size]
    return [
        (meme.harmful, expected(meme.text, meme.badge, ability, **ALTERED[arm]).harmful) for meme in judged(root, bench)
    ]


def test_every_row_is_filled_and_is_the_oracle_s_to_the_last_digit(held):
    root, _, told = held
    assert told["finished"] is True
    rows = {row["id"]: row for row in told["rows"] if row["id"]}
    assert rows.keys() == ROWS.keys()
    for id_, (size, bench, arm) in ROWS.items():
        accuracy, macro_f1 = rates(said_by_the_oracle(root, size, bench, arm))
        ours, published = rows[id_]["ours"], rows[id_]["published"]
        assert ours["n"] == len(judged(root, bench))
        assert math.isclose(ours["accuracy"]["value"], accuracy, abs_tol=1e-12), id_
        assert math.isclose(ours["macro_f1"]["value"], macro_f1, abs_tol=1e-12), id_
        assert math.isclose(published["accuracy"], 100 * accuracy, abs_tol=1e-9)
        assert math.isclose(published["macro_f1"], 100 * macro_f1, abs_tol=1e-9)
        assert rows[id_]["reached"] == "within interval"
    # A demonstration in which everything came out alike would show nothing.
    assert len({row["ours"]["accuracy"]["value"] for row in rows.values()}) > 2


def test_no_meme_that_is_somewhat_harmful_is_judged_or_a_precedent(held):
    root, _, _ = held
    run = RunFolder(root / "study" / "32b" / "harm-c" / "full")
    assert {meme.id for meme in run.memes()} == {meme.id for meme in judged(root, "harm-c")}
    manifest = run.manifest()
    assert manifest.dropped_labels == ("somewhat harmful",)
    train = [meme for meme in read_key(root / "data" / "harm-c") if meme.split == "train"]
    assert manifest.library_size == sum(meme.level != 1 for meme in train)
    assert manifest.settings["judge_order"] == "defender first" and manifest.settings["tally_shown"] is False


def test_controls_and_comparators_stand_beside_the_published_rows(held):
    root, _, told = held
    ours = {row["arm"]: row for row in told["rows"] if not row["id"]}
    assert ours.keys() == {
        "random-precedents", "shuffled-labels", "swapped-sides", "plain-judge", "equal-compute", "mars", "with-leaks"
    }  # fmt: skip
    full = next(row for row in told["rows"] if row["id"] == "T1.hc")
    assert 0.5 * full["tokens"] < ours["equal-compute"]["tokens"] <= full["tokens"]
    assert (ours["plain-judge"]["calls"], ours["mars"]["calls"]) == (1, 4)
    dull = rates(said_by_the_oracle(root, "32b", "harm-c", "dull-judge"))[0]
    assert ours["plain-judge"]["ours"]["accuracy"]["value"] == pytest.approx(dull)
    # Nothing was planted in these splits, and the oracle goes by the rule of any precedent.
    assert told["leaks"]["figure"]["value"] == 0 and "Worth of leaks" in (root / "study/reproduction.md").read_text()


def test_claims_and_figures_are_filled(held):
    root, _, told = held
    claims = {claim["id"]: claim for claim in told["claims"]}
    assert list(claims) == [f"C{number}" for number in range(1, 8)]
    assert {id_ for id_, claim in claims.items() if claim["verdict"] == "not tested"} == {"C7"}
    (rounds,) = {part["figure"]["value"] for part in claims["C5"]["parts"]}
    assert rounds == 0  # the oracle's rounds hang on the meme's text alone
    for one in told["figure_5"]["harm-c"]:
        counted = [rounds_of(meme.text) for meme in judged(root, "harm-c") if meme.harmful is one["harmful"]]
        assert one["n"] == len(counted) and one["mean"] == pytest.approx(sum(counted) / len(counted))
    assert told["figure_4"]["meme"] in {meme.id for meme in judged(root, "harm-p")}
    page = (root / "study" / "reproduction.html").read_text()
    text = (root / "study" / "reproduction.md").read_text()
    for title in ("Table 1", "Table 2", "Table 3", "Claims", "Figure 3", "Figure 4", "Figure 5", "What differs"):
        assert title in page and title in text
    assert page.count("<svg") == 3 and "What badge is shown in the middle" in text
    # Words stand in the folder alone.
    assert "badge" not in json.dumps(told)
    assert json.loads((root / "study" / "reproduction.json").read_text()) == told


def test_what_is_finished_needs_no_server_and_asks_nothing(held):
    root, _, told = held
    nobody = dict.fromkeys(ABILITIES, "http://127.0.0.1:9/v1")
    assert json.loads(called(root, nobody, "--json")) == told
    gone = CliRunner().invoke(cli, [*arguments(root, nobody), "--seed", "5"])
    assert gone.exit_code == 1 and "begun with something else: seed" in gone.output


def test_a_run_that_lost_a_prediction_is_taken_up_where_it_was(held, tmp_path):
    root, urls, told = held
    run = RunFolder(root / "study" / "7b" / "harm-c" / "full")
    predictions, manifest = run.predictions(), run.manifest()
    with contextlib.suppress(FileNotFoundError):
        Path(root / "study" / "reproduction.json").unlink()
    run.write_predictions(predictions[:-3])
    run.write_manifest(manifest.model_copy(update={"finished": None}))
    again = json.loads(called(root, urls, "--json"))
    strip = [{k: v for k, v in row.items() if k not in ("calls", "tokens")} for row in again["rows"]]
    assert strip == [{k: v for k, v in row.items() if k not in ("calls", "tokens")} for row in told["rows"]]
    assert run.manifest().interruptions == 1
