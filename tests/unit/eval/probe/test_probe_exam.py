"""Exams from a probed target's failures: the original memes, their pictures, and a card that runs can read."""

import json
import shutil
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.card import read_card
from eval.datasets.known import find_card
from eval.datasets.read import read_split
from eval.models.samples import Sample, Samples, one_set
from eval.probe.exam import export_exam
from eval.probe.folder import REWRITTEN, SCORED, ProbeFolder
from eval.probe.refining import Limits
from eval.probe.run import ProbePlan, probe
from eval.runs.results import read_results
from tests.support.fakes import FakeReader
from tests.support.probing import TEXTS, ProbeWorld, scored, with_scripted_models, write_data_set


def a_probe(place, samples):
    """Runs a probe of a target that is weak on round hats: score 6 for originals, 3 for rewritten texts."""
    plan = ProbePlan(place, samples, target="Target/7B", controllers=("c0",), limits=Limits(steps=2, seeds=1), batch=3)
    place.mkdir()

    async def scene(_, opened):
        return await probe(plan, opened | {"Target/7B": opened["target"]}, FakeReader())

    with_scripted_models(place, ProbeWorld(), scene)
    return place


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = write_data_set(tmp_path_factory.mktemp("data") / "fhm")
    write_data_set(place / "more", [(f"{text}, again", harmful) for text, harmful in TEXTS * 2], split="train")
    rows = [json.loads(line) for line in (place / "more/train.jsonl").read_text().splitlines()]
    for row in rows:
        name = f"img/t{row['id']}.png"
        shutil.move(place / "more" / row["img"], place / name)
        row |= {"id": 1000 + row["id"], "img": name}
    (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.rmtree(place / "more")
    return place


@pytest.fixture(scope="module")
def probed(tmp_path_factory, data):
    return a_probe(tmp_path_factory.mktemp("probe") / "probe", samples_of(data))


def samples_of(data):
    return one_set(find_card("fhm"), data, "dev_seen", limit=None)


def read(card, split="exam"):
    return read_split(read_card(card), card.parent, split)


def refusal(probed, samples, target, **options):
    with pytest.raises(BadRequest) as caught:
        export_exam(probed, samples, target, **{"threshold": 6, **options})
    assert not target.exists() or not any(target.iterdir())
    return caught.value


def test_exam_has_the_failed_memes_as_in_the_data_set(tmp_path, probed, data):
    exam = export_exam(probed, samples_of(data), tmp_path / "exam", threshold=6)
    back = read(exam.card)
    assert (exam.memes, exam.harmful, back.problems) == (3, 3, ())
    assert {meme.id: meme.text for meme in back.memes} == {str(n): TEXTS[n - 1][0] for n in (3, 4, 5)}
    for meme in back.memes:
        assert (
            meme.harmful
            and (back.pictures / meme.image).read_bytes() == (data / "img" / f"{int(meme.id):05}.png").read_bytes()
        )
    rows = [json.loads(line) for line in (tmp_path / "exam/exam.jsonl").read_text().splitlines()]
    assert {(row["dataset"], row["split"], row["score"], *row["categories"]) for row in rows} == {
        ("fhm", "dev_seen", 6, "religion")
    }
    assert len(read(exam.card, "train").memes) == exam.train == 20
    assert exam.id.startswith("exam-target-7b-")


def test_rewritten_texts_are_never_in_an_exam(tmp_path, probed, data):
    # Rewritten texts score 3 and fail at the default threshold; their original memes do not.
    assert '"score": 3' in (probed / REWRITTEN).read_text()
    assert refusal(probed, samples_of(data), tmp_path / "none", threshold=4).reason == "EXAM_EMPTY"
    export_exam(probed, samples_of(data), tmp_path / "exam", threshold=6)
    assert "a hint" in (probed / REWRITTEN).read_text()
    assert not any(b"a hint" in path.read_bytes() for path in (tmp_path / "exam").glob("*.*"))


def test_exams_with_other_memes_have_other_ids(tmp_path, probed, data):
    ids = [
        export_exam(probed, samples_of(data), tmp_path / name, threshold=at).id
        for name, at in (("a", 6), ("b", 6), ("c", 9))
    ]
    assert ids[0] == ids[1] != ids[2]


def test_command_printed_by_the_export_runs_trials_on_the_exam(tmp_path, probed, data, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    words = ["probe", "export-exam", probed, "--data", data, "--to", tmp_path / "exam", "--threshold", 6]
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert "3 memes, 3 of them harmful" in done.output and not any(text in done.output for text, _ in TEXTS)
    command = done.output.splitlines()[-1].split()[1:]
    command[command.index("--out") + 1] = str(tmp_path / "run")
    outcome = CliRunner().invoke(cli, command)
    assert outcome.exit_code == 0, outcome.output
    assert [one.meme.id for one in read_results(tmp_path / "run").judged] == ["3", "4", "5"]
    assert all(one.prediction.trial for one in read_results(tmp_path / "run").judged)


def test_ids_from_several_data_sets_stay_distinct(tmp_path, data):
    other = write_data_set(tmp_path / "other", TEXTS, split="test")
    (other / "test.jsonl").write_text(
        "".join(
            json.dumps({"id": n, "image": f"img/{n:05}.png", "labels": ["very harmful"], "text": text}) + "\n"
            for n, (text, _) in enumerate(TEXTS, 1)
        )
    )
    both = Samples(
        (Sample(find_card("fhm"), data, "dev_seen"), Sample(find_card("synthetic-harmeme"), other, "test")), mixed=True
    )
    place = a_probe(tmp_path / "probe", both)
    exam = export_exam(place, both, tmp_path / "exam", threshold=6, with_train=False)
    ids = [f"{name}/{n}" for name in ("fhm", "synthetic-harmeme") for n in (3, 4, 5)]
    assert [meme.id for meme in read(exam.card).memes] == ids and exam.train == 0
    assert len({meme.image for meme in read(exam.card).memes}) == 6
    models = tmp_path / "models.toml"
    models.write_text(
        '[models.m]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n[probe]\nsample = [\n'
        f'{{ dataset = "fhm", data = {json.dumps(str(data))}, split = "dev_seen" }},\n'
        f'{{ dataset = "synthetic-harmeme", data = {json.dumps(str(other))}, split = "test" }},\n]\n'
    )
    words = ["probe", "export-exam", place, "--models", models, "--to", tmp_path / "b", "--threshold", 6]
    done = CliRunner().invoke(cli, [str(word) for word in [*words, "--without-train"]])
    assert done.exit_code == 0 and "--library LIBRARY" in done.output, done.output
    assert (tmp_path / "b/exam.toml").read_bytes() == exam.card.read_bytes()
    # One of the two data sets alone is not what was probed.
    assert refusal(place, samples_of(data), tmp_path / "c").reason == "DATA_DIFFERS"


def test_data_that_was_not_probed_is_refused(tmp_path, probed, data):
    changed = shutil.copytree(data, tmp_path / "changed")
    with (changed / "dev_seen.jsonl").open("a") as file:
        file.write(json.dumps({"id": 99, "img": "img/00001.png", "label": 0, "text": "more"}) + "\n")
    error = refusal(probed, samples_of(changed), tmp_path / "exam")
    assert error.reason == "DATA_DIFFERS" and "dev_seen.jsonl" in error.message


def test_pictures_outside_the_data_folder_are_not_copied(tmp_path, probed, data):
    outside = tmp_path / "secret.png"
    outside.write_bytes(b"not yours")
    changed = shutil.copytree(data, tmp_path / "changed")
    (changed / "img/00003.png").unlink()
    (changed / "img/00003.png").symlink_to(outside)
    assert refusal(probed, samples_of(changed), tmp_path / "exam").reason == "PICTURE_REFUSED"
    (changed / "img/00003.png").unlink()
    assert refusal(probed, samples_of(changed), tmp_path / "exam").reason == "PICTURE_MISSING"
    # In the train split, a meme without a picture is left out and counted, and one that leads outside is refused.
    again = shutil.copytree(data, tmp_path / "again")
    (again / "img/t1.png").unlink()
    exam = export_exam(probed, samples_of(again), tmp_path / "short", threshold=6)
    assert (exam.train, exam.without_picture) == (19, 1)
    # A file name that leads outside already yields no meme; only a link gets that far.
    rows = (again / "train.jsonl").read_text().replace("img/t2.png", "../../secret.png")
    (again / "train.jsonl").write_text(rows)
    assert export_exam(probed, samples_of(again), tmp_path / "shorter", threshold=6).train == 18
    assert all(b"not yours" not in path.read_bytes() for path in (tmp_path / "shorter").rglob("*.*"))
    # A row without a picture's name simply has no picture, and leads nowhere.
    (again / "train.jsonl").write_text(rows.replace("img/t4.png", ""))
    exam = export_exam(probed, samples_of(again), tmp_path / "nameless", threshold=6)
    assert exam.train == 17
    (again / "img/t3.png").unlink()
    (again / "img/t3.png").symlink_to(outside)
    assert refusal(probed, samples_of(again), tmp_path / "exam").reason == "PICTURE_REFUSED"


def test_exam_needs_a_finished_probe_and_an_empty_folder(tmp_path, probed, data):
    half = shutil.copytree(probed, tmp_path / "half")
    folder = ProbeFolder(half)
    folder.write_manifest(folder.manifest().model_copy(update={"finished": None}))
    assert refusal(half, samples_of(data), tmp_path / "exam").reason == "RUN_UNFINISHED"
    folder.write_manifest(folder.manifest().model_copy(update={"finished": datetime(2026, 1, 2, tzinfo=UTC)}))
    # A meme sorted as harmful that gold calls harmless is part of the exam too.
    folder.write(SCORED, [scored("7", "animal", "Cats can't be trusted.", 1)])
    exam = export_exam(half, samples_of(data), tmp_path / "exam")
    assert (exam.memes, exam.harmful) == (1, 0)
    (meme,) = read(exam.card).memes
    assert meme.harmful is False and meme.text == TEXTS[6][0]
    with pytest.raises(BadRequest, match="is not empty"):
        export_exam(half, samples_of(data), tmp_path / "exam")
    done = CliRunner().invoke(cli, ["probe", "export-exam", str(half), "--to", str(tmp_path / "x")])
    assert done.exit_code == 2 and "--data" in done.output
    done = CliRunner().invoke(cli, ["probe", "export-exam", str(tmp_path), "--data", str(data), "--to", "x"])
    assert done.exit_code == 1 and "holds no probe" in done.output
