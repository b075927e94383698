"""Runs an arena: every meme goes through the same steps, and every step is stored before the next one.

Every random draw uses a generator keyed by the seed and the purpose of the draw. So a resumed run makes the same draws
and the same calls, and finds the replies in the call cache.

Models are paired by combinatorial coverage. Comparing all answers to a task with each other grows with the square of
the targets. So only a few targets meet on each task, in all their pairs. They are drawn so that, over all tasks,
first every pair and then every combination comes up equally often, as far as the number of tasks allows.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from court.deadline import gather_or_cancel
from court.errors import ModelRefused, Overrun, ReplyUnusable
from eval.arena.events import (
    Answered,
    ContextSimulated,
    Detected,
    DifficultyRated,
    Event,
    FollowUp,
    FusionBegun,
    FusionRound,
    Judged,
    LossExplained,
    MemeDone,
    MemeLeftOut,
    NoReply,
    Study,
    TaskFormulated,
    Wanted,
)
from eval.arena.folder import EVENTS, ArenaFolder, FixedTask, HumanReference
from eval.arena.settings import ArenaSettings
from eval.arena.speakers import FixedQuestion, Profiles, Speaker, TaskQuestion, style_of
from eval.arena.words import Relevance, Setting
from eval.models.metered import MeteredModel
from eval.models.samples import ShownMeme
from eval.session.directory import Spent
from eval.session.engine import run_items


def meetings(targets: Sequence[str], tasks: int, size: int, seed: int) -> list[tuple[str, ...]]:
    """Chooses the models that meet on each task, in no particular order.

    Every combination is used n times before any is used n+1 times; among the unused ones, the one whose pairs have met
    least so far is chosen.
    """
    rng = random.Random(f"meetings {seed}")
    # Pairs are in alphabetical order, here and below.
    met = dict.fromkeys(itertools.combinations(sorted(targets), 2), 0)
    fresh: list[tuple[str, ...]] = []
    chosen = []

    def often(meeting: tuple[str, ...]) -> tuple[int, int]:
        counts = [met[pair] for pair in itertools.combinations(meeting, 2)]
        # Squares first, so that one pair that met far too often weighs more than two that met slightly too often.
        return sum(count * count for count in counts), sum(counts)

    for _ in range(tasks):
        if not fresh:
            # Sorted before the shuffle, so that the draw does not depend on the order in which targets are listed.
            fresh = list(itertools.combinations(sorted(targets), size))
            rng.shuffle(fresh)
        # Ties go to the first in shuffled order, so that they are random instead of favouring the front of the
        # alphabet.
        place = min(range(len(fresh)), key=lambda at: often(fresh[at]))
        meeting = fresh.pop(place)
        for pair in itertools.combinations(meeting, 2):
            met[pair] += 1
        shown = list(meeting)
        rng.shuffle(shown)
        chosen.append(tuple(shown))
    return chosen


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Plan of an arena."""

    settings: ArenaSettings
    memes: tuple[ShownMeme, ...]
    """Memes in order; a meme's position decides which models meet on it."""
    models: Mapping[str, MeteredModel]
    seed: int = 0
    fixed_tasks: Mapping[str, tuple[FixedTask, ...]] = field(default_factory=dict)
    """Supplied questions, by meme; empty if the controller writes them."""
    references: Mapping[str, HumanReference] = field(default_factory=dict)
    concurrency: int = 4


async def run_memes(
    plan: ArenaPlan, folder: ArenaFolder, progress: Callable[[int, int], None] = lambda *_: None
) -> None:
    """Runs an arena, or the unfinished part of it.

    Raises:
        BudgetSpent: A model's budget is exhausted.
        CallsError: The call cache can't be used.
        Unavailable, ModelRefused: A model server is unreachable, or rejects every call.
    """
    done = await asyncio.to_thread(folder.drop_unfinished)
    # Both cover all memes, including finished ones: which models meet on a task depends on the tasks before it, so a
    # resumed arena makes the same draws only if it counts the same tasks.
    fixed = plan.fixed_tasks
    counts = (len(fixed.get(meme.id, ())) if fixed else len(Relevance) for meme in plan.memes)
    first = list(itertools.accumulate(counts, initial=0))
    met = meetings(plan.settings.targets, first[-1], plan.settings.answers_per_task, plan.seed)
    before = folder.spent()

    async def one(item: tuple[ShownMeme, int]) -> None:
        meme, begin = item
        await _Meme(plan=plan, meme=meme, begin=begin, met=met[begin:], folder=folder).go_through()
        # After each meme, so that a killed session leaves its usage up to that point.
        folder.write_usage(spent())

    def spent() -> dict[str, Spent]:
        """Sums each model's usage of this session and earlier ones."""
        updated = {}
        for name, model in plan.models.items():
            so_far = before.get(name, Spent())
            updated[name] = Spent(**{key: getattr(so_far, key) + value for key, value in model.counts().items()})
        # Models of earlier sessions stay, even if they are not called in this one.
        return {**before, **updated}

    # `first` has one more element: where the tasks of a further meme would begin.
    todo = [(meme, begin) for meme, begin in zip(plan.memes, first, strict=False) if meme.id not in done]
    try:
        await run_items(todo, one, concurrency=plan.concurrency, progress=progress, before=len(plan.memes) - len(todo))
    finally:
        # Calls of unfinished memes cost money, too.
        folder.write_usage(spent())


