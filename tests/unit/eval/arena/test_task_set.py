"""Sets of questions chosen from candidates: each step drops what was planted for it."""

import asyncio
import json
import re

import pytest

from court.backends.chat.scripted import ScriptedModel
from eval.arena.folder import FixedTask, read_lines
from eval.arena.speakers import TaskPlace, parse_words
from eval.arena.task_set import build_set, without_copies
from eval.models.metered import MeteredModel
from eval.reproduce.demonstrations import served
from eval.standin.server import FakeModelServer
from eval.standin.settings import Settings
from eval.synthetic.make import Layout, make, read_key
from tests.support.arena_world import MemoryCallCache, arena_meme, output_of

SUBJECTS = ("Which plant grows in the pot, {}?", "How many cups stand here, {}?", "Who drew the cat, {}?")
FIELDS = ("science", "mathematics", "arts")
WORDS = ("ivory", "walnut", "thunder", "marble", "pepper", "lagoon", "saddle", "quartz", "bonnet", "fiddle")


def candidates():
    """Thirty questions, one in three a field, each of a difficulty from 0 to 9."""
    return [
        FixedTask(meme=f"m{number}", rounds=(subject.format(word),), language="de" if number % 2 else "")
        for number, word in enumerate(WORDS)
        for subject in SUBJECTS
    ]


def reply(words):
    """The annotator's reply, which the question determines."""
    if "useless" in words:
        return {"nothing": "of use"}
    number = next(place for place, word in enumerate(WORDS) if word in words.lower())
    if '"depends"' in words:
        (field,) = (f for f, s in zip(FIELDS, SUBJECTS, strict=True) if s.partition(",")[0] in words)
        picture = "not needed" if "recall" in words else "needed"
        return {"why": "So.", "picture": picture, "field": field, "sub_field": f"The {field}", "depends": 7}
    return {"why": "So.", "text": number, "image": number, "reasoning": number}


def annotated(tasks, memes=10, **rules):
    model = ScriptedModel(lambda request: reply("\n".join(map(str, request.parts))), name="annotator")
    annotator = MeteredModel("annotator", model, store=MemoryCallCache())
    shown = {f"m{number}": arena_meme(number) for number in range(memes)}
    return asyncio.run(build_set(tasks, shown, annotator, **rules)), model


def test_each_step_drops_what_was_planted_for_it():
    tasks = candidates()
    planted = [
        FixedTask(meme="m1", rounds=("Which plant grows in the pot, Banana walnut?",)),
        FixedTask(meme="m2", rounds=("How many cups stand here,  THUNDER ?",)),
        FixedTask(meme="m3", rounds=("Who drew the cat, as you recall it: marble?",)),
        FixedTask(meme="m4", rounds=("Is pepper useless for those who see this picture?",)),
        FixedTask(meme="gone", rounds=("What does nobody have a picture of?",)),
    ]
    (found, left), model = annotated([*planted[:3], *tasks, *planted[3:]], stop_words=("banana",), fields=FIELDS)
    assert left == {
        "candidates": 35,
        "with a picture that can be used": 34,
        "without a stop word": 33,
        "without near-copies": 32,
        "that need their picture": 30,
        "of known difficulty": 30,
    }
    # The first of two near-copies stays, and those that stay keep their order.
    assert [task.rounds for task in found[1:3]] == [task.rounds for task in tasks[:2]]
    assert found[0].rounds == planted[1].rounds and "depends" not in found[0].tags
    assert {(t.tags["field"], t.tags["sub_field"]) for t in found} == {(f, f"the {f}") for f in FIELDS}
    assert found[-1].tags["difficulty"] == "9.00"
    # What a step drops costs no further call: one on each of 32, and one repair; one more on each of 30.
    assert len(model.asked) == 32 + 1 + 30
    several = [FixedTask(meme="m1", rounds=("Who drew the cat, walnut?", "And why?"))]
    assert annotated(several, fields=FIELDS)[0][0][0].tags["depends"] == "7"


