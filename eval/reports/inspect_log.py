"""A run as an Inspect AI log for its viewer: one sample per meme, with the trial's events as its transcript.

Inspect's own runner is not used: it repeats calls that a crash interrupted, and excludes failed samples from the
accuracy. Pictures stay in the docket, as the viewer would show them unblurred.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from inspect_ai.event import ErrorEvent, Event, InfoEvent, ModelEvent, ScoreEvent
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalRevision,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import GenerateConfig, ModelOutput, ModelUsage
from inspect_ai.scorer import Score

from court.errors import BadRequest
from court.events import AnyEvent, ModelCall, QuestionRuled, TrialFailed, TrialOpened, VerdictGiven
from court.record import TrialRecord
from eval.datasets.items import Outcome, Protocol
from eval.runs.results import Judged, Results
from eval.scores.measure import right_answers
from eval.scores.metrics import answers_of, task_card
from eval.solvers.question import Question, gold_of
from serving.docket.ports import TrialReader

_SPOKEN = ("description", "question", "answer", "summary")
"""Fields of events with a model's words; in a verdict they are its rationale."""


async def export_inspect(results: Results, trials: TrialReader, target: Path) -> int:
    """Writes the log.

    Args:
        results: Results of a run; memes that were not judged yet become samples with an error.
        target: The file, ``….eval`` (compressed) or ``….json``.

    Returns:
        Number of samples.

    Raises:
        BadRequest: The results are not from a run, or the file exists or has another suffix.
        DocketError: A record can't be read.
        OSError: The file can't be written.
    """
    manifest = results.manifest
    if manifest is None:
        raise BadRequest("Only a run has transcripts to export; these are predictions from elsewhere.")
    if target.suffix not in (".eval", ".json"):
        raise BadRequest(f"Inspect's viewer opens files named .eval or .json, not {target.name}.")
    if await asyncio.to_thread(target.exists):
        raise BadRequest(f"{target} is there already. Name another file, or remove it.", reason="FILE_EXISTS")
    # Harm is a task, once for each protocol. A meme without a gold label, or that the protocol drops, has no score.
    tasks: Sequence[Protocol | None] = [None] if manifest.question else results.scorable
    right: dict[str, dict[str, bool]] = {one.meme.id: {} for one in results.judged}
    for protocol in tasks:
        answers = answers_of(results, protocol)
        for one, fine in zip(answers.judged, right_answers(answers.arrays).tolist(), strict=True):
            right[one.meme.id][str(protocol or answers.task)] = fine
    samples = [
        _sample(
            one,
            await trials.record(one.prediction.trial) if one.prediction.trial else None,
            manifest.question,
            right[one.meme.id],
        )
        for one in results.judged
    ]
    # An unfinished run has no strict figures, as in the report.
    cards = [task_card(results, protocol) for protocol in tasks if results.finished]
    log = EvalLog(
        status="success" if manifest.finished else "cancelled",
        eval=EvalSpec(
            created=_time(manifest.created),
            task=f"memecourt/{manifest.dataset}/{manifest.split}",
            task_display_name=manifest.name,
            dataset=EvalDataset(
                name=f"{manifest.dataset} {manifest.split}",
                samples=len(samples),
                sample_ids=[sample.id for sample in samples],
                shuffled=False,
            ),
            model=", ".join(sorted(set(manifest.models.values()))) or "memecourt/summary",
            config=EvalConfig(limit=manifest.limit),
            # Only an exact commit of the source tree can be checked out.
            revision=None
            if not manifest.commit or manifest.commit.endswith("+")
            else EvalRevision(type="git", origin="", commit=manifest.commit),
            packages={"memecourt": manifest.software},
            metadata=manifest.model_dump(mode="json"),
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=sum(sample.error is None for sample in samples),
            scores=[
                EvalScore(
                    name=str(card.protocol or card.task),
                    scorer="memecourt",
                    scored_samples=card.n,
                    metrics={
                        name: EvalMetric(
                            name=name,
                            value=found.value,
                            metadata={"low": found.low, "high": found.high, "memes": memes},
                        )
                        for name, memes in card.over.items()
                        if (found := card.figures[name]) is not None
                    },
                )
                for card in cards
            ],
        ),
        stats=EvalStats(
            started_at=_time(manifest.created),
            completed_at=_time(manifest.finished) if manifest.finished else "",
            model_usage=_summed(sample.model_usage for sample in samples),
        ),
        samples=samples,
    )
    await asyncio.to_thread(write_eval_log, log, str(target))
    return len(samples)


