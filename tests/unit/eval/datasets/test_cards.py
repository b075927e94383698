"""Data-set cards: reading memes by them, and the errors they raise."""

import hashlib
import json

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.verdict import Label
from eval.cli import cli
from eval.datasets.card import SplitRole, card_of
from eval.datasets.known import card_files, find_card, recognised
from eval.datasets.read import read_split, source_of
from retrieval.library.readers import read_source
from retrieval.library.sources import Source
from tests.support.cards import read_by_card, write_table
from tests.support.encoders import png_of

FRAMES = ("REAL", "HOAX", "CAUSE", "IMPACT", "ALLOCATION", "PROPRIATY", "ADEQUACY", "PROSPECT")
CLIMATE_COLUMNS = (
    *("subreddit", "User ID", "title", "Post URL", "Meme Image URL", "Upvotes", "Published Date", "OCR_corrected"),
    *("cc_filter", "meme_filter", "caption", *FRAMES, "Main Stance"),
)


def climate(root, count=24, split="test"):
    rows = [
        [
            *("pond", "Ada", "t", "p", f"https://i.example/{n}.jpg", n, "d", f"row {n}/nsecond"),
            *("yes", "yes", f"pond {n}"),
            *("yes" if n >> k & 1 else "no" for k in range(8)),
            ("convinced", "skeptical", "neither")[n % 3],
        ]
        for n in range(count)
    ]
    write_table(root / f"dataset/{split}_split.csv", CLIMATE_COLUMNS, rows)
    (root / "images").mkdir(exist_ok=True)
    (root / "images/3.jpg").write_bytes(png_of((1, 2, 3)))
    return root


def multi3hate(root, count=4):
    for language in ("en", "de", "es", "hi", "zh"):
        rows = [(n, f"Template {n}", "o", f"{language} {n}") for n in range(count)]
        header = ("Meme ID", "Template Name", "Original (English)", "Translation")
        write_table(root / f"data/captions/{language}.csv", header, rows)
        folder = root / f"data/memes/{language}/template_{language}"
        folder.mkdir(parents=True)
        for n in range(count):
            (folder / f"{n}.jpg").write_bytes(png_of((n, 2, 3)))
    votes = [(n, n % 2, 1, 0, f"{n % 2}.0", 0) for n in range(count)]
    write_table(root / "data/final_annotations.csv", ("Meme ID", "US", "DE", "MX", "CN", "IN"), votes)
    return root


def test_bundled_cards_are_valid():
    for id_ in card_files():
        card = find_card(id_)
        assert card.id == id_ and card.title and card.citation and card.licence and card.source_url and card.verified
        assert card_of(card.to_json(), "again") == card
        for task in card.tasks:
            assert task.official in task.metrics


def test_climate_memes_have_a_stance_and_frames(tmp_path):
    read = read_by_card(find_card("climatememes"), climate(tmp_path), "test")
    assert (len(read.memes), read.rows, read.problems, read.excluded) == (24, 24, (), 0)
    meme = read.memes[3]
    assert meme.tasks == {"stance": ("convinced",), "frames": ("REAL", "HOAX")}
    assert (meme.id, meme.text, meme.caption, meme.group) == ("3", "row 3\nsecond", "pond 3", "pond")
    assert (meme.language, meme.file, meme.line) == ("en", "dataset/test_split.csv", 5)
    # The paper spells this frame differently from its file.
    assert read.memes[32 % 24].tasks["frames"] == ("IMPACT",)
    assert read.picture_of(meme) == tmp_path / "images/3.jpg" and read.picture_of(read.memes[4]) is None
    assert "Ada" not in meme.model_dump_json()


def test_runs_are_refused_for_cards_without_a_harm_label(tmp_path):
    with pytest.raises(BadRequest, match="has no table court"):
        read_split(find_card("climatememes"), climate(tmp_path), "test")
    ran = CliRunner().invoke(
        cli, ["run", "--dataset", "climatememes", "--data", str(tmp_path), "--out", str(tmp_path / "run")]
    )
    assert ran.exit_code != 0 and "no table court" in ran.output


