"""Sets of questions for arenas: made of many candidates as ProBench's was made, or of what was asked in real trials.

Of candidates, steps drop questions with a stop word, near-copies of others, and those that need no picture; an
annotator names field, sub-field and difficulty; fields are balanced; the hardest of each language stay.

Each of an advocate's questions builds on the answers before it. Put to other models in the same order, they measure
which model best answers what a court really wants to know. The answers of the trial's Proposer are left out.
"""

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from court.errors import BadRequest
from court.events import QuestionAsked, Side
from eval.arena.folder import FixedTask
from eval.arena.procedure import reply_or_reason
from eval.arena.speakers import ANNOTATOR, FixedQuestion, Speaker, TaskPlace
from eval.models.metered import MeteredModel
from eval.models.samples import ShownMeme
from eval.reports.records import read_records
from eval.runs.results import RunFolder
from eval.session.engine import run_items

FIELDS = (
    *("science", "coding", "creative writing", "information extraction", "perception"),
    *("knowledge", "arts", "planning", "mathematics", "metrics"),
)
"""Fields of ProBench."""
_LETTERS = 5
_ROWS = 1000
"""Questions that are compared with all others at a time."""
_Ask = Callable[[FixedTask, Speaker], Awaitable[Mapping[str, str] | None]]
"""Returns a question's tags; None if it is dropped."""


