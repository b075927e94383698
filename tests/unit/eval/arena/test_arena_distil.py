"""Distilled judges: training examples without held-out families and memes, and evaluation against the teacher."""

import asyncio
import io
import json
import re
from types import SimpleNamespace

import pytest
from PIL import Image

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest
from court.meme import Frame
from eval.arena.distilled import LONGER, distil_sections, judged_by
from eval.arena.events import Judged
from eval.arena.judge_examples import mirrored_reasons, read_examples, write_examples
from eval.arena.words import words_of
from eval.models.metered import MeteredModel
from eval.models.samples import ShownMeme
from retrieval.library.readers import read_source
from retrieval.library.sources import Source
from tests.support.arena_world import DIMENSIONS, Arena, MemoryCallCache, output_of


def png():
    out = io.BytesIO()
    Image.new("RGB", (12, 9), (200, 30, 60)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def finished_arena(tmp_path_factory):
    arena = Arena(tmp_path_factory.mktemp("distil") / "arena", memes=20, swapped=True)
    frame = Frame(png(), 12, 9)
    arena.memes = tuple(
        ShownMeme(m.id, m.text, (frame,), m.pixels_sha256, m.harmful, m.source_label) for m in arena.memes
    )
    arena.hold()
    return arena


@pytest.fixture(scope="module")
def folder(finished_arena, tmp_path_factory):
    root = tmp_path_factory.mktemp("examples") / "sft"
    export(finished_arena, root, ["f"])
    return root


def export(arena, folder, hold_out):
    memes = {meme.id: meme for meme in arena.memes}
    write_examples(folder, arena.manifest(), arena.folder.events(), memes, hold_out=hold_out)


def test_training_examples_exclude_families_and_memes_of_the_test_set(finished_arena, folder):
    manifest, train = read_examples(folder, "train")
    _, test = read_examples(folder, "test")
    assert manifest.held_out == ("f",) and len(manifest.held_memes) == 2
    assert train and all("fir" not in (one.a, one.b) and one.meme not in manifest.held_memes for one in train)
    assert all("fir" in (one.a, one.b) or one.meme in manifest.held_memes for one in test)
    assert {one.meme for one in test} > set(manifest.held_memes)
    # Each judgement is there in both orders, with verdict and reasons to match the order shown.
    judged = [e for e in finished_arena.folder.events() if isinstance(e, Judged)]
    assert len(train) + len(test) == 2 * len(judged)
    judged_in = {(e.meme, e.task, e.a, e.b, e.judge): e for e in judged}
    for one in train:
        shown = (one.b, one.a) if one.mirrored else (one.a, one.b)
        own = judged_in[one.meme, one.task, *shown, one.teacher]
        score = own.verdicts["overall"].score
        assert one.verdict.score == (1 - score if one.mirrored else score)
        text = one.prompt[1]["content"]
        voices = re.findall(r"voice=(\w+)", text.split("Answer A.")[1])
        assert voices == [one.a, one.b] and set(one.keys) == set(DIMENSIONS)
    assert (folder / "pictures" / train[0].images[0]).read_bytes() == png()


@pytest.mark.parametrize(
    ("why", "mirrored"),
    [
        ("Answer A is right and B is not.", "Answer B is right and A is not."),
        ("Both see it; only B, not A, says why.", "Both see it; only A, not B, says why."),
        ("A longer answer is no better one.", None),
        ("It is so. A fact is wrong in B.", None),
        ("Neither says who is meant.", "Neither says who is meant."),
    ],
)
def test_reasons_are_mirrored_only_when_each_a_surely_names_an_answer(why, mirrored):
    assert mirrored_reasons(why) == mirrored


def test_libraries_refuse_judge_examples(folder):
    with pytest.raises(BadRequest) as caught:
        read_source(Source(path=folder / "train.jsonl"))
    assert caught.value.reason == "SOURCE_NOT_FOR_LIBRARIES"


def check_judges(folder, **replies):
    manifest, examples = read_examples(folder, "test")
    verdicts = {}
    for name, reply in replies.items():
        metered = MeteredModel(name, ScriptedModel(reply, name=name), store=MemoryCallCache())
        verdicts[name] = asyncio.run(judged_by(folder, examples, metered))
    (section,), report = distil_sections(
        manifest, examples, verdicts, families={"student": "a"}, usd_per_1000={"student": 1.0}, resamples=50
    )
    return section, report, {one["judge"]: SimpleNamespace(**one) for one in report["checks"]}


def verdict(word):
    return {"why": "because", **dict.fromkeys(DIMENSIONS, word)}


def test_student_that_repeats_its_teacher_has_no_error(finished_arena, folder):
    _, examples = read_examples(folder, "test")
    spelt = {verdict: word for word, verdict in words_of(3).items()}
    known = {one.prompt[1]["content"].strip(): spelt[one.verdict] for one in examples if not one.mirrored}

    def teacher(request):
        return verdict(known[next(part for part in request.parts if isinstance(part, str)).strip()])

    section, report, by_name = check_judges(folder, student=teacher, base=lambda request: verdict("A"))
    student, base, longer = by_name["student"], by_name["base"], by_name[LONGER]
    assert (
        student.rmse == pytest.approx(0, abs=1e-6)
        and student.agreement.value == 1
        and student.spearman == pytest.approx(1)
    )
    assert student.own_lift.value == 0 and student.unusable == 0 and student.n == report["comparisons"]
    # A judge that always prefers the first answer says nothing about quality.
    assert base.first_share == 1 and base.rmse > 33
    assert base.kappa.value == pytest.approx(0, abs=1e-9) or base.kappa.value is None
    assert longer.n == report["comparisons"] and longer.rmse > 0
    assert report["ceiling"].n > 0 and report["ceiling"].observed > 0.5
    assert section.rows[1][0] == "student" and "within the bound of 33" in section.notes[0]


def test_student_with_unusable_replies_has_no_figures(folder):
    section, _, by_name = check_judges(folder, student=lambda request: "I would rather not.")
    student = by_name["student"]
    comparisons = {one.comparison for one in read_examples(folder, "test")[1]}
    assert student.n == 0 and student.unusable == len(comparisons)
    assert student.rmse is student.agreement is student.first_share is None
    assert "It judged nothing" in section.notes[0]


@pytest.mark.parametrize(
    ("hold_out", "words"), [(["zebra"], "no family zebra"), (["a", "b", "c", "e", "f"], "no example for train")]
)
def test_impossible_hold_outs_are_refused(finished_arena, tmp_path, hold_out, words):
    with pytest.raises(BadRequest, match=words):
        export(finished_arena, tmp_path / "sft", hold_out)
    assert not (tmp_path / "sft").exists()


def test_distil_check_explains_wrong_folders_and_models(tmp_path, folder):
    models = tmp_path / "arena.toml"
    models.write_text('[models.owl]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    for place, student, code, words in (
        (tmp_path, "owl", 1, "export-judge writes such a folder"),
        (folder, "wren", 2, "has no model wren. It has: owl"),
    ):
        command = ("arena", "distil-check", place, "--models", models, "--student", student)
        assert words in output_of(*command, code=code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # raised by peft's call of transformers
def test_training_learns_only_the_replies(folder, tmp_path):
    from safetensors.numpy import load_file

    from eval.arena import train_judge
    from eval.perf.vllm.tiny_model import make_tiny_model

    base = make_tiny_model(tmp_path / "tiny")
    few = tmp_path / "few"
    few.mkdir()
    (few / "pictures").symlink_to(folder / "pictures")
    lines = (folder / "train.jsonl").read_text().splitlines()[:4]
    (few / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    out = tmp_path / "judge"
    how = {"base": str(base), "epochs": 1, "steps": 6, "at_once": 2, "rate": 1e-2, "seed": 0}
    trainer = train_judge.train(few, out, **how)
    losses = train_judge.losses_of(trainer)
    assert losses[-1] < 0.8 * losses[0]
    names = load_file(out / "adapter_model.safetensors")
    assert names and not any("visual" in name for name in names), "the picture's encoder was trained"
    # Only the last message is learned, and whole.
    batch = trainer.data_collator(list(train_judge.read_dataset(few))[:2])
    for row, line in enumerate(lines[:2]):
        labels = batch["labels"][row]
        learned = trainer.processing_class.tokenizer.decode(labels[labels != -100])
        assert learned.split("<|im_end|>")[0] == json.loads(line)["completion"][0]["content"]
