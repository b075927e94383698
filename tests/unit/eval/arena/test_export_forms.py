"""Runs and arenas exported as Parquet, and as records of Every Eval Ever."""

import hashlib
import json
import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from eval.arena.boards import Estimate
from eval.arena.export import records_of_arena
from eval.arena.leaderboard import leaderboard
from eval.cli import cli
from eval.datasets.protocol import Protocol
from eval.reports.every_eval_ever import Publisher
from eval.runs.results import read_results
from eval.scores.metrics import card
from tests.support.arena_world import Arena
from tests.support.report_runs import write_report_run

TEXT = "a text that stays where it is"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_report_run(tmp_path_factory.mktemp("run") / "run")


def output_of(*command, code=0):
    ran = CliRunner().invoke(cli, [*map(str, command)])
    assert ran.exit_code == code, ran.output
    return ran.output


def all_strings(details):
    return all(isinstance(value, str) for value in details.values())


def test_parquet_export_matches_the_run_s_predictions(run, tmp_path):
    target = tmp_path / "run.parquet"
    results = read_results(run)
    assert f"{len(results.judged)} rows" in output_of("export", run, "--parquet", target)
    rows = pq.read_table(target).to_pylist()
    assert [row["id"] for row in rows] == [one.meme.id for one in results.judged]
    for row, one in zip(rows, results.judged, strict=True):
        assert row["outcome"] == one.prediction.outcome and row["score"] == one.prediction.score
        assert {name: row[f"gold_{name}"] for name in results.protocols} == {
            name: one.meme.gold(name) for name in results.protocols
        }
        assert "text" not in row
    metadata = pq.read_schema(target).metadata
    assert metadata[b"format"] == b"memecourt-predictions/1" and metadata[b"dataset"] == results.dataset.encode()
    assert "is there already" in output_of("export", run, "--parquet", target, code=1)


def test_every_eval_ever_record_has_the_report_s_figures_and_no_text(run, tmp_path):
    command = ("export", run, "--every-eval-ever", tmp_path, "--organization", "Blueland Institute")
    output_of(*command)
    (file,) = tmp_path.rglob("*.json")
    results = read_results(run)
    assert file.parent.relative_to(tmp_path).parts[:2] == ("data", results.dataset)
    record = json.loads(file.read_text())
    assert record["schema_version"] == "0.3.0" and record["eval_library"]["name"] == "memecourt"
    assert record["source_metadata"]["source_organization_name"] == "Blueland Institute"
    assert all_strings(record["eval_library"]["additional_details"])
    assert all_strings(record["model_info"]["additional_details"])
    assert {"deployment_type", "model_availability"} <= record["model_info"]["additional_details"].keys()
    by_name = {one["evaluation_name"]: one for one in record["evaluation_results"]}
    for protocol in results.protocols:
        scored = card(results, protocol, seed=results.manifest.seed)
        found = by_name[f"{results.dataset}/{results.split} ({protocol}): accuracy"]["score_details"]
        assert found["score"] == scored.strict.accuracy.value and found["uncertainty"]["num_samples"] == scored.n
        ends = found["uncertainty"]["confidence_interval"]
        assert (ends["lower"], ends["upper"]) == (scored.strict.accuracy.low, scored.strict.accuracy.high)
    # Readers compare many systems by these fields alone, so each result states its direction and range.
    for one in record["evaluation_results"]:
        config = one["metric_config"]
        assert config["score_type"] == "continuous" and config["min_score"] <= one["score_details"]["score"]
        assert config["lower_is_better"] == ("Brier" in one["evaluation_name"])
    (samples,) = tmp_path.rglob("*_samples.jsonl")
    lines = samples.read_bytes()
    detailed = record["detailed_evaluation_results"]
    assert detailed["checksum"] == hashlib.sha256(lines).hexdigest() and tmp_path / detailed["file_path"] == samples
    read = [json.loads(line) for line in lines.splitlines()]
    pairs = results.under(results.protocols[0])
    assert [one["sample_id"] for one in read] == [one.meme.id for _, one in pairs] and detailed["total_rows"] == len(
        read
    )
    assert sum(one["evaluation"]["is_correct"] for one in read) == sum(
        one.prediction.outcome.harmful is harmful for harmful, one in pairs
    )
    assert {one["evaluation_result_id"] for one in read} == {record["evaluation_results"][0]["evaluation_result_id"]}
    assert all(one["input"]["raw"] == "" for one in read)
    assert "is there already" in output_of(*command, code=1)
    other = tmp_path / "texts"
    output_of(*command[:3], other, *command[4:], "--with-texts")
    (samples,) = other.rglob("*_samples.jsonl")
    assert [json.loads(line)["input"]["raw"] for line in samples.read_text().splitlines()] == [
        one.meme.text for _, one in pairs
    ]


