"""Answers a data set's question about each meme of a run: by a chat model, or by the vote of labelled memes."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import JsonValue

from court import replies
from court.errors import BadInput, BadRequest, CantResume, Unavailable
from court.events import Role
from court.meme import Frame
from court.prompts import Prompt
from court.prompts import load as court_prompt
from court.record import TrialRecord, TrialState
from court.replies import Reply, UnusableReply
from court.roles import Proposer
from court.second_question import QuestionBrief
from eval.datasets.items import Cost, JudgedMeme, Outcome, Prediction, TaskAnswer
from eval.datasets.read import require_examples
from eval.models.call_cache import CallsError, HitCounter
from eval.models.metered import Agent, load
from eval.session.engine import LATE, Progress, Tried
from eval.solvers.calls import (
    PICTURE_MISSING,
    PROMPTS,
    AnsweringSolver,
    DecodedMeme,
    MemeCalls,
    MemeItem,
    Solver,
    StoredCourt,
    failed,
)
from eval.solvers.question import GOLD, WORDS, Answerer, Question, gold_of, words_of
from eval.solvers.trial import TrialSolver, prediction_of
from eval.solvers.vote import LabelVotes, open_label_votes
from retrieval.precedents.finder import LibraryFinder


@dataclass(frozen=True, slots=True)
class RulingSolver:
    """Tries the memes of one run, and asks the Judge of each trial with a verdict a question."""

    trial: TrialSolver
    question: Question
    examples: Mapping[str, JudgedMeme] = field(default_factory=dict)
    classifier: LabelVotes | None = None
    """Embedded classifier whose votes the Judge is shown; None to show none."""

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Tries a meme and asks the question; see :class:`eval.solvers.calls.Solver`."""
        stored = 0
        if record is None or record.state is not TrialState.DECIDED:
            tried = await self.trial.solve(item, record)
            record, stored = tried.state, tried.result.cost.stored
            # Without a verdict there is no Judge to ask: the trial's failure is the outcome.
            if record is None or record.state is not TrialState.DECIDED:
                return tried
        hits = HitCounter()
        try:
            record = await self._ruled(item.meme, record, hits)
        except (CantResume, Unavailable) as error:
            return failed(item.meme, error, record)
        ruled = record.ruling_on(self.question.task)
        # Recorded like any failed call, but not the meme's fault: it would fail every other meme too.
        if ruled is not None and ruled.failure == CallsError.default_reason:
            raise CallsError("The store of calls can't be used any more: a question found it damaged or locked.")
        # Cached calls of both the trial and the question.
        prediction = self._prediction(item.meme, record, stored=stored + hits.count)
        return Tried(prediction, ruled is not None and ruled.retryable, prediction.reason, record)

    async def _ruled(self, meme: JudgedMeme, record: TrialRecord, hits: HitCounter) -> TrialRecord:
        """The record with the Judge's ruling on the question, or the reason why there is none."""
        opened = record.opened.meme
        executor = self.trial.stored.of(meme, opened.bytes_sha256, hits)
        # Reuses the picture decoded for the trial.
        shown = await executor.picture_of_trial(record)
        frames = shown.frames if shown is not None else ()
        vote: Mapping[str, float] = {}
        if self.classifier is not None:
            decoded = DecodedMeme(meme, frames, opened.pixels_sha256, opened.bytes_sha256)
            answer = await self.classifier.answer(decoded)
            # Shares for single-label tasks, else the probability of each label.
            vote = answer.scores if answer is not None else {}
        cited = record.precedents.findings.exhibits if record.precedents else ()
        # Precedents without gold for this task are left out: they would appear to have none of the labels.
        labels = {
            precedent.id: self.question.in_order(gold)
            for precedent in cited
            if precedent.id in self.examples
            and (gold := gold_of(self.examples[precedent.id], self.question.task)) is not None
        }
        brief = QuestionBrief(self.question.for_court(), precedent_labels=labels, vote=vote)
        return await executor.rule_on(record, shown, brief, batch=True)

    def _prediction(self, meme: JudgedMeme, record: TrialRecord, *, stored: int) -> Prediction:
        """Builds the prediction for a meme: the answer or the reason for its absence, without the verdict on harm."""
        of_trial = prediction_of(meme, record, stored=stored)
        ruled = record.ruling_on(self.question.task)
        # The trial's score and vote are left out, as they are on harm.
        base = {"meme": meme.id, "trial": record.trial_id, "cost": of_trial.cost, "sides": of_trial.sides}
        if ruled is None or ruled.chosen is None:
            return Prediction(**base, outcome=Outcome.FAILED, reason=ruled.failure if ruled else of_trial.reason)
        answers = {self.question.task: TaskAnswer(labels=ruled.chosen)}
        return Prediction(**base, outcome=Outcome.ANSWERED, said=answers)

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Builds the prediction from a record; None if trial or question has no answer yet for a temporary reason."""
        if record.state is not TrialState.DECIDED:
            resumed = self.trial.to_be_resumed(record)
        else:
            ruled = record.ruling_on(self.question.task)
            # Timeouts were already retried, as with trials.
            resumed = ruled is None or (ruled.retryable and ruled.failure not in LATE)
        return None if resumed else self._prediction(meme, record, stored=0)


NOTHING_COMPARABLE = "NOTHING_COMPARABLE"
"""Reason of a prediction without an answer: nothing of the meme can be compared with labelled memes."""
_WHAT = {
    "text": "Text",
    "ocr": "Words read off the picture",
    "caption": "Caption",
    "language": "Language",
    "description": "Description",
}
_Shot = tuple[JudgedMeme, Frame | None]
"""A labelled meme shown as an example; without its picture if the library has none."""


class _OneLabel(Reply):
    label: str


class _AnyLabels(Reply):
    labels: dict[str, bool]


@dataclass(frozen=True, slots=True)
class QuestionSolver(AnsweringSolver):
    """Answers a question about the memes of one run."""

    stored: StoredCourt
    question: Question
    examples: Mapping[str, JudgedMeme] = field(default_factory=dict)
    """Labelled memes of the train split, by id; empty if none are needed."""
    classifier: LabelVotes | None = None
    """Embedded classifier that answers; None if a model does."""

    async def predict(self, item: MemeItem) -> Prediction:
        """See the base class."""
        shown = await self._needed_content(item)
        if self.classifier is not None:
            answer = await self.classifier.answer(shown)
            if answer is None:
                return Prediction(meme=item.meme.id, outcome=Outcome.UNDECIDED, reason=NOTHING_COMPARABLE)
            cost = Cost()
        else:
            calls = _LabelCalls(self.stored, shown, self.question)
            answer = await calls.answer(await self._shots(shown))
            cost = calls.cost()
        return Prediction(meme=item.meme.id, outcome=Outcome.ANSWERED, said={self.question.task: answer}, cost=cost)

    async def _needed_content(self, item: MemeItem) -> DecodedMeme:
        """The meme with the inputs that are needed: without its picture if that is neither shown nor compared."""
        # Without examples to search for, the picture is neither shown nor compared, and decoding it would only make
        # memes without one fail.
        if not (self.question.needs_picture or self.question.shots):
            return DecodedMeme(item.meme)
        try:
            return await self.stored.decoded(item)
        except BadInput as error:
            # A missing picture means that examples are found by text alone; other errors are faults of the picture.
            if self.question.needs_picture or error.reason != PICTURE_MISSING:
                raise
            return DecodedMeme(item.meme)

    async def _shots(self, shown: DecodedMeme) -> list[_Shot]:
        """The most similar labelled memes, nearest first, found like precedents."""
        if not self.question.shots:
            return []
        finder = self.stored.executor.court.finder
        findings = await finder.find(
            text=shown.meme.text,
            frames=shown.frames,
            pixels_sha256=shown.pixels_sha256,
            exhibits=self.question.shots,
            tally=0,
            # None: the library's own alpha, which was calibrated.
            alpha=None,
        )
        ids = [exhibit.id for exhibit in findings.exhibits]
        # A library may store no pictures; examples then consist of words alone.
        pictures = await finder.pictures(ids) if self.question.needs_picture else [None] * len(ids)
        return [(self.examples[id_], picture) for id_, picture in zip(ids, pictures, strict=True)]


@dataclass(slots=True)
class _LabelCalls(MemeCalls):
    """The calls about one meme."""

    question: Question

    async def answer(self, shots: Sequence[_Shot]) -> TaskAnswer:
        """Asks once for each order of the options, and for their odds if requested."""
        prompt, question = _prompt(), self.question
        defined = (
            f"- {label}: {question.define[label]}" if question.define.get(label) else f"- {label}"
            for label in question.labels
        )
        system = prompt.system(title=question.title or question.task, labels="\n".join(defined))
        # Built once: all orders and odds calls share this prefix, which the server caches.
        parts = [*await self._examples(shots), *await self._material()]
        turns: list[tuple[str, ...]] = []
        for order in question.orders:
            fields: dict[str, Any] = {"label": {"type": "string", "enum": list(order)}}
            if question.multi:
                fields = {"labels": replies.object_schema({label: {"type": "boolean"} for label in order})}
            task = "multi" if question.multi else "single"
            agent = Agent(prompt, task, partial(_read, question), replies.object_schema(fields), system=system)
            ask = prompt.task(task, options="\n".join(f"- {label}" for label in order))
            turns.append(await self.ask(agent, [*parts, ask]))
        ask_odds = self._odds_of_labels if question.multi else self._odds_of_options
        scores = await ask_odds(system, parts) if question.odds else None
        # A single order is no rotation worth reporting.
        rotations = tuple(turns) if len(turns) > 1 else ()
        return TaskAnswer(labels=settle(question, turns), scores=scores or {}, rotations=rotations)

    async def _examples(self, shots: Sequence[_Shot]) -> list[str | Frame]:
        prompt, parts = _prompt(), list[str | Frame]()
        # Numbered, as an example's picture and words are separate parts.
        for number, (meme, picture) in enumerate(shots, 1):
            named = {"number": str(number)}
            if picture is not None and "picture" in self.question.inputs:
                parts += [picture, prompt.task("example_picture", **named)]
            words = await self._words(meme, () if picture is None else (picture,))
            # Fenced like the meme's own words: an example is untrusted text too.
            parts += [
                prompt.task("example_words", what=_WHAT[kind], words=self.fence.around(text), **named)
                for kind, text in words
            ]
            gold = gold_of(meme, self.question.task) or frozenset()
            # The label comes last, after the content that it rests on.
            parts.append(prompt.task("example", labels=_listed(self.question.in_order(gold)), **named))
        return parts

    async def _material(self) -> list[str | Frame]:
        prompt, shown, inputs = _prompt(), self.shown, self.question.inputs
        with_picture = "picture" in inputs
        parts: list[str | Frame] = [*shown.frames] if with_picture else []
        parts.append(prompt.task("picture" if with_picture else "without"))
        parts += [
            prompt.task(kind, words=self.fence.around(text))
            for kind, text in await self._words(shown.meme, shown.frames)
        ]
        for kind in inputs:
            known = gold_of(shown.meme, kind.removeprefix(GOLD)) if kind.startswith(GOLD) else None
            # A meme without gold for that task is shown without the line.
            if known is not None:
                labels = _listed(tuple(sorted(known)))
                parts.append(prompt.task("gold", task=kind.removeprefix(GOLD), labels=labels))
        return parts

    async def _words(self, meme: JudgedMeme, frames: tuple[Frame, ...]) -> list[tuple[str, str]]:
        """Words of a meme by input, the Proposer's description of its frames last."""
        words = [(kind, words_of(meme, kind)) for kind in WORDS if kind in self.question.inputs]
        if "description" in self.question.inputs and frames:
            # Shared with trials through the call cache.
            description = await Proposer(self.speaker(Role.PROPOSER), frames).describe()
            words.append(("description", description.value))
        # Empty words are left out: an empty fence would look like a meme without text.
        return [(kind, text) for kind, text in words if text.strip()]

    async def _odds_of_options(self, system: str, parts: Sequence[str | Frame]) -> dict[str, float] | None:
        """Probability of each label; None if the server reports none, or the options have next to no mass."""
        letters, asks = string.ascii_uppercase, []
        for order in self.question.orders:
            options = "\n".join(f"{letter}) {label}" for letter, label in zip(letters, order, strict=False))
            asks.append((order, _prompt().task("odds", options=options)))
        return await self._mean_shares("odds", system, parts, asks)

    async def _odds_of_labels(self, system: str, parts: Sequence[str | Frame]) -> dict[str, float] | None:
        scores = dict[str, float]()
        for label in self.question.labels:
            # Asked twice, with either answer first, as in a trial.
            orders = (("yes", "no"), ("no", "yes"))
            asks = [(order, _prompt().task("odds_of_label", label=label, a=order[0], b=order[1])) for order in orders]
            shares = await self._mean_shares("odds_of_label", system, parts, asks)
            if shares is None:
                return None
            scores[label] = shares["yes"]
        return scores

    async def _mean_shares(
        self, task: str, system: str, parts: Sequence[str | Frame], asks: Sequence[tuple[tuple[str, ...], str]]
    ) -> dict[str, float] | None:
        """Share of each option in the probability of all, as the mean over questions with the options in an order.

        None if one of them has no answer: the mean cancels out a preference for a letter, and half of it would not.
        """
        sums: dict[str, float] = {}
        for order, ask in asks:
            messages = Agent(_prompt(), task, str, system=system).messages([*parts, ask])
            odds = await self.speaker().odds(Role.JUDGE, messages, options=tuple(string.ascii_uppercase[: len(order)]))
            total = sum(odds.masses) if odds is not None else 0.0
            # A total of 0 would cause a division by 0. A model about to say something else says nothing about the
            # options.
            if odds is None or total <= 0 or total < self.court.settings.least_label_mass:
                return None
            for option, mass in zip(order, odds.masses, strict=True):
                sums[option] = sums.get(option, 0.0) + mass / total / len(asks)
        # A sum of shares may exceed 1 by a rounding error, which a probability must not.
        return {option: min(sums[option], 1.0) for option in asks[0][0]}