async def _all(steps: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs steps concurrently and returns their results; the first failure cancels the others."""
    coroutines = tuple(steps)
    # gather_or_cancel needs at least one step.
    return list(await gather_or_cancel(*coroutines)) if coroutines else []


async def reply_or_reason(saying: Awaitable[T]) -> T | str:
    """Returns a reply, or the reason why the model gave no usable one.

    Errors that do not concern this one call propagate: they end the run, which can be resumed later.
    """
    try:
        return await saying
    except ModelRefused as error:
        # With these a server refuses one request; with others (no such model, wrong key) it would refuse them all.
        if error.status not in (400, 413, 422):
            raise
        return error.reason
    except (ReplyUnusable, Overrun) as error:
        return error.reason


Questions = Mapping[FollowUp, Callable[[Speaker], Awaitable[Event]]]
"""Questions after an arena, each with the function that asks it."""


async def ask_remaining(
    folder: ArenaFolder,
    questions: Questions,
    memes: Mapping[str, ShownMeme],
    models: Mapping[str, MeteredModel],
    *,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Asks about a finished arena and stores the events, without the questions that were asked before.

    Raises:
        BadRequest: Memes are missing.
        BudgetSpent, CallsError, Unavailable, ModelRefused: A model can't be called; replies so far are stored.
    """
    folder.require_memes((question.meme for question in questions), memes)
    folder.drop_cut_line(EVENTS)
    done = set(map(_follow_up_of, folder.events()))

    async def one(item: tuple[FollowUp, Callable[[Speaker], Awaitable[Event]]]) -> Event:
        question, ask = item
        found = await reply_or_reason(ask(Speaker(models[question.model], memes[question.meme])))
        return NoReply(**question._asdict(), reason=found) if isinstance(found, str) else found

    todo = [item for item in questions.items() if item[0] not in done]
    await run_items(
        todo,
        one,
        concurrency=concurrency,
        store=lambda _, event: folder.add(event),
        progress=progress,
        before=len(questions) - len(todo),
    )


def _follow_up_of(event: Event) -> FollowUp | None:
    """Returns the question that an event came of, if it was asked after the arena."""
    match event:
        case NoReply():
            return FollowUp(event.to, event.model, event.meme, event.task, about=event.about)
        case Detected():
            return FollowUp("label", event.target, event.meme)
        case DifficultyRated():
            return FollowUp("difficulty", event.annotator, event.meme, event.task)
        case LossExplained():
            to: Wanted = "second explanation" if event.second else "explanation"
            return FollowUp(to, event.explainer, event.meme, event.task, about=(event.winner, event.loser))
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Meme:
    """Processing of one meme in the arena."""

    plan: ArenaPlan
    meme: ShownMeme
    begin: int
    """Number of tasks before its own."""
    met: Sequence[tuple[str, ...]]
    folder: ArenaFolder

    async def go_through(self) -> None:
        tasks = await reply_or_reason(self._tasks())
        if isinstance(tasks, str):
            self._keep(MemeLeftOut(meme=self.meme.id, reason=tasks))
            return
        await _all(self._run_task(task) for task in tasks)
        # Written last: without it, all of the meme's events are dropped when the arena is resumed.
        self._keep(MemeDone(meme=self.meme.id))

    async def _tasks(self) -> list[TaskFormulated]:
        if self.plan.fixed_tasks:
            return [
                self._formulated(number, rounds=fixed.rounds, language=fixed.language, tags=fixed.tags)
                for number, fixed in enumerate(self.plan.fixed_tasks.get(self.meme.id, ()))
            ]
        controller = self._speaker(self.plan.settings.controller)
        ask = partial(controller.ask, "controller", temperature=self.plan.settings.temperature)
        profiles, call = await ask("profiles", Profiles)
        backgrounds = profiles.model_dump()
        self._keep(ContextSimulated(meme=self.meme.id, call=call, **backgrounds))

        async def formulate(number: int, relevance: Relevance) -> TaskFormulated:
            reply, call = await ask("question", TaskQuestion, profile=backgrounds[relevance])
            return self._formulated(number, rounds=(reply.question,), relevance=relevance, call=call)

        return await _all(formulate(number, relevance) for number, relevance in enumerate(Relevance))

    def _formulated(self, number: int, **about: Any) -> TaskFormulated:
        task = TaskFormulated(meme=self.meme.id, task=number, **about)
        self._keep(task)
        return task

    async def _run_task(self, task: TaskFormulated) -> None:
        targets = self.plan.settings.targets
        answers = zip(targets, await _all(self._answer(name, task) for name in targets), strict=True)
        there = {name: answer for name, answer in answers if answer is not None}
        guideline = None
        if self.plan.settings.guideline == "fused" and not self.plan.fixed_tasks:
            guideline = await self._fuse(task, there)
        await _all(
            self._fight(task, one, other=other, answers=there, guideline=guideline)
            for one, other in self._pairs(task)
            # A battle without one of the answers is none: what a model could not say is no evidence of its worth.
            if one in there and other in there
        )

    async def _answer(self, name: str, task: TaskFormulated) -> FixedQuestion | None:
        speaker = self._speaker(name)
        answering = (
            speaker.converse(task.rounds, task.language, self.plan.settings.history_chars)
            if self.plan.fixed_tasks
            else speaker.answer(task.rounds[0])
        )
        reply = await self._reply(answering, task, to="answer", model=name)
        if reply is None:
            return None
        answer, calls, forgotten = reply
        self._keep(
            Answered(
                meme=self.meme.id,
                task=task.task,
                target=name,
                background=answer.background,
                reasoning=answer.rounds,
                style=style_of("\n".join((answer.background, *answer.rounds))),
                calls=calls,
                forgotten=forgotten,
            )
        )
        return answer

    async def _fuse(self, task: TaskFormulated, answers: Mapping[str, FixedQuestion]) -> FixedQuestion | None:
        """Runs Algorithm 1, fusing the panel's views; None if no judge has an answer to start from."""
        # One generator for all draws of a task. Each round draws before its call, so that a failed round leaves
        # later draws unchanged.
        rng = self._random("fusion", task.task)
        # The guideline starts from a judge's own answer; only judges may speak for the panel.
        able = [name for name in self.plan.settings.judges if name in answers]
        if not able:
            return None
        author = rng.choice(able)
        guideline = answers[author]
        self._keep(FusionBegun(meme=self.meme.id, task=task.task, judge=author))
        candidates = [name for name in self.plan.settings.targets if name in answers and name != author]
        rng.shuffle(candidates)
        if self.plan.settings.fusion_rounds != "all":
            candidates = candidates[: self.plan.settings.fusion_rounds]
        for number, drawn in enumerate(candidates, 1):
            # No judge merges its own answer. The order is random, so that a judge with a preference for the first text
            # favours neither.
            judge = rng.choice([name for name in self.plan.settings.judges if name != drawn])
            first = rng.random() < 0.5
            shown = (guideline, answers[drawn]) if first else (answers[drawn], guideline)
            merging = self._speaker(judge).fuse(task.rounds[0], *shown)
            reply = await self._reply(merging, task, to="merging", model=judge, about=(drawn,))
            if reply is None:  # the guideline stays as it was before this round
                continue
            guideline, call = reply
            self._keep(
                FusionRound(
                    meme=self.meme.id,
                    task=task.task,
                    round=number,
                    drawn=drawn,
                    judge=judge,
                    guideline_first=first,
                    background=guideline.background,
                    reasoning=guideline.rounds[0],
                    call=call,
                )
            )
        return guideline

    def _pairs(self, task: TaskFormulated) -> list[tuple[str, str]]:
        anchor = self.plan.settings.anchor
        if self.plan.settings.pairing == "baseline":
            assert anchor is not None
            return [(anchor, name) for name in self.plan.settings.targets if name != anchor]
        return list(itertools.combinations(self.met[task.task], 2))

    async def _fight(
        self,
        task: TaskFormulated,
        one: str,
        other: str,
        answers: Mapping[str, FixedQuestion],
        guideline: FixedQuestion | None,
    ) -> None:
        # Keyed by sorted names: the same judges are drawn whichever of the two comes first in the pair.
        rng = self._random("judges", task.task, *sorted((one, other)))
        judges, wanted = list(self.plan.settings.judges), self.plan.settings.judges_per_battle
        apart = [] if self.plan.settings.own_case else [name for name in judges if name not in (one, other)]
        chosen = rng.sample(apart, min(wanted, len(apart)))
        # Only if no other judges are left: in a small panel judges also judge their own battles, so that no battle
        # lacks judges.
        chosen += rng.sample([name for name in judges if name not in apart], wanted - len(chosen))
        written = self._written(task)
        setting = Setting.FUSED if guideline else Setting.HUMAN if self.plan.fixed_tasks and written else Setting.NONE
        reference = guideline or (written if setting is Setting.HUMAN else None)
        judgements: list[tuple[str, Setting, FixedQuestion | None, Study, int]] = [
            (name, setting, reference, "arena", 0) for name in chosen
        ]
        # The index among all tasks, not the order of completion: so the study covers the same tasks when the arena is
        # resumed.
        if self.plan.settings.bias and self.begin + task.task < self.plan.settings.bias_tasks:
            references = {Setting.FUSED: guideline, Setting.HUMAN: written}
            for judge, studied in itertools.product(self.plan.settings.judges, Setting):
                measure = answers.get(judge) if studied is Setting.OWN else references.get(studied)
                # A setting whose reference is missing is skipped; without one, it would be the setting NONE under
                # another name.
                if measure is not None or studied is Setting.NONE:
                    judgements.append((judge, studied, measure, "bias", 0))
        if self.plan.settings.round_verdicts and len(task.rounds) > 1:
            numbers = range(1, len(task.rounds) + 1)
            judgements += [(name, setting, reference, "rounds", number) for name in chosen for number in numbers]
        shown = {name: answers[name] for name in (one, other)}
        await _all(self._judge(task, shown, *how) for how in judgements)

    def _written(self, task: TaskFormulated) -> FixedQuestion | None:
        if self.plan.fixed_tasks and (reference := self.plan.fixed_tasks[self.meme.id][task.task].reference):
            return FixedQuestion("", (reference,))
        human = self.plan.references.get(self.meme.id)
        return FixedQuestion(human.background, (human.reasoning,)) if human else None

    async def _judge(
        self,
        task: TaskFormulated,
        answers: Mapping[str, FixedQuestion],
        judge: str,
        setting: Setting,
        reference: FixedQuestion | None,
        study: Study,
        number: int,
    ) -> None:
        """Has a judge compare two answers, or what they say in one round."""
        rounds = task.rounds
        if number:
            # Earlier rounds are shown as questions alone: what a model made of them is in its answer.
            rounds = rounds[:number]
            answers = {name: FixedQuestion("", (answer.rounds[number - 1],)) for name, answer in answers.items()}
        # The same order in every setting, so that only the reference differs.
        names = sorted(answers)
        flip = self._random("order", task.task, *names, judge).random() < 0.5
        a, b = reversed(names) if flip else names
        turns = ((a, b), (b, a)) if self.plan.settings.swapped and study != "bias" else ((a, b),)
        for turn, (first, second) in enumerate(turns):
            shown = (answers[first], answers[second])
            comparing = self._speaker(judge).compare(rounds, reference, shown, self.plan.settings)
            reply = await self._reply(comparing, task, to="battle", model=judge, about=(first, second))
            if reply is None:
                continue
            verdicts, call = reply
            self._keep(
                Judged(
                    meme=self.meme.id,
                    task=task.task,
                    a=first,
                    b=second,
                    judge=judge,
                    setting=setting,
                    turn=turn,
                    study=study,
                    round=number,
                    verdicts=dict(verdicts.by_dimension),
                    why=verdicts.why,
                    answer=verdicts.answer,
                    call=call,
                )
            )

    async def _reply(
        self, saying: Awaitable[T], task: TaskFormulated, *, to: Wanted, model: str, about: tuple[str, ...] = ()
    ) -> T | None:
        """Returns a reply; None if there is no usable one, which is an event."""
        reply = await reply_or_reason(saying)
        if isinstance(reply, str):
            self._keep(NoReply(meme=self.meme.id, task=task.task, to=to, model=model, about=about, reason=reply))
            return None
        return reply

    def _speaker(self, name: str) -> Speaker:
        return Speaker(self.plan.models[name], self.meme, self.plan.settings.reply_chars)

    def _random(self, *names: object) -> random.Random:
        # random hashes a string seed with SHA-512, not hash(), so draws are the same in every process. The separator
        # keeps adjacent names distinct.
        return random.Random("\0".join(map(str, (self.plan.seed, self.meme.id, *names))))

    def _keep(self, event: Event) -> None:
        # No await in between, so that lines of concurrent memes are not interleaved.
        self.folder.add(event)