def test_multi3hate_has_a_label_by_each_of_five_juries(tmp_path):
    data = multi3hate(tmp_path)
    read = read_by_card(find_card("multi3hate"), data, "all")
    assert (len(read.memes), read.rows) == (20, 20)
    meme = read.memes[5]
    assert (meme.id, meme.language, meme.group, meme.text) == ("de-1", "de", "Template 1", "de 1")
    assert meme.tasks == {
        "hate:US": ("hateful",),
        "hate:DE": ("hateful",),
        "hate:MX": ("not hateful",),
        "hate:CN": ("hateful",),
        "hate:IN": ("not hateful",),
        "hate:own": ("hateful",),
    }
    assert read.picture_of(meme) == data / "data/memes/de/template_de/1.jpg"
    own = read_by_card(find_card("multi3hate:own"), data, "all:hi")
    assert [one.tasks for one in own.memes] == [{"hate": ("not hateful",)}] * 4
    with pytest.raises(BadRequest, match="a figure has no meaning without its jury"):
        read_split(find_card("multi3hate"), data, "all")
    judged = read_split(find_card("multi3hate:US"), data, "all:en")
    assert [one.harmful for one in judged.memes] == [False, True, False, True]
    assert judged.pictures == data and (data / judged.memes[1].image).is_file()
    source = source_of(find_card("multi3hate:US"), data, "all:en")
    assert [row.label.value for row in read_source(source).good] == ["NOT_HARMFUL", "HARMFUL"] * 2


def test_figmemes_have_figures_of_speech_and_texts_in_files_of_their_own(tmp_path):
    figures, splits = ("allusion", "exaggeration", "irony", "anthrop", "metaphor", "contrast"), ("train", "test")
    names = [f"0{n}.png" for n in range(6)]
    rows = [(name, splits[n % 2]) for n, name in enumerate(names)]
    write_table(tmp_path / "standard_split.tsv", ("img_name", "split"), rows, delimiter="\t")
    labels = [(name, *(int(n % 6 == place) for place in range(6)), "art") for n, name in enumerate(names)]
    header = ("img_name", *figures, "style")
    write_table(tmp_path / "figmemes_annotations.tsv", header, labels[::-1], delimiter="\t")
    texts = [(name, f"pond {name}") for name in names]
    write_table(tmp_path / "figmemes_ocrs.tsv", ("img_name", "text"), texts, delimiter="\t")
    read = read_by_card(find_card("figmemes"), tmp_path, "train")
    assert [one.tasks["figures"] for one in read.memes] == [("allusion",), ("irony",), ("metaphor",)]
    assert (read.memes[1].id, read.memes[1].text) == ("02.png", "pond 02.png") and read.problems == ()
    (tmp_path / "figmemes_annotations.tsv").unlink()
    with pytest.raises(BadRequest, match=r"figmemes_annotations\.tsv"):
        read_by_card(find_card("figmemes"), tmp_path, "train")


def languages_card(tmp_path, **changes):
    """Writes a card with two languages and two juries, and rows of each; returns its path."""
    for split in ("train", "test"):
        for language in ("en", "de"):
            write_table(tmp_path / f"{split}_{language}.csv", ("n", "A", "B"), [(n, n % 2, 0) for n in range(4)])
    lines = [
        'format = 1\nid = "kites"\ntitle = "Kites"\nlayout = { kind = "csv" }\nfields = { id = "n" }',
        '[[splits]]\nname = "train"\nrole = "train"\nfiles = ["train_{language}.csv"]\nlanguages = ["en", "de"]',
        '[[splits]]\nname = "test"\nrole = "test"\nfiles = ["test_{language}.csv"]\nlanguages = ["en", "de"]',
        "rows = 4\nclasses = { 'harm:A' = { no = 2, yes = 2 }, 'harm:B' = { no = 3, yes = 1 } }",
        '[[tasks]]\nid = "harm"\nkind = "binary"\nof = "{variant}"\nvariants = ["A", "B"]',
        'map = { "0" = "no", "1" = "yes" }\ncourt = { harmful = ["yes"], benign = ["no"] }',
    ]
    text = "\n".join(lines)
    for old, new in changes.items():
        text = text.replace(f'role = "{old}"', f'role = "{new}"')
    (tmp_path / "kites.toml").write_text(text)
    return tmp_path / "kites.toml"


