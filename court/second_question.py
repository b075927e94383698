"""A further question to the Judge of a decided trial, answered from the same evidence and independent of harm.

The trial stays unchanged: its verdict, reasons for review and failures are only read. The outcome of the question,
including a failure, is an event of its own after the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from court.deadline import Deadline, run_within
from court.errors import BadRequest, CantResume, CourtError, ReplyUnusable, Unavailable
from court.events import QuestionRuled
from court.evidence import search_late
from court.meme import Frame, Picture
from court.messages import JudgeBrief, file_sha256
from court.ports import EventSink
from court.prompts import Fence
from court.question import QUESTION_RULE, CourtQuestion
from court.record import TrialRecord, TrialState
from court.recorded_case import NotOnRecord, RecordedCase
from court.recorder import Recorder
from court.roles import Judge, Speaker
from court.trial import Court


@dataclass(frozen=True, slots=True)
class QuestionBrief:
    """A question, with the options that people gave to memes of the library, by id."""

    question: CourtQuestion
    precedent_labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    vote: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Rejects a vote that does not cover exactly this question's options."""
        if self.vote and self.vote.keys() != set(self.question.options):
            raise ValueError("a vote has a probability for each option of the question")


async def rule_on_question(
    court: Court,
    record: TrialRecord,
    picture: Picture | None,
    further_question: QuestionBrief,
    *,
    keep: EventSink,
    within_s: float | None = None,
    batch: bool = False,
) -> QuestionRuled:
    """Puts a question to the Judge of a trial and records its ruling, or why there is none.

    Raises:
        BadRequest: The trial has no verdict or asked no model, or no model is loaded; nothing is recorded.
        CantResume: The trial used other versions than are loaded now, or its picture or a precedent's has changed;
            nothing is recorded.
        CourtError: The precedents' pictures could not be read, or the event could not be stored.
    """
    # Checked before any call: an invalid request leaves no event behind. A summary has no Judge who has seen the meme.
    require_verdict(record)
    if not record.opened.versions.models:
        raise BadRequest(
            "No model was asked in this trial: a further question needs the Judge of a full one.",
            reason="PROCEDURE_NOT_LOADED",
        )
    reopened = await reopen(court, record, picture, keep=keep, within_s=within_s, batch=batch)
    recorder, brief, judge, settings = reopened.recorder, reopened.brief, reopened.judge, court.settings
    # Labels of precedents that the Judge was not shown would refer to numbers that it does not know.
    shown = {exhibit.precedent.id for exhibit in brief.exhibits}
    values: dict[str, Any] = {
        "question": further_question.question,
        "precedent_labels": {
            id_: tuple(labels) for id_, labels in further_question.precedent_labels.items() if id_ in shown
        },
        # As with the precedents' vote on harm: if the tally is hidden from the Judge, this vote is too.
        "vote": dict(further_question.vote) if settings.tally_shown and not settings.dull_judge else {},
        # Recorded because it differs from the trial's own mark: messages are rebuilt with this one.
        "fence_mark": brief.fence.mark,
    }
    messages = brief.question(
        further_question.question,
        settings.reply_chars,
        precedent_labels=values["precedent_labels"],
        vote=values["vote"],
    )
    try:
        with recorder.usage.counting():
            reply = await judge.answer(messages, further_question.question)
    except CourtError as error:
        # Only the question fails; the recorded verdict stands.
        failed = {
            "failure": error.reason,
            "retryable": isinstance(error, Unavailable),
            "unusable": error.replies if isinstance(error, ReplyUnusable) else None,
        }
        return await recorder.record(QuestionRuled, **values, **failed)
    ruling = reply.value
    return await recorder.record(
        QuestionRuled,
        **values,
        chosen=ruling.chosen,
        strengths=ruling.strengths,
        # No rule applies if the Judge named the option itself.
        rule=QUESTION_RULE if ruling.strengths else "",
        rationale=ruling.rationale,
        call=reply.call,
    )


@dataclass(frozen=True, slots=True)
class ReopenedCase:
    """A decided case before its Judge again, with a recorder that counts only the calls from here on."""

    recorder: Recorder
    brief: JudgeBrief[Frame]
    judge: Judge


def require_verdict(record: TrialRecord) -> None:
    """Raises BadRequest if a trial has no verdict."""
    if record.state is not TrialState.DECIDED:
        raise BadRequest(
            "The trial has no verdict: what is asked after it rests on a whole trial.", reason="TRIAL_NOT_DECIDED"
        )


def require_same(court: Court, record: TrialRecord, picture: Picture | None) -> None:
    """Raises CantResume if a trial was begun with other versions than are loaded now, or with another picture."""
    # As for a resumed trial: an answer by another model or library would rest on other evidence.
    court.require_same_versions(record)
    if ("" if picture is None else picture.pixels_sha256) != record.opened.meme.pixels_sha256:
        raise CantResume("The picture is not the one that was on trial.", reason="PICTURE_DIFFERS")


async def reopen(
    court: Court,
    record: TrialRecord,
    picture: Picture | None,
    *,
    keep: EventSink,
    within_s: float | None = None,
    batch: bool = False,
    judge: int = 1,
) -> ReopenedCase:
    """Brings a decided case before its Judge again.

    Raises:
        BadRequest, CantResume, CourtError: The reasons of :func:`rule_on_question`.
    """
    if court.role_models is None:
        raise BadRequest(
            "No chat models are loaded: the Judge of the trial is asked. Load its models and its library, with the "
            "procedure full.",
            reason="PROCEDURE_NOT_LOADED",
        )
    require_same(court, record, picture)
    fence, settings = Fence(court.fence_mark), court.settings
    recorder = Recorder(record.trial_id, keep, court.now, record.events)
    deadline = Deadline(within_s, court.call_s, recorder.usage)
    frames = picture.frames if picture and settings.pictures_shown else ()
    try:
        brief = await _brief_of(court, record, frames, fence=fence, deadline=deadline)
    except NotOnRecord as missing:
        raise CantResume(str(missing)) from None
    speaker = Speaker(
        # Keyed by the meme, like its trial: that server has the beginning of the brief in its cache.
        model=court.role_models.pinned(record.opened.meme.digest).panel(settings.judges)[judge - 1],
        fence=fence,
        deadline=deadline,
        reply_chars=settings.reply_chars,
        batch=batch,
        prompts=court.prompts,
    )
    return ReopenedCase(recorder, brief, Judge(speaker, judge))


async def _brief_of(
    court: Court, record: TrialRecord, frames: tuple[Frame, ...], *, fence: Fence, deadline: Deadline
) -> JudgeBrief[Frame]:
    case = RecordedCase(record)
    with_picture = {precedent.id: sha256 for precedent, sha256 in case.exhibits if sha256}
    reading = court.finder.pictures(list(with_picture))
    found = await run_within(reading, deadline.at_most(court.settings.find_s), search_late)
    pictures: dict[str, Frame] = {}
    for (id_, sha256), frame in zip(with_picture.items(), found, strict=True):
        # The same library should have the same pictures; otherwise the Judge would rule on different evidence.
        if frame is None or file_sha256(frame.png) != sha256:
            raise CantResume("The picture of a precedent is not as it was in the trial.", reason="PRECEDENT_DIFFERS")
        pictures[id_] = frame
    return case.judge_brief(frames, pictures, fence=fence, prompts=court.prompts)
