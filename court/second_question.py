"""A further question to the Judge of a trial that has its verdict: from the same evidence, and apart from harm.

The trial is over and stays as it is: its verdict, the reasons for a person to look and its failures are read here and
never written. What comes of the question, a failure too, is an event of its own behind the verdict.
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
from court.question import QUESTION_RULE, CourtQuestion
from court.record import TrialRecord, TrialState
from court.recorded_case import NotOnRecord, RecordedCase
from court.recorder import Recorder
from court.roles import Judge, Speaker
from court.trial import Court
from court.untrusted import Fence


@dataclass(frozen=True, slots=True)
class QuestionBrief:
    """A question with what is known of it from labelled memes.

    Attributes:
        question: The question.
        precedent_labels: Options that people gave memes of the library, by id; the Judge is told those of the
            precedents that it is shown.
        vote: Probability of each option by a calibrated vote of labelled memes; empty where there is none.
    """

    question: CourtQuestion
    precedent_labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    vote: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses a vote that is not about this question's options."""
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

    Args:
        court: Court with the versions that the trial was held with.
        record: Record of a trial with a verdict in which models were asked.
        picture: Picture of its meme, as decoded then; None where its text was sent alone.
        further_question: The question, with what is known of it from labelled memes.
        keep: Sink for the event.
        within_s: Seconds until the caller's deadline; None where there is none.
        batch: True if nobody waits for it singly.

    Returns:
        The event. Its ``failure`` says why there is no answer, where there is none.

    Raises:
        BadRequest: The trial has no verdict, no model was asked in it, or none is loaded; nothing is recorded.
        CantResume: The trial was held with other versions than are loaded now, or its picture or a precedent's is not
            as it was then; nothing is recorded.
        CourtError: The precedents' pictures could not be read, or the event not be stored.
    """
    chairs = court.chairs
    # Before any call: what can't be asked leaves no event behind.
    if record.state is not TrialState.DECIDED:
        raise BadRequest(
            "The trial has no verdict: a further question rests on a whole trial.", reason="TRIAL_NOT_DECIDED"
        )
    # A summary has no Judge who has seen the meme.
    if not record.opened.versions.models:
        raise BadRequest(
            "No model was asked in this trial: a further question needs the Judge of a full one.",
            reason="PROCEDURE_NOT_LOADED",
        )
    if chairs is None:
        raise BadRequest(
            "No chat models are loaded: a further question goes to the Judge of the trial. Load its models and its "
            "library, with the procedure full.",
            reason="PROCEDURE_NOT_LOADED",
        )
    # As for a trial that is resumed: a ruling by another model or library would rest on other evidence.
    court.require_same_versions(record)
    if ("" if picture is None else picture.pixels_sha256) != record.opened.meme.pixels_sha256:
        raise CantResume("The picture is not the one that was on trial.", reason="PICTURE_DIFFERS")
    fence, settings = Fence(court.fence_mark), court.settings
    # A recorder of its own, whose tally counts the calls for this question alone.
    clerk = Recorder(record.trial_id, keep, court.now, record.events)
    deadline = Deadline(within_s, settings.call_s, clerk.tally)
    try:
        brief = await _brief_of(
            court, record, () if picture is None else picture.frames, fence=fence, deadline=deadline
        )
    except NotOnRecord as missing:
        raise CantResume(str(missing)) from None
    # Labels of precedents that the Judge was not shown would be about numbers that it does not know.
    shown = {exhibit.precedent.id for exhibit in brief.exhibits}
    values: dict[str, Any] = {
        "question": further_question.question,
        "precedent_labels": {
            id_: tuple(labels) for id_, labels in further_question.precedent_labels.items() if id_ in shown
        },
        # As with the precedents' vote on harm: a Judge that is shown no count is shown none here.
        "vote": dict(further_question.vote) if settings.tally_shown and not settings.dull_judge else {},
        # Recorded, since the trial's own mark is another: messages are rebuilt with this one.
        "fence_mark": fence.mark,
    }
    judge = Judge(
        Speaker(
            # Keyed by the meme, as its trial was: that server has the beginning of the brief in its cache.
            model=chairs.pinned(record.opened.meme.digest).judge,
            fence=fence,
            deadline=deadline,
            reply_chars=settings.reply_chars,
            batch=batch,
            prompts=court.prompts,
        )
    )
    messages = brief.question(
        further_question.question,
        settings.reply_chars,
        precedent_labels=values["precedent_labels"],
        vote=values["vote"],
    )
    try:
        with clerk.tally.counting():
            reply = await judge.answer(messages, further_question.question)
    except CourtError as error:
        # An outcome of the question and of nothing else: the verdict on record stands.
        failed = {
            "failure": error.reason,
            "retryable": isinstance(error, Unavailable),
            "unusable": error.replies if isinstance(error, ReplyUnusable) else None,
        }
        return await clerk.note(QuestionRuled, **values, **failed)
    ruling = reply.value
    return await clerk.note(
        QuestionRuled,
        **values,
        chosen=ruling.chosen,
        strengths=ruling.strengths,
        # An option that the Judge named itself follows from no rule.
        rule=QUESTION_RULE if ruling.strengths else "",
        rationale=ruling.rationale,
        call=reply.call,
    )


async def _brief_of(
    court: Court, record: TrialRecord, frames: tuple[Frame, ...], *, fence: Fence, deadline: Deadline
) -> JudgeBrief[Frame]:
    """The Judge's brief as it was, pictures of precedents included."""
    case = RecordedCase(record)
    with_picture = {precedent.id: sha256 for precedent, sha256 in case.exhibits if sha256}
    reading = court.finder.pictures(list(with_picture))
    found = await run_within(reading, deadline.at_most(court.settings.find_s), search_late)
    pictures: dict[str, Frame] = {}
    for (id_, sha256), frame in zip(with_picture.items(), found, strict=True):
        # The same library should have the same pictures. If not, the Judge would rule on other evidence than before.
        if frame is None or file_sha256(frame.png) != sha256:
            raise CantResume("The picture of a precedent is not as it was in the trial.", reason="PRECEDENT_DIFFERS")
        pictures[id_] = frame
    return case.judge_brief(frames, pictures, fence=fence, prompts=court.prompts)