def test_language_parts_of_a_split_are_not_counted_again(tmp_path):
    dataset = find_card(f"{languages_card(tmp_path)}:A")
    assert {split.name for split in dataset.all_splits()} == {
        "train",
        "train:en",
        "train:de",
        "test",
        "test:en",
        "test:de",
    }
    # Precedents come from all training splits: each row once, not again for its language.
    assert [split.name for split in dataset.of_role(SplitRole.TRAIN)] == ["train"]
    assert dataset.first_test() == "test"


def test_check_compares_published_class_counts_by_jury(tmp_path):
    card = languages_card(tmp_path)
    differs = "! test: count differs: {}8 no; published: 6 no, 2 yes"

    def output_of(name):
        return CliRunner().invoke(cli, ["datasets", "check", str(tmp_path), "--dataset", name]).output

    assert differs.format("harm:B: ") in output_of(str(card)) and "harm:A:" not in output_of(str(card))
    assert differs.format("") in output_of(f"{card}:B") and "count differs" not in output_of(f"{card}:A")


@pytest.mark.parametrize(
    "command", [["run"], ["classify", "--task", "harm:A"], ["classify", "--task", "harm:A", "--split", "template"]]
)
def test_commands_ask_for_a_split_when_the_card_has_no_test_split(tmp_path, command):
    card = languages_card(tmp_path, test="validation")
    options = ["--dataset", f"{card}:A" if command == ["run"] else str(card), "--data", str(tmp_path)]
    ran = CliRunner().invoke(cli, [*command, *options, "--out", str(tmp_path / "run")])
    assert ran.exit_code in (1, 2) and not (tmp_path / "run").exists()
    assert "Kites has no split of the role test. Name the split to judge: train, train:en" in ran.output


@pytest.mark.parametrize("metric", ["acuracy", "f1:maybe"])
@pytest.mark.parametrize(
    "command", [["datasets", "check", "DATA"], ["classify", "--task", "harm:A", "--data", "DATA", "--out", "OUT"]]
)
def test_unknown_metric_is_refused_before_any_model_call(tmp_path, command, metric):
    card = languages_card(tmp_path)
    card.write_text(card.read_text().replace('variants = ["A", "B"]', f'variants = ["A", "B"]\nmetrics = ["{metric}"]'))
    places = {"DATA": str(tmp_path), "OUT": str(tmp_path / "run")}
    ran = CliRunner().invoke(cli, [*(places.get(word, word) for word in command), "--dataset", str(card)])
    assert ran.exit_code in (1, 2) and f"names the metric '{metric}'. There are: accuracy, " in ran.output
    assert not (tmp_path / "run").exists()


def test_missing_jury_error_explains_how_to_name_one(tmp_path):
    with pytest.raises(BadRequest, match=r"one of A, B behind the data set or the card: kites:A, FILE\.toml:A\."):
        read_split(find_card(str(languages_card(tmp_path))), tmp_path, "test")


def test_multilingual_data_set_is_recognised_by_its_row_counts(tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "other").mkdir()
    assert [one.id for one in recognised(multi3hate(tmp_path / "published", 300))] == ["multi3hate"]
    with pytest.raises(BadRequest, match="has the file names of multi3hate, and as many rows as none of them"):
        recognised(multi3hate(tmp_path / "other", 4))


def test_run_without_a_train_split_is_refused(tmp_path):
    data = multi3hate(tmp_path)
    options = ["--dataset", "multi3hate:US", "--data", str(data), "--split", "all:en", "--out", str(tmp_path / "run")]
    ran = CliRunner().invoke(cli, ["run", *options, "--procedure", "summary"])
    assert ran.exit_code != 0 and "has no train split" in ran.output