def test_missing_options_are_reported(run, tmp_path):
    assert "Name a form" in output_of("export", run, code=2)
    assert "Missing option --organization" in output_of("export", run, "--every-eval-ever", tmp_path, code=2)
    assert not list(tmp_path.iterdir())


def test_arena_leaderboards_are_exported_for_each_model(tmp_path):
    arena = Arena(tmp_path / "arena", memes=6)
    arena.hold()
    options = ("arena", "export", "--out", arena.root, "--organization", "Blueland Institute")
    assert "is not finished" in output_of(*options, "--every-eval-ever", tmp_path / "out", code=1)
    manifest = arena.folder.manifest()
    arena.folder.write_manifest(manifest.model_copy(update={"finished": manifest.created}))
    target = tmp_path / "boards.parquet"
    output_of(*options, "--every-eval-ever", tmp_path / "out", "--parquet", target)
    board = leaderboard(arena.root)
    rows = pq.read_table(target).to_pylist()
    assert len(rows) == 6 * 5
    overall = {row.model: row for row in board.board("overall").rows}
    assert {r["model"]: r["rating"] for r in rows if r["criterion"] == "overall"} == {
        name: row.rating.value if row.rating else None for name, row in overall.items()
    }
    records = [json.loads(file.read_text()) for file in (tmp_path / "out").rglob("*.json")]
    assert {record["model_info"]["name"] for record in records} == set(overall)
    for record in records:
        by_name = {one["evaluation_name"]: one["score_details"]["score"] for one in record["evaluation_results"]}
        assert by_name["overall: win rate"] == overall[record["model_info"]["name"]].win_rate
    assert "Name a form" in output_of("arena", "export", "--out", arena.root, code=2)


def test_arena_record_names_its_anchor_and_a_scale_that_covers_the_ratings(tmp_path):
    arena = Arena(tmp_path, memes=4, pairing="baseline", anchor="cedar")
    arena.hold()
    manifest = arena.folder.manifest()
    arena.folder.write_manifest(manifest.model_copy(update={"finished": manifest.created}))
    board = leaderboard(arena.root)

    def scales(*ratings):
        """Returns the scale of the overall rating in each record, if models have these ratings."""
        overall = board.boards[0]
        rows = [replace(row, rating=one) for row, one in zip(overall.rows, ratings, strict=True)]
        altered = replace(board, boards=(replace(overall, rows=tuple(rows), grouped=""),))
        publisher = Publisher("Blueland Institute")
        found = [one for record in records_of_arena(altered, publisher) for one in record.content["evaluation_results"]]
        rated = [one["metric_config"] for one in found if one["evaluation_name"] == "overall: rating"]
        assert all("cedar is at 1000" in one["evaluation_description"] for one in rated)
        return {(one["min_score"], one["max_score"]) for one in rated}

    estimates = [Estimate(900 + place, 800, 1200) for place in range(4)]
    assert scales(*estimates, Estimate(1000, None, None)) == {(0, 4000)}
    assert scales(*estimates, Estimate(-250, -1900, 100)) == {(-2000, 4000)}
    assert scales(*estimates, Estimate(4100, 4000, 4200)) == {(0, 5000)}


def test_unfinished_runs_and_protocols_without_memes_are_reported(run, tmp_path):
    halted = tmp_path / "halted"
    shutil.copytree(run, halted)
    manifest = json.loads((halted / "manifest.json").read_text())
    (halted / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    assert "stand as NOT_JUDGED" in output_of("export", halted, "--parquet", tmp_path / "halted.parquet")
    assert "NOT_JUDGED" not in output_of("export", run, "--parquet", tmp_path / "whole.parquet")
    # All memes are somewhat harmful: the protocol "extreme" drops every one of them.
    some = tmp_path / "some"
    shutil.copytree(run, some)
    memes = [json.loads(line) for line in (some / "memes.jsonl").read_text().splitlines()]
    lines = [json.dumps(meme | {"level": 1, "harmful": True}) for meme in memes]
    (some / "memes.jsonl").write_text("\n".join(lines) + "\n")
    results = read_results(some)
    assert results.scorable == (Protocol.MERGED,) and set(results.protocols) > {Protocol.MERGED}
    output_of("export", some, "--every-eval-ever", tmp_path, "--organization", "Blueland Institute")
    (file,) = tmp_path.rglob("data/**/*.json")
    names = [one["evaluation_name"] for one in json.loads(file.read_text())["evaluation_results"]]
    assert names and all("(merged)" in name for name in names)
    assert "no meme of" in output_of("subgroups", some, "--by", "label")
    # No meme is left under any protocol: scoring reports that itself.
    assert replace(results, judged=()).scorable == results.protocols