def _sample(
    one: Judged, record: TrialRecord | None, question: Question | None, right: Mapping[str, bool]
) -> EvalSample:
    """A meme with its prediction and trial; ``right`` is by protocol or, of a run that asked a question, by task."""
    meme, prediction = one.meme, one.prediction
    target: str | list[str]
    if question is None:
        target, answered = "HARMFUL" if meme.harmful else "NOT_HARMFUL", str(prediction.outcome)
        words = explained = (record.verdict.rationale if record and record.verdict else "") or prediction.reason
        about: dict[str, Any] = {"source_label": meme.source_label, "targets": list(meme.targets)}
    else:
        target, answer = list(question.in_order(gold_of(meme, question.task) or ())), prediction.said.get(question.task)
        answered, explained = "no answer" if answer is None else ", ".join(answer.labels), prediction.reason
        words, about = explained if answer is None else answered, {"gold": dict(meme.tasks)}
    course: dict[str, Any] = {}
    if record is not None:
        course = {
            "events": list(_transcript(record)),
            "model_usage": _summed({call.model: _usage([call])} for call, _, _ in record.calls),
            "started_at": _time(record.opened.at),
            "completed_at": _time(record.events[-1].at),
            "total_time": record.seconds,
        }
    failed = prediction.outcome is Outcome.FAILED
    return EvalSample(
        id=meme.id,
        epoch=1,
        input=meme.text,
        target=target,
        output=ModelOutput.from_content("memecourt", words),
        scores={
            name: Score(value="C" if fine else "I", answer=answered, explanation=explained)
            for name, fine in right.items()
        },
        metadata={**about, "prediction": prediction.model_dump(mode="json")},
        error=EvalError(message=prediction.reason or "FAILED", traceback="", traceback_ansi="") if failed else None,
        **course,
    )


def _transcript(record: TrialRecord) -> Iterator[Event]:
    began = record.opened.at
    for event, calls in record.first_reports:
        at: dict[str, Any] = {
            "timestamp": event.at,
            # Clamped at 0, in case the clock was set back during the trial.
            "working_start": max((event.at - began).total_seconds(), 0.0),
            "uuid": f"{record.trial_id}/{event.seq}",
        }
        yield _event(event, at, [each.call for each in calls if each.task != "odds"])


def _event(event: AnyEvent, at: dict[str, Any], calls: Sequence[ModelCall]) -> Event:
    """Converts an event with the calls that it is the first to report."""
    body = event.model_dump(mode="json", exclude={"trial_id", "seq", "at", "call", "calls"})
    if isinstance(event, VerdictGiven):
        verdict = event.verdict
        explained = Score(value=str(verdict.label), answer=str(verdict.label), explanation=verdict.rationale)
        return ScoreEvent(score=explained, scorer="judge", metadata={**body, "call": _plain(event.call)}, **at)
    if isinstance(event, TrialFailed):
        error = EvalError(message=f"{event.step}: {event.message}", traceback="", traceback_ansi="")
        return ErrorEvent(error=error, metadata=body, **at)
    if not calls:
        source = "trial" if isinstance(event, TrialOpened) else event.kind
        return InfoEvent(source=source, data=body, **at)
    call = calls[0]
    # The rationale of a ruling; its question is an object, not the model's words.
    spoken = [event.rationale] if isinstance(event, QuestionRuled) else [body[part] for part in _SPOKEN if part in body]
    output = ModelOutput.from_content(call.model, "\n\n".join(map(str, spoken)))
    output.usage = _usage(calls)
    output.time = sum(each.latency_s for each in calls)
    return ModelEvent(
        model=call.model,
        role=str(call.role).lower(),
        # A record names the prompt of a call, not its text, which follows from prompt and record.
        input=[],
        tools=[],
        tool_choice="none",
        config=GenerateConfig(),
        output=output,
        working_time=output.time,
        # A document may take several calls.
        metadata={**body, "call": _plain(call), **({"calls": [*map(_plain, calls)]} if len(calls) > 1 else {})},
        **at,
    )


def _plain(call: ModelCall | None) -> dict[str, Any] | None:
    return None if call is None else call.model_dump(mode="json")


def _usage(calls: Sequence[ModelCall]) -> ModelUsage:
    into, out = sum(call.tokens_in for call in calls), sum(call.tokens_out for call in calls)
    return ModelUsage(
        input_tokens=into,
        output_tokens=out,
        total_tokens=into + out,
        input_tokens_cache_read=sum(call.tokens_cached for call in calls),
    )


def _summed(usages: Any) -> dict[str, ModelUsage]:
    total: dict[str, ModelUsage] = {}
    for usage in usages:
        for model, one in usage.items():
            total[model] = total[model] + one if model in total else one
    return total


def _time(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