def test_custom_card_is_named_by_its_file(tmp_path):
    (tmp_path / "mine.jsonl").write_text(
        "".join(json.dumps({"n": n, "words": f"pond {n}", "bad": n % 2}) + "\n" for n in range(4))
    )
    card = tmp_path / "mine.toml"
    card.write_text(
        'format = 1\nid = "mine"\ntitle = "Mine"\nlayout.kind = "jsonl"\nfields = {id = "n", text = "words"}\n'
        '[[splits]]\nname = "all"\nrole = "test"\nfiles = ["mine.jsonl"]\n'
        '[[tasks]]\nid = "harm"\nkind = "binary"\nof = "bad"\nmap = {"1" = "bad", "0" = "fine"}\n'
        'court = {harmful = ["bad"], benign = ["fine"]}\n'
    )
    read = read_split(find_card(str(card)), tmp_path, "all")
    assert [(m.id, m.harmful, m.source_label, m.text) for m in read.memes][:2] == [
        ("0", False, "fine", "pond 0"),
        ("1", True, "bad", "pond 1"),
    ]
    answers = tmp_path / "answers.csv"
    answers.write_text("id,label\n0,fine\n1,bad\n2,fine\n3,not_harmful\n")
    scored = CliRunner().invoke(
        cli, ["score", str(answers), "--dataset", str(card), "--data", str(tmp_path), "--split", "all", "--json"]
    )
    assert scored.exit_code == 0, scored.output
    assert json.loads(scored.output)["tables"][0]["rows"][0]["card"]["figures"]["accuracy"]["value"] == 0.75


def harm_c(root):
    rows = [
        {"id": f"covid_{n}", "image": f"covid_{n}.png", "labels": labels, "text": f"pond {n}\nsecond"}
        for n, labels in enumerate(
            [
                ["not harmful"],
                ["somewhat harmful", "individual"],
                ["very harmful", "community", "society"],
                [""],
                [],
                ["Very Harmful "],
                ["harmless?"],
            ]
        )
    ]
    path = root / "Harm-C/train.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]) + "cut\n\n")
    return path


def fhm(root):
    rows = [{"id": n, "img": f"img/{n:02}.png", "label": n % 2, "text": f"pond {n}"} for n in range(6)]
    rows += [{"id": 7, "img": "img/07.png", "text": "no label"}, {"id": 8, "img": "x", "label": 2, "text": ""}]
    path = root / "hateful_memes/train.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("id_", "written"),
    [("harm-c", harm_c), ("harm-p", lambda root: harm_c(root).rename(root / "train_v1.jsonl")), ("fhm", fhm)],
)
def test_cards_read_the_same_memes_as_the_library_s_reader(tmp_path, id_, written):
    """Compares two implementations: a card, and the older reader of single files."""
    path = written(tmp_path)
    read = read_split(find_card(id_), tmp_path, "train")
    rows = read_source(Source(path, name=f"{id_} train"))
    unique = [row for n, row in enumerate(rows.good) if row.id not in {one.id for one in rows.good[:n]}]
    harmful = [row.label is Label.HARMFUL for row in unique]
    labelled = [(m.id, m.line, m.image, m.text, m.source_label, m.targets) for m in read.memes]
    assert labelled == [(row.id, row.line, row.image, row.text, row.source_label, row.categories) for row in unique]
    assert [meme.harmful for meme in read.memes] == harmful and len(labelled) > 3
    assert {problem.line for problem in rows.problems} <= {problem.line for problem in read.problems}
    assert len(read.memes) + len(read.problems) == len(rows.good) + len(rows.problems)
    assert next(iter(read.files.values())) == hashlib.sha256(path.read_bytes()).hexdigest()
    source = source_of(find_card(id_), tmp_path, "train")
    assert read_source(source).good == unique and source.label == f"{id_} train"
