"""Runs exported as Parquet."""

import json
import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from eval.datasets.items import Protocol
from eval.runs.results import read_results
from tests.support.arena_world import output_of
from tests.support.report_runs import write_report_run

TEXT = "a text that stays where it is"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_report_run(tmp_path_factory.mktemp("run") / "run")


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


def test_missing_options_are_reported(run):
    assert "Name a form" in output_of("export", run, code=2)


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
    assert "no meme of" in output_of("subgroups", some, "--by", "label")
    # No meme is left under any protocol: scoring reports that itself.
    assert replace(results, judged=()).scorable == results.protocols
