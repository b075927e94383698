"""Difficulty of tasks, rated by a model that sees no answer of the compared models (ProBench, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from court.errors import BadRequest
from eval.arena.events import (
    DifficultyNotRated,
    DifficultyRated,
    Event,
    FusionRound,
    TaskFormulated,
)
from eval.arena.folder import EVENTS, ArenaFolder
from eval.arena.procedure import reply_or_reason
from eval.arena.speakers import FixedQuestion, Speaker
from eval.models.memes import ShownMeme
from eval.models.metered import MeteredModel
from eval.session.engine import run_items


async def rate_difficulty(
    folder: ArenaFolder,
    memes: Mapping[str, ShownMeme],
    annotator: MeteredModel,
    *,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Asks a model to rate every task of an arena and stores the ratings; skips tasks that are rated already.

    Args:
        annotator: Model that rates; it is shown the arena's guideline if there is one.

    Raises:
        BadRequest: Memes are missing.
        BudgetSpent, CallsError, Unavailable, ModelRefused: The model can't be called; ratings so far are stored.
    """
    folder.drop_cut_line(EVENTS)
    events = folder.events()
    tasks = [event for event in events if isinstance(event, TaskFormulated)]
    if missing := {task.meme for task in tasks} - memes.keys():
        raise BadRequest(f"{len(missing):,} memes of the arena are not in the data that was named.", reason="NO_MEMES")
    rated = {
        (e.meme, e.task)
        for e in events
        if isinstance(e, DifficultyRated | DifficultyNotRated) and e.annotator == annotator.name
    }
    # The last round of each task comes last: it is the guideline that judges were shown.
    guidelines = {
        (e.meme, e.task): FixedQuestion(e.background, (e.reasoning,)) for e in events if isinstance(e, FusionRound)
    }
    todo = [task for task in tasks if (task.meme, task.task) not in rated]

    async def one(task: TaskFormulated) -> Event:
        speaker = Speaker(annotator, memes[task.meme], 0)
        reply = await reply_or_reason(speaker.rate_difficulty(task.rounds, guidelines.get((task.meme, task.task))))
        about = {"meme": task.meme, "task": task.task, "annotator": annotator.name}
        if isinstance(reply, str):
            return DifficultyNotRated.model_validate({**about, "reason": reply})
        found, call = reply
        return DifficultyRated.model_validate({**about, **found.model_dump(), "call": call})

    await run_items(
        todo,
        one,
        concurrency=concurrency,
        store=lambda _, event: folder.add(event),
        progress=progress,
        before=len(tasks) - len(todo),
    )
