"""Helpers of tests of task card."""

from eval.datasets.items import JudgedMeme, Outcome, Prediction, TaskAnswer
from eval.runs.results import Judged, Results, RunManifest
from eval.solvers.question import Question

QUESTION = Question(task="stance", kind="single", labels=("for", "against", "neither"), inputs=("text",))


def meme(number, gold, **fields):
    return JudgedMeme(
        id=f"m{number}",
        split="test",
        line=number,
        image="",
        text="words",
        harmful=None,
        source_label="",
        tasks={"stance": (gold,)},
        **fields,
    )


def results(pairs, name="run", question=QUESTION, **fields):
    """Results of a run from pairs of gold label and answer (None for a failure)."""
    judged = []
    for number, (gold, answered) in enumerate(pairs):
        fields_of_meme = {key: value[number] for key, value in fields.items()}
        prediction = Prediction(meme=f"m{number}", outcome=Outcome.FAILED, reason="REPLY_CUT")
        if answered is not None:
            answer = TaskAnswer(labels=(answered,))
            prediction = Prediction(meme=f"m{number}", outcome=Outcome.ANSWERED, said={"stance": answer})
        judged.append(Judged(meme(number, gold, **fields_of_meme), prediction))
    manifest = RunManifest.model_construct(question=question, finished=True, models={}, card={}, dataset="d")
    return Results(name, "d", "test", (), tuple(judged), manifest)


PAIRS = [("for", "for")] * 12 + [("against", "for")] * 4 + [("against", "against")] * 4 + [("neither", None)] * 2


CARD = {
    "format": 1,
    "id": "d",
    "title": "Memes",
    "citation": "a paper",
    "caveats": ["they are few."],
    "layout": {"kind": "csv"},
    "splits": [{"name": name, "role": "test", "files": [f"{name}.csv"]} for name in ("test", "other")],
    "tasks": [{"id": "stance", "kind": "single", "of": "stance", "labels": list(QUESTION.labels)}],
    "published": [
        {"system": "A", "year": 2024, "task": "stance", "split": "test", "setup": "text", "n": 23}
        | {"figures": {"macro-f1": 0.5, "kappa": 0.25}},
        {"system": "B", "task": "stance", "split": "test", "n": 22, "figures": {"accuracy": 0.75}, "remark": "odd"},
        {"system": "C", "task": "stance", "split": "test", "source": "a talk", "figures": {"accuracy": 0.5}},
        {"system": "D", "task": "stance", "split": "other", "figures": {"accuracy": 0.5}},
    ],
}
