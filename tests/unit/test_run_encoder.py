"""Runs whose precedents are searched by another encoder than the built-in one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.events import Procedure
from eval.cli import cli
from eval.datasets.items import JudgedMeme
from eval.datasets.known import DATASETS
from eval.runs import run as runs
from eval.runs.folder import RunFolder
from eval.runs.plan import Plan
from eval.runs.precedents import Prepared, comparing, prepare_precedents, read_prepared
from eval.runs.progress import Progress
from eval.synthetic.make import Layout, make
from retrieval import open as choose
from retrieval.library.sources import Source
from serving.settings import Settings
from tests.support.encoders import PlainPictureReader, WordEncoder, png_of

COMPARING = WordEncoder()
SEARCHING = WordEncoder("other words", text_dim=24)
LONG = "one two three four five six seven eight nine ten"


class Told(Progress):
    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, sentence: str) -> None:
        self.told.append(sentence)


def prepare(root: Path, **options: Any) -> Prepared:
    memes = [("near", f"{LONG} eleven"), ("far", "quite other words"), ("further", "nothing of that kind")]
    lines = [json.dumps({"id": id_, "image": "a.png", "text": text, "label": "1"}) for id_, text in memes]
    (root / "train.jsonl").write_text("\n".join(lines))
    (root / "img").mkdir(exist_ok=True)
    (root / "img" / "a.png").write_bytes(png_of((250, 5, 5), (5, 5, 250)))
    (root / "img" / "b.png").write_bytes(png_of((250, 5, 5), (5, 5, 240)))
    judged = JudgedMeme(id="j", split="test", line=1, image="b.png", text=LONG, harmful=False, source_label="0")
    return asyncio.run(
        prepare_precedents(
            root / "library",
            train=[Source(root / "train.jsonl", pictures=root / "img")],
            judged=[judged],
            pictures=root / "img",
            reader=PlainPictureReader(),
            **options,
        )
    )


def test_what_is_too_near_is_told_by_one_encoder_and_searched_by_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = prepare(tmp_path / "one", encoder=COMPARING, compared_by=COMPARING)
    both = prepare(tmp_path / "two", encoder=SEARCHING, compared_by=COMPARING)
    assert [one.why for one in alone.excluded] == ["near-duplicate"]
    assert both.excluded == alone.excluded
    assert [meme.id for meme in both.library.memes] == ["far", "further"]
    assert both.library.manifest.encoder == SEARCHING.identity
    assert not alone.notes
    assert [str(COMPARING.identity) in note and str(SEARCHING.identity) in note for note in both.notes] == [True]

    assert prepare(tmp_path / "two", encoder=SEARCHING, compared_by=COMPARING).excluded == both.excluded
    assert read_prepared(tmp_path / "two" / "library", SEARCHING).notes == both.notes
    # Told by another, other precedents may be left out: that is another library.
    with pytest.raises(BadRequest) as other:
        prepare(tmp_path / "two", encoder=SEARCHING)
    assert other.value.reason == "LIBRARY_FOR_OTHERS"


def test_the_thresholds_encoder_is_the_built_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[WordEncoder] = []

    def builtin() -> WordEncoder:
        made.append(WordEncoder(choose.name_of("builtin")))
        return made[-1]

    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", builtin)
    told_by = comparing(SEARCHING)
    assert made == [told_by]
    assert comparing(told_by) is told_by
    assert len(made) == 1


def test_a_run_is_prepared_by_the_encoder_that_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path | None, str | None]] = []

    def load(library: Path | None, name: str | None = None) -> WordEncoder:
        asked.append((library, name))
        return SEARCHING

    monkeypatch.setattr(choose, "load_encoder_for", load)
    monkeypatch.setattr("serving.wiring.choose_encoder", lambda *asked: lambda: load(*asked))
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)
    made = make(tmp_path / "data", Layout.HARMEME, train=12, val=0, test=4, seed=1)
    plan = Plan(
        out=tmp_path / "run",
        name="run",
        dataset=DATASETS[made.dataset],
        data=made.root,
        split="test",
        procedure=Procedure.SUMMARY,
        protocols=DATASETS[made.dataset].protocols,
        settings=Settings(home=tmp_path / "home", picture_workers=1, encoder="open_clip:ViT-B-32/openai"),
    )
    progress = Told()
    folder: RunFolder = asyncio.run(runs.run(plan, progress))
    assert asked == [(None, "open_clip:ViT-B-32/openai"), (tmp_path / "run" / "library", "open_clip:ViT-B-32/openai")]
    assert folder.manifest().encoder == str(SEARCHING.identity)
    assert any(line.startswith("What is too near was told by words") for line in progress.told)


@pytest.mark.parametrize("command", ["run", "ablate"])
def test_an_encoder_that_there_is_not_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    made = make(tmp_path / "data", Layout.HARMEME, train=8, val=0, test=4, seed=1)
    options = ["--dataset", made.dataset, "--data", str(made.root), "--out", str(tmp_path / "out"), "--split", "test"]
    given = [command, *options, "--procedure", "summary", "--encoder", "nonsense"]
    done = CliRunner().invoke(cli, given)
    assert (done.exit_code, "There is no encoder 'nonsense'" in done.output) == (1, True), done.output