def open_question(
    question: Question, trial: TrialSolver, *, examples: Mapping[str, JudgedMeme], progress: Progress
) -> Solver:
    """Prepares a question for answering.

    Raises BadRequest: The library does not consist of these examples, or there are more labels than letters for odds.
    """
    # Labels of a multi-label task are asked about one by one, with two letters.
    if question.odds and len(question.labels) > len(string.ascii_uppercase) and not question.multi:
        raise BadRequest(f"Odds are asked for by letters, and {question.task} has {len(question.labels)} labels.")
    finder = trial.stored.executor.court.finder
    solver = RulingSolver(trial, question) if question.by is Answerer.TRIAL else QuestionSolver(trial.stored, question)
    if not question.needs_examples:
        return solver
    if not isinstance(finder, LibraryFinder):
        raise BadRequest("Labelled examples are found in a library on disk.", field="library")
    unknown = [id_ for id_ in finder.ids if id_ not in examples]
    if question.by is Answerer.TRIAL:
        # The library may hold precedents on harm, some of which have no label here.
        if len(unknown) == len(finder.ids):
            progress.tell(f"No precedent has a label of {question.task}: the Judge is told of none, and of no vote.")
            return solver
        if unknown:
            progress.tell(f"{len(unknown):,} precedents have no label of {question.task}, and no vote.")
    else:
        require_examples(finder.library.name, question)
        # Every example needs its gold label, or some would be shown as having no label.
        if unknown:
            raise BadRequest(
                f"{len(unknown):,} memes of the library have no gold label of {question.task}, {unknown[0]} among "
                "them: it was prepared for another task or other data. Leave --library out.",
                reason="LIBRARY_FOR_OTHERS",
            )
    if question.by is Answerer.MODEL:
        return replace(solver, examples=examples)
    votes = open_label_votes(
        question, finder.searched, examples=examples, encoder=finder.encoder, progress=progress.step
    )
    for note in votes.notes:
        progress.tell(note)
    return replace(solver, examples=examples, classifier=votes)