async def build_set(
    candidates: Sequence[FixedTask],
    memes: Mapping[str, ShownMeme],
    annotator: MeteredModel,
    *,
    stop_words: Sequence[str] = (),
    near: float = 0.8,
    fields: Sequence[str] = FIELDS,
    per_field: int | None = None,
    hardest: int | None = None,
    seed: int = 0,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[list[FixedTask], dict[str, int]]:
    """Chooses questions, with tags ``field``, ``sub_field``, ``difficulty`` and, of several rounds, ``depends``.

    Args:
        near: Share of common groups of five letters from which on two questions are near-copies.
        hardest: Number of questions that stay in each language; None for all.

    Returns:
        The questions, and how many are left after each step, in order.

    Raises BudgetSpent, CallsError, Unavailable, ModelRefused: The annotator can't be called.
    """
    left = {"candidates": len(candidates)}

    def counted(step: str, tasks: list[FixedTask]) -> list[FixedTask]:
        left[step] = len(tasks)
        return tasks

    tasks = counted("with a picture that can be used", [task for task in candidates if task.meme in memes])
    stop = tuple(word.casefold() for word in stop_words)
    tasks = counted(
        "without a stop word", [task for task in tasks if not any(word in _text(task).casefold() for word in stop)]
    )
    tasks = counted("without near-copies", without_copies(tasks, near))

    async def annotate(step: str, tasks: list[FixedTask], ask: _Ask) -> list[FixedTask]:
        async def one(task: FixedTask) -> FixedTask | None:
            tags = await reply_or_reason(ask(task, Speaker(annotator, memes[task.meme])))
            # A question without a usable reply has no field, and none is made up for it.
            return task.model_copy(update={"tags": {**task.tags, **tags}}) if isinstance(tags, Mapping) else None

        found = await run_items(tasks, one, concurrency=concurrency, progress=progress)
        return counted(step, [task for task in found if task is not None])

    async def placed(task: FixedTask, speaker: Speaker) -> Mapping[str, str] | None:
        words, trusted = {"field": fields}, {"fields": ", ".join(fields)}
        place, _ = await speaker.ask(ANNOTATOR, "place", TaskPlace, rounds=task.rounds, words=words, trusted=trusted)
        depends = {"depends": str(place.depends)} if len(task.rounds) > 1 else {}
        tags = {"field": place.field, "sub_field": place.sub_field.casefold(), **depends}
        return tags if place.picture == "needed" else None

    async def rated(task: FixedTask, speaker: Speaker) -> Mapping[str, str]:
        reference = FixedQuestion("", (task.reference,)) if task.reference else None
        rating, _ = await speaker.rate_difficulty(task.rounds, reference)
        return {"difficulty": f"{(rating.text + rating.image + rating.reasoning) / 3:.2f}"}

    tasks = await annotate("that need their picture", tasks, placed)
    if per_field is not None:
        # Drawn, and not the hardest: otherwise fields would differ in difficulty by their size.
        shuffled = random.Random(f"fields {seed}").sample(tasks, len(tasks))
        tasks = counted("balanced over fields", _first(shuffled, lambda task: task.tags["field"], per_field))
    tasks = await annotate("of known difficulty", tasks, rated)
    if hardest is not None:
        ordered = sorted(tasks, key=lambda task: -float(task.tags["difficulty"]))
        tasks = counted("hardest of each language", _first(ordered, lambda task: task.language, hardest))
    # Draws and difficulties have mixed them up.
    order = {(task.meme, task.rounds): number for number, task in enumerate(candidates)}
    return sorted(tasks, key=lambda task: order[task.meme, task.rounds]), left


def without_copies(tasks: Sequence[FixedTask], near: float) -> list[FixedTask]:
    """Returns the questions without those that are near-copies of an earlier one that stays.

    Texts are compared by the share of their groups of five letters that both have (Jaccard); MinHash estimates the
    same share for sets too large for that.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    if not tasks:
        return []
    letters = CountVectorizer(analyzer=_groups, binary=True, dtype=np.int64).fit_transform(map(_text, tasks))
    sizes = np.asarray(letters.sum(axis=1)).ravel()
    stays = np.ones(len(tasks), dtype=bool)
    for begin in range(0, len(tasks), _ROWS):
        common = (letters[begin : begin + _ROWS] @ letters.T).toarray()
        for number, row in enumerate(common, begin):
            # Less the error of a product of floats, so that the bound itself counts.
            alike = row[:number] >= near * (sizes[number] + sizes[:number] - row[:number]) - 1e-9
            stays[number] = not (alike & stays[:number]).any()
    return [task for task, stay in zip(tasks, stays, strict=True) if stay]


def _groups(text: str) -> set[str]:
    text = " ".join(text.casefold().split())
    return {text[place : place + _LETTERS] for place in range(max(1, len(text) - _LETTERS + 1))}


def _text(task: FixedTask) -> str:
    return "\n".join(task.rounds)


def _first(tasks: Sequence[FixedTask], group: Callable[[FixedTask], str], most: int) -> list[FixedTask]:
    """Returns the first tasks of each group."""
    groups: dict[str, list[FixedTask]] = defaultdict(list)
    for task in tasks:
        groups[group(task)].append(task)
    return [task for own in groups.values() for task in own[:most]]


async def tasks_of_run(
    root: Path, sides: Sequence[Side], *, prefixed: bool = False
) -> tuple[list[FixedTask], int, Mapping[str, str]]:
    """Makes a task of the questions of each side of each trial of a run, in the order of the memes.

    Returns the tasks, the number of trials without a question, and the records that can't be read.

    Raises BadRequest: The directory contains no run, or none of its trials has a question.
    """
    folder = RunFolder(root)
    manifest = folder.manifest()
    trials = {one.trial: one.meme for one in folder.predictions() if one.trial}
    # A task is text only; the arena takes the picture from the data set.
    found = await read_records(root, list(trials), pictures=False)
    tasks: list[FixedTask] = []
    silent = 0
    for trial, meme in trials.items():
        record = found.records.get(trial)
        # Lost or damaged: the command reports how many.
        if record is None:
            continue
        by_side: dict[Side, list[str]] = {side: [] for side in sides}
        for event in record.events:
            if isinstance(event, QuestionAsked) and event.side in by_side:
                by_side[event.side].append(event.question)
        silent += not any(by_side.values())
        name = f"{manifest.dataset}/{meme}" if prefixed else meme
        language = {"language": record.text.language} if record.text and record.text.language else {}
        tasks += [
            FixedTask(meme=name, rounds=tuple(questions), tags={"side": str(side).lower(), **language})
            for side, questions in by_side.items()
            if questions
        ]
    if not tasks:
        why = found.missing or "Trials of the embedded procedure have none; hold the run with --procedure full."
        raise BadRequest(f"{root} has no trial in which a side asked a question. {why}", reason="QUESTIONS_MISSING")
    return tasks, silent, found.lost
