"""Known data sets: reading and checking them."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.card import SplitRole
from eval.datasets.check import DatasetFaultKind, check
from eval.datasets.items import LEVELS, Level, Protocol
from eval.datasets.known import find_card, known_cards, recognised
from eval.datasets.read import read_split, source_of
from eval.synthetic.make import Layout, Plant, make
from retrieval.library.library import Library
from retrieval.library.picture_finder import picture_path
from serving.cli.main import cli as memecourt
from tests.support.encoders import png_of
from tests.support.paths import ROOT

HARMEME = Path(os.environ.get("MEMECOURT_HARMEME", ROOT.parent / "shared/data/harmeme"))
"""Folder of the authors' annotations, if available; none of them are in the repository."""
LEVEL_WORDS = list(LEVELS)
MAMI_HEADER = "file_name\tmisogynous\tshaming\tstereotype\tobjectification\tviolence\tText Transcription\n"


def harmeme(path, *rows):
    """Writes rows given as (id, label, text) in HarMeme's format."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def line(id_, label, text):
        return json.dumps({"id": id_, "image": f"{id_}.png", "labels": [label], "text": text})

    lines = [row if isinstance(row, str) else line(*row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))


def many(count, prefix="m", labels=LEVEL_WORDS):
    return [(f"{prefix}{n}", labels[n % len(labels)], f"cake {prefix} {n}") for n in range(count)]


def kinds(report):
    return {(finding.kind, finding.split) for finding in report.findings}


def run_check(dataset, path, reader=None):
    return asyncio.run(check(find_card(dataset), path, reader=reader))


def test_known_data_sets_are_complete_and_their_class_counts_add_up():
    for dataset in known_cards():
        assert len(dataset.of_role(SplitRole.TRAIN)) == (dataset.id != "multi3hate") and dataset.of_role(SplitRole.TEST)
        assert dataset.source_url and dataset.citation and dataset.licence and dataset.verified
        for split in dataset.all_splits():
            labels = split.labels_of(dataset.court_task.id) if dataset.court_task else {}
            assert not labels or set(labels) <= set(dataset.court_task.labels)
            # Harm-P V1 has one row without a label.
            unlabelled = dataset.id == "harm-p" and split.name == "train"
            assert not labels or sum(labels.values()) + unlabelled == split.memes
    # The protocol of the court's paper leaves 251 memes, 21 of them harmful, as docs/datasets.md says.
    test = find_card("harm-c").split("test")
    labels = test.labels_of("harm")
    assert (test.memes, labels["very harmful"], labels["not harmful"]) == (354, 21, 230)


@pytest.mark.parametrize("folder", ["", "Harm-C", "HarMeme_V1/Annotations/Harm-C", "annotations", "Harm-C/annotations"])
def test_known_folder_layouts_are_read(tmp_path, folder):
    harmeme(tmp_path / folder / "val.jsonl", ("a", "not harmful", "x"), ("b", "very harmful", "y"))
    read = read_split(find_card("harm-c"), tmp_path, "val")
    assert [(m.id, m.harmful, m.level, m.line) for m in read.memes] == [
        ("a", False, Level.NOT_HARMFUL, 1),
        ("b", True, Level.VERY_HARMFUL, 2),
    ]
    assert list(read.files) == [f"{folder}/val.jsonl".lstrip("/")] and len(read.files) == 1
    assert read.pictures is None


def test_picture_folder_is_found_anywhere_in_the_data_set(tmp_path):
    harmeme(tmp_path / "Harm-C/train.jsonl", ("a", "not harmful", "x"))
    for folder in ("somewhere/deep/pictures", "Harm-C/images"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.png").write_bytes(png_of((1, 2, 3)))
        assert source_of(find_card("harm-c"), tmp_path, "train").pictures == tmp_path / folder
    assert picture_path(tmp_path, "../a.png") is None and picture_path(tmp_path, "/etc/hosts") is None


def test_unusable_rows_are_reported_and_the_others_read(tmp_path):
    rows = [("a", "not harmful", "x"), ("b", "", "secret zebra"), "cut", ("a", "very harmful", "y")]
    harmeme(tmp_path / "test.jsonl", *rows)
    read = read_split(find_card("harm-c"), tmp_path, "test")
    assert [meme.id for meme in read.memes] == ["a"] and not read.memes[0].harmful
    assert [(p.line, p.id, p.reason) for p in read.problems] == [
        (2, "b", "column labels.0: the label is empty"),
        (3, "", "the line is no JSON object"),
        (4, "a", "column id: its id stands in the file already"),
    ]


def test_missing_data_error_names_the_source(tmp_path):
    for dataset in (dataset for dataset in known_cards() if dataset.protocols):
        for split in dataset.all_splits():
            with pytest.raises(BadRequest) as missing:
                read_split(dataset, tmp_path, split.name)
            assert dataset.source_url in missing.value.message and split.files[0] in missing.value.message
    with pytest.raises(BadRequest, match="no split 'dev'; it has train, val, test"):
        read_split(find_card("harm-c"), tmp_path, "dev")
    with pytest.raises(BadRequest, match="no directory"):
        read_split(find_card("harm-c"), tmp_path / "none", "val")


def test_unlabelled_test_split_is_refused(tmp_path):
    (tmp_path / "test_seen.jsonl").write_text('{"id": 1, "img": "img/1.png", "text": "x"}\n')
    with pytest.raises(BadRequest, match="column label: there is no label, as in a test split"):
        read_split(find_card("fhm"), tmp_path, "test_seen")


def test_fhm_accepts_file_names_of_both_phases(tmp_path):
    row = '{"id": 7, "img": "img/07.png", "label": 1, "text": "x"}\n'
    (tmp_path / "dev.jsonl").write_text(row)
    (tmp_path / "test_unseen.jsonl").write_text(row)
    (tmp_path / "img").mkdir()
    (tmp_path / "img/07.png").write_bytes(png_of((1, 2, 3)))
    for split in ("dev_seen", "test_unseen"):
        read = read_split(find_card("fhm"), tmp_path, split)
        (meme,) = read.memes
        assert (meme.id, meme.harmful, meme.level, read.pictures) == ("7", True, None, tmp_path)
        assert meme.gold(Protocol.PLAIN) is True


def test_mami_joins_the_labels_of_its_test_split(tmp_path):
    tmp_path /= "MAMI"
    tmp_path.mkdir()
    for folder in ("TRAINING", "test"):
        (tmp_path / folder).mkdir()
    train = MAMI_HEADER + '1.jpg\t1\t0\t1\t0\t0\t"two\nlines"\n2.jpg\t0\t0\t0\t0\t0\tx\n3.jpg\t\t0\t0\t0\t0\tx\n'
    (tmp_path / "TRAINING/training.csv").write_text(train)
    (tmp_path / "test/Test.csv").write_text("file_name\tText Transcription\n8.jpg\ty\n9.jpg\tz\n")
    read = read_split(find_card("mami"), tmp_path, "train")
    assert [(m.id, m.harmful, m.text, m.targets) for m in read.memes] == [
        ("1.jpg", True, "two\nlines", ("stereotype",)),
        ("2.jpg", False, "x", ()),
    ]
    assert [p.reason for p in read.problems] == ["column misogynous: the label is empty"]
    with pytest.raises(BadRequest, match=r"without its labels: test_labels\.txt"):
        read_split(find_card("mami"), tmp_path, "test")
    (tmp_path / "test/test_labels.txt").write_text("8.jpg\t1\t1\t0\t0\t1\n9.jpg\t0\t0\t0\t0\t0\nbroken\t1\n")
    read = read_split(find_card("mami"), tmp_path, "test")
    assert [(m.id, m.harmful, m.text, m.targets) for m in read.memes] == [
        ("8.jpg", True, "y", ("shaming", "violence")),
        ("9.jpg", False, "z", ()),
    ]
    assert [p.reason for p in read.problems] == ["the line has 2 cells and not 6"]
    assert sorted(read.files) == ["test/Test.csv", "test/test_labels.txt"]
    assert [dataset.id for dataset in recognised(tmp_path)] == ["mami"]


def test_data_set_is_not_recognised_by_layout_alone(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"id": 7, "img": "img/07.png", "label": 1, "text": "x"}\n')
    with pytest.raises(BadRequest, match=r"file names of .*fhm.*, and as many rows as none") as refused:
        recognised(tmp_path)
    assert refused.value.reason == "DATA_UNRECOGNISED"


def test_versions_of_harm_p_are_distinguished_by_row_counts(tmp_path):
    for name, count, right, wrong in (("v0", 3020, "harm-p-v0", "harm-p"), ("v1", 2938, "harm-p", "harm-p-v0")):
        harmeme(tmp_path / name / "train.jsonl", *many(count))
        harmeme(tmp_path / name / "val.jsonl", *many(177, "v"))
        assert [dataset.id for dataset in recognised(tmp_path / name)] == [right]
        assert len(read_split(find_card(right), tmp_path / name, "val").memes) == 177
        with pytest.raises(BadRequest, match=f"--dataset {right}"):
            read_split(find_card(wrong), tmp_path / name, "val")
        assert (DatasetFaultKind.OTHER_DATA_SET, "train") in kinds(run_check(wrong, tmp_path / name))
        assert (DatasetFaultKind.OTHER_DATA_SET, "train") not in kinds(run_check(right, tmp_path / name))


def test_ambiguous_data_set_has_to_be_named(tmp_path):
    harmeme(tmp_path / "val.jsonl", *many(177))
    with pytest.raises(BadRequest, match="could be harm-c or harm-p"):
        recognised(tmp_path)
    harmeme(tmp_path / "val.jsonl", *many(3))
    with pytest.raises(BadRequest, match="as many rows as none"):
        recognised(tmp_path)


def test_published_release_has_no_faults_but_missing_pictures(tmp_path):
    for split in find_card("harm-c").splits:
        labels = [label for label, count in split.labels_of("harm").items() for _ in range(count)]
        rows = [(f"{split.name}{n}", label, f"{split.name} cake {n}") for n, label in enumerate(labels)]
        harmeme(tmp_path / f"Harm-C/{split.name}.jsonl", *rows)
    report = run_check("harm-c", tmp_path)
    assert kinds(report) == {(DatasetFaultKind.PICTURES_MISSING, split) for split in ("train", "val", "test")}
    assert [split.rows for split in report.splits] == [3013, 177, 354]
    # A single changed label shows in the counts.
    test = tmp_path / "Harm-C/test.jsonl"
    test.write_text(test.read_text().replace("somewhat harmful", "very harmful", 1))
    (differs,) = [
        finding for finding in run_check("harm-c", tmp_path).findings if finding.kind is DatasetFaultKind.COUNT_DIFFERS
    ]
    assert "102 somewhat harmful, 22 very harmful; published: 230 not harmful, 103 somewhat" in differs.what


def test_label_conflict_needs_equal_picture_and_text(tmp_path):
    rows = [("a", "not harmful", "One cake"), ("b", "very harmful", "one  CAKE")]
    unseen = [("d", "not harmful", "no picture"), ("e", "very harmful", "no picture")]
    harmeme(tmp_path / "train.jsonl", *rows, *unseen)
    harmeme(tmp_path / "test.jsonl", ("c", "very harmful", "one cake"))
    (tmp_path / "images").mkdir()
    for name, colour in (("a", (9, 9, 9)), ("b", (200, 9, 9)), ("c", (9, 9, 9))):
        (tmp_path / f"images/{name}.png").write_bytes(png_of(colour))
    report = run_check("synthetic-harmeme", tmp_path)
    found = {(finding.kind, finding.split): finding.where for finding in report.findings}
    assert found[DatasetFaultKind.TEXT_TWICE, "train+test"] == ("train:1 (a) = train:2 (b) = test:1 (c)",)
    assert found[DatasetFaultKind.TEXT_TWICE, "train"] == ("train:3 (d) = train:4 (e)",)
    assert found[DatasetFaultKind.PICTURE_TWICE, "train+test"] == ("train:1 (a) = test:1 (c)",)
    conflicts = {key: where for key, where in found.items() if key[0] is DatasetFaultKind.LABELS_CONFLICT}
    assert conflicts == {(DatasetFaultKind.LABELS_CONFLICT, "train+test"): ("train:1 (a) = test:1 (c)",)}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    root = tmp_path_factory.mktemp("planted") / "data"
    return make(root, Layout.HARMEME, train=12, val=4, test=8, plant=list(Plant))


def test_every_planted_fault_is_found(planted):
    async def run_check_with_pictures():
        reader = GuardedPictureReader(workers=1)
        try:
            return await check(find_card(planted.dataset), planted.root, reader=reader)
        finally:
            await reader.aclose()

    report = asyncio.run(run_check_with_pictures())
    found = {(finding.kind, finding.split): " ".join(finding.where) for finding in report.findings}
    by_kind = {(meme.planted, meme.split): meme for meme in planted.memes if meme.planted}
    across = "train+test"
    for planted_as, split, kind, where in (
        ("same id", "train", DatasetFaultKind.ID_TWICE, across),
        ("same file", "train", DatasetFaultKind.PICTURE_TWICE, across),
        ("same picture", "train", DatasetFaultKind.PICTURE_TWICE, across),
        ("same text", "train", DatasetFaultKind.TEXT_TWICE, across),
        ("damaged picture", "train", DatasetFaultKind.PICTURE_UNREADABLE, "train"),
        ("damaged picture", "test", DatasetFaultKind.PICTURE_UNREADABLE, "test"),
        ("missing picture", "train", DatasetFaultKind.PICTURES_MISSING, "train"),
        ("duplicate id", "train", DatasetFaultKind.ID_TWICE, "train"),
    ):
        meme = by_kind[planted_as, split]
        assert f"({meme.id})" in found[kind, where], planted_as
        assert f"({meme.of})" in found[kind, where] or not meme.of, planted_as
    damaged = [finding.what for finding in report.findings if finding.kind is DatasetFaultKind.ROW_DAMAGED]
    assert sorted(damaged) == [
        "column labels.0: it is no value that the card names for harm (not harmful, somewhat harmful, very harmful)",
        "column labels.0: the label is empty",
        "the line is no JSON object",
    ]
    # Rows that share only their text are no label conflict.
    assert DatasetFaultKind.LABELS_CONFLICT not in {finding.kind for finding in report.findings}


def test_re_encoded_duplicate_is_missed_without_decoding(planted):
    report = run_check(planted.dataset, planted.root)
    (twice,) = [finding for finding in report.findings if finding.kind is DatasetFaultKind.PICTURE_TWICE]
    by_kind = {meme.planted: meme for meme in planted.memes}
    assert by_kind["same file"].id in twice.where[0] and twice.count == 1


def test_commands_list_and_check_data_sets(planted, tmp_path):
    run = CliRunner().invoke
    listed = run(cli, ["datasets"])
    assert (
        listed.exit_code == 0 and "354 memes (230 not harmful, 103 somewhat harmful, 21 very harmful)" in listed.output
    )
    assert set(json.loads(run(cli, ["datasets", "--json"]).output)) == {card.id for card in known_cards()}
    found = run(cli, ["datasets", "check", str(planted.root)])
    assert found.exit_code == 1 and "! train: row damaged: column labels.0: the label is empty" in found.output
    assert "pictures were not decoded" in found.output
    as_json = json.loads(run(cli, ["datasets", "check", str(planted.root), "--json"]).output)
    assert as_json["datasets"][0]["splits"][0]["tasks"]["harm"].keys() <= set(LEVEL_WORDS)
    assert run(cli, ["datasets", "check", str(tmp_path)]).exit_code == 2
    assert run(cli, ["datasets", "check", str(tmp_path / "none")]).exit_code == 2
    unknown = run(cli, ["datasets", "check", str(tmp_path), "--dataset", "harm-q"])
    assert unknown.exit_code == 2 and "harm-c, harm-p," in unknown.output
    for command in ("check", "describe"):
        tabular = run(cli, ["datasets", command, str(planted.root), "--column", "label=toxicity"])
        assert tabular.exit_code == 2 and "--column go with a plain table, and no --dataset." in tabular.output
    for row, split in enumerate(("train", "val", "test")):
        harmeme(tmp_path / f"{split}.jsonl", (f"m{row}", LEVEL_WORDS[row], f"cake {row}"))
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / f"images/m{row}.png").write_bytes(png_of((row * 80, 9, 9)))
    clean = run(cli, ["datasets", "check", str(tmp_path), "--dataset", "synthetic-harmeme", "--decode"])
    assert (clean.exit_code, "nothing found" in clean.output) == (0, True)


@pytest.mark.skipif(not HARMEME.is_dir(), reason="HarMeme's annotations are not at hand (MEMECOURT_HARMEME)")
def test_real_annotations_match_the_published_counts(capfd):
    assert [dataset.id for dataset in recognised(HARMEME)] == ["harm-c", "harm-p"]
    for id_, usable in (("harm-c", 3013), ("harm-p", 2937)):
        read = read_split(find_card(id_), HARMEME, "train")
        assert len(read.memes) == usable and len({meme.id for meme in read.memes}) == usable
        report = run_check(id_, HARMEME)
        assert {(DatasetFaultKind.FILE_MISSING, "test"), (DatasetFaultKind.PICTURES_MISSING, "val")} <= kinds(report)
        assert DatasetFaultKind.COUNT_DIFFERS not in {finding.kind for finding in report.findings}


@pytest.mark.slow
def test_library_is_built_from_a_named_data_set(tmp_path):
    made = make(tmp_path / "data", Layout.HARMEME, train=16, val=4, test=0)
    place, data = tmp_path / "library", str(made.root)
    built = CliRunner().invoke(
        memecourt, ["precedents", "build", str(place), "--dataset", made.dataset, "--data", data]
    )
    assert built.exit_code == 0, built.output
    opened, train = Library.open(place, None), read_split(find_card(made.dataset), made.root, "train")
    assert {meme.id for meme in opened.memes} == {meme.id for meme in train.memes}
    assert {(meme.source, meme.split) for meme in opened.memes} == {(f"{made.dataset} train", "train")}
    assert all(meme.has_picture for meme in opened.memes)
    for wrong, message in (
        (["--dataset", "harm-q", "--data", data], "no data set"),
        (["--dataset", made.dataset], "belong together"),
        ([str(made.root / "train.jsonl"), "--dataset", made.dataset, "--data", data], "not both"),
        (["--dataset", made.dataset, "--data", data, "--pictures", data], "leave it out"),
        (["--dataset", "harm-c", "--data", str(tmp_path)], "train.jsonl"),
    ):
        refused = CliRunner().invoke(memecourt, ["precedents", "build", str(tmp_path / "none"), *wrong])
        assert refused.exit_code != 0 and message in refused.output