def settings_of_question(question: Question) -> dict[str, JsonValue]:
    """Describes a question for the settings of its run."""
    described: dict[str, JsonValue] = question.model_dump(mode="json")
    if question.by is not Answerer.PRECEDENTS:
        prompt = _prompt() if question.by is Answerer.MODEL else court_prompt("question")
        described |= {"prompt": prompt.id, "prompt_digest": prompt.digest}
    return described


def settle(question: Question, turns: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Aggregates the answers to several orders of the options.

    For multi-label tasks, the labels that more than half of the answers gave; for others, the most frequent label, and
    on a tie the one given first: the card's own order was asked first.
    """
    counts = Counter(label for turn in turns for label in turn)
    if question.multi:
        return question.in_order({label for label, count in counts.items() if 2 * count > len(turns)})
    # Counter keeps insertion order among ties, so the first answer wins.
    return (counts.most_common(1)[0][0],)


def _prompt() -> Prompt:
    return load(PROMPTS, "classify")


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) or "none of the labels"


def _read(question: Question, text: str) -> tuple[str, ...]:
    """Parses the labels of a reply; only words of the card are accepted. Raises UnusableReply."""
    if not question.multi:
        label = replies.parse(_OneLabel, text).label
        if label not in question.labels:
            raise UnusableReply("REPLY_MALFORMED", f'"label" must be one of {", ".join(question.labels)}')
        return (label,)
    labels = replies.parse(_AnyLabels, text).labels
    if labels.keys() != set(question.labels):
        named = ", ".join(question.labels)
        raise UnusableReply("REPLY_MALFORMED", f"it must say of each of {named} whether it fits, and of nothing else")
    return question.in_order({label for label, fits in labels.items() if fits})