def test_fields_are_balanced_and_the_hardest_of_each_language_stay():
    tasks = [task for task in candidates() if "Who drew" not in task.rounds[0] or task.meme in ("m0", "m1")]
    (found, left), _ = annotated(tasks, fields=FIELDS, per_field=4, seed=1)
    fields = [task.tags["field"] for task in found]
    assert {field: fields.count(field) for field in FIELDS} == {"science": 4, "mathematics": 4, "arts": 2}
    assert left["balanced over fields"] == 10
    (other, other_left), _ = annotated(tasks, fields=FIELDS, per_field=4, seed=2)
    assert other != found and other_left == left
    (hardest, _), _ = annotated(tasks, fields=FIELDS, hardest=2)
    assert [(t.language, t.tags["difficulty"]) for t in hardest] == [("", "8.00")] * 2 + [("de", "9.00")] * 2


def test_copies_of_earlier_questions_are_dropped():
    texts = ("abcdefghij", "abcdefghik", "zzzzzzzzzz", "ABCDE  FGHIJ", "")
    tasks = [FixedTask(meme="m", rounds=(text,)) for text in texts]

    def share(one, other):
        groups = [{text[place : place + 5] for place in range(len(text) - 4)} for text in (one, other)]
        return len(groups[0] & groups[1]) / len(groups[0] | groups[1])

    bound = share(*texts[:2])
    assert bound == 5 / 7
    assert without_copies(tasks, bound) == [tasks[0], *tasks[2:]]
    assert without_copies(tasks, bound + 1e-6) == tasks and without_copies([], 0.8) == []
    # Not near the first any more, once the one between them is dropped.
    assert without_copies([tasks[0], tasks[0], tasks[0]], 1.0) == tasks[:1]


def test_field_outside_the_list_is_no_usable_reply():
    place = {"why": "So.", "picture": "needed", "field": "tea", "sub_field": "cups", "depends": 0}
    assert parse_words(TaskPlace, json.dumps(place), {"field": ("tea",)}).field == "tea"
    with pytest.raises(Exception, match="field must be one of arts"):
        parse_words(TaskPlace, json.dumps(place), {"field": ("arts",)})


def test_command_builds_a_set_that_an_arena_reads(tmp_path):
    make(tmp_path / "data", Layout.HARMEME, train=4, val=0, test=4)
    memes = [meme.id for meme in read_key(tmp_path / "data") if meme.split == "test"]
    tasks = [one.model_copy(update={"meme": memes[n % 4]}) for n, one in enumerate(candidates())]
    lines = [FixedTask(meme=memes[0], rounds=("Is it stopped, ivory?",)), *tasks]
    (tmp_path / "all.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in lines))
    (tmp_path / "stop.txt").write_text("stopped\n\n")

    def answer(payload):
        parts = payload["messages"][-1]["content"]
        # The probe of the server's features asks nothing about a question.
        if isinstance(parts, str) or "The question:" not in str(parts):
            return None
        return json.dumps(reply(re.sub(r"\[(begin|end) \w+\]", "", "\n".join(part.get("text", "") for part in parts))))

    with served({"note": FakeModelServer(Settings(model="m", capacity=8), answer=answer)}) as urls:
        (tmp_path / "arena.toml").write_text(f'[models.note]\nurl = "{urls["note"]}"\nmodel = "m"\n')
        command = ("arena", "tasks", "build", tmp_path / "all.jsonl", "--annotator", "note")
        command += ("--models", tmp_path / "arena.toml", "--data", tmp_path / "data", "--fields", ",".join(FIELDS))
        rules = (
            "--stop-words",
            tmp_path / "stop.txt",
            "--per-field",
            3,
            "--hardest",
            2,
            "--out",
            tmp_path / "set.jsonl",
        )
        shown = output_of(*command, *rules, "--json")
        printed = json.loads(shown[shown.index("{") :])
        assert printed["left"]["without a stop word"] == 30 and printed["left"]["balanced over fields"] == 9
        assert printed["left"]["hardest of each language"] == 4 == sum(printed["fields"].values())
        assert len(read_lines(tmp_path / "set.jsonl", FixedTask)) == 4 and "Which" not in shown
        assert "is there already" in output_of(*command, *rules, code=2)
    none = output_of(*command, "--stop-words", tmp_path / "none", "--out", tmp_path / "new", code=2)
    assert "can't be read" in none
