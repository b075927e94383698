"""Tests of runs whose precedents are searched by another encoder than the built-in one."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.events import Procedure
from eval.cli import cli
from eval.datasets.items import JudgedMeme
from eval.datasets.known import find_card
from eval.runs import run as runs
from eval.runs.plan import Plan
from eval.runs.precedents import comparing, prepare_precedents, read_prepared
from eval.runs.results import RunFolder
from eval.session.engine import Progress
from eval.synthetic.make import Layout, make
from retrieval import open as choose
from retrieval.library.sources import Source
from serving.settings import Settings
from tests.support.encoders import PlainPictureReader, WordEncoder, png_of

COMPARING = WordEncoder()
SEARCHING = WordEncoder("other words", text_dim=24)
LONG = "one two three four five six seven eight nine ten"


class RecordingProgress(Progress):
    def __init__(self):
        self.messages: list[str] = []

    def tell(self, sentence):
        self.messages.append(sentence)


def prepare(root, **options):
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


def test_leaks_are_found_by_one_encoder_and_precedents_searched_by_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = prepare(tmp_path / "one", encoder=COMPARING, compared_by=COMPARING)
    both = prepare(tmp_path / "two", encoder=SEARCHING, compared_by=COMPARING)
    assert [excluded.why for excluded in alone.check.excluded] == ["near-duplicate"]
    assert both.check.excluded == alone.check.excluded
    assert [meme.id for meme in both.library.memes] == ["far", "further"]
    assert both.library.manifest.encoder == SEARCHING.identity
    assert not alone.check.notes
    assert [str(COMPARING.identity) in note and str(SEARCHING.identity) in note for note in both.check.notes] == [True]

    assert prepare(tmp_path / "two", encoder=SEARCHING, compared_by=COMPARING).check.excluded == both.check.excluded
    assert read_prepared(tmp_path / "two" / "library", SEARCHING).check.notes == both.check.notes
    # Another comparing encoder may exclude other precedents, which makes another library.
    with pytest.raises(BadRequest) as other:
        prepare(tmp_path / "two", encoder=SEARCHING)
    assert other.value.reason == "LIBRARY_FOR_OTHERS"


def test_leaks_are_compared_by_the_built_in_encoder(monkeypatch):
    encoders: list[WordEncoder] = []

    def builtin():
        encoders.append(WordEncoder(choose.name_of("builtin")))
        return encoders[-1]

    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", builtin)
    comparing_encoder = comparing(SEARCHING)
    assert encoders == [comparing_encoder]
    assert comparing(comparing_encoder) is comparing_encoder
    assert len(encoders) == 1


def test_run_uses_the_encoder_named_in_the_settings(tmp_path, monkeypatch):
    requests: list[tuple[Path | None, str | None]] = []

    def load(library, name=None):
        requests.append((library, name))
        return SEARCHING

    monkeypatch.setattr(runs, "load_encoder_for", load)
    monkeypatch.setattr("serving.wiring.choose_encoder", lambda *requests: lambda: load(*requests))
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)
    data = make(tmp_path / "data", Layout.HARMEME, train=12, val=0, test=4, seed=1)
    plan = Plan(
        out=tmp_path / "run",
        name="run",
        dataset=find_card(data.dataset),
        data=data.root,
        split="test",
        procedure=Procedure.SUMMARY,
        protocols=find_card(data.dataset).protocols,
        settings=Settings(home=tmp_path / "home", picture_workers=1, encoder="open_clip:ViT-B-32/openai"),
    )
    progress = RecordingProgress()
    folder: RunFolder = asyncio.run(runs.run(plan, progress))
    assert requests == [
        (None, "open_clip:ViT-B-32/openai"),
        (tmp_path / "run" / "library", "open_clip:ViT-B-32/openai"),
    ]
    assert folder.manifest().encoder == str(SEARCHING.identity)
    assert any(line.startswith("What is too near was told by words") for line in progress.messages)


@pytest.mark.parametrize("command", ["run", "ablate"])
def test_unknown_encoder_is_an_error(tmp_path, monkeypatch, command):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    data = make(tmp_path / "data", Layout.HARMEME, train=8, val=0, test=4, seed=1)
    options = ["--dataset", data.dataset, "--data", str(data.root), "--out", str(tmp_path / "out"), "--split", "test"]
    arguments = [command, *options, "--procedure", "summary", "--encoder", "nonsense"]
    done = CliRunner().invoke(cli, arguments)
    assert (done.exit_code, "There is no encoder 'nonsense'" in done.output) == (1, True), done.output
