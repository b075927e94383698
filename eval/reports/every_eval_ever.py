"""Results in the format of Every Eval Ever (schema 0.3.0), a shared database of evaluations: one file per system.

https://github.com/evaleval/every_eval_ever. Texts of memes are not exported unless requested: a sample is identified by
its id and a digest, so that the same sample is recognised across systems.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from court.digests import digest
from court.errors import BadRequest
from eval.runs.prediction import Outcome
from eval.runs.question import gold_of
from eval.runs.results import Judged, Results
from eval.scores.label_metrics import LOWER_IS_BETTER
from eval.scores.metrics import RESAMPLES, Card, Figure, card
from eval.scores.task_card import TaskCard, arrays_of, task_card
from serving.version import SOFTWARE

SCHEMA = "0.3.0"
Relationship = Literal["first_party", "third_party", "collaborative", "other"]
_LIBRARY = "memecourt"


@dataclass(frozen=True, slots=True)
class Publisher:
    """Source of the results, as a record names it.

    Attributes:
        relationship: Relationship of the evaluator to the makers of the models.
        url: Address of the organization; empty if there is none.
    """

    organization: str
    relationship: Relationship = "third_party"
    url: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a record.

    Attributes:
        description: Sentence on the quantity that it measures.
        figure: Value with its 95 % interval, or the value alone.
        n: Number of memes or battles that it is computed over.
        lower_is_better: True for errors.
    """

    name: str
    description: str
    figure: Figure | float
    n: int
    lower_is_better: bool = False
    low: float = 0.0
    high: float = 1.0
    method: str = "bootstrap over memes"


@dataclass(frozen=True, slots=True)
class Record:
    """A file of the database, with that of its samples.

    Attributes:
        folder: Folder below ``data``: benchmark, developer, model.
        name: Name of the file without its ending.
        samples: Lines of the file of samples; empty if there are none.
    """

    folder: tuple[str, str, str]
    name: str
    content: Mapping[str, Any]
    samples: tuple[Mapping[str, Any], ...] = ()

    def write(self, root: Path) -> Path:
        """Writes both files, and returns the one of the results.

        Raises:
            BadRequest: The file exists already.
            OSError: The file can't be written.
        """
        place = root.joinpath("data", *self.folder)
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"{self.name}.json"
        if file.exists():
            raise BadRequest(f"{file} is there already: remove it, or name another folder.", reason="FILE_EXISTS")
        content = dict(self.content)
        if self.samples:
            lines = "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in self.samples).encode("ascii")
            samples = place / f"{self.name}_samples.jsonl"
            samples.write_bytes(lines)
            content["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": samples.relative_to(root).as_posix(),
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(lines).hexdigest(),
                "total_rows": len(self.samples),
            }
        # Written last: if it exists, so do its samples.
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return file


def record_of_run(
    results: Results, publisher: Publisher, *, source_url: str, developer: str = "", with_texts: bool = False
) -> Record:
    """The record of a run: strict figures under each protocol, or those of its question, and a sample per meme.

    Args:
        source_url: Address at which the data set's authors publish it; empty if unknown.
        developer: Maker of the model; if empty, the part of the model's name before the slash.
        with_texts: True to write the memes' texts into the samples.

    Raises:
        BadRequest: The results are not from a run, or the run is not finished.
    """
    manifest = results.manifest
    if manifest is None or not results.finished:
        raise BadRequest(f"{results.name} is not a finished run: only such results are for others to rely on.")
    names = sorted(set(manifest.models.values()))
    # A system of several models is not named after one of them.
    model = names[0] if len(names) == 1 else f"{_LIBRARY}/{manifest.procedure.lower()}"
    settings = {
        "procedure": str(manifest.procedure),
        "settings": manifest.settings_digest,
        "prompts": manifest.prompts,
        "policy": manifest.policy,
        "library": manifest.library,
        "encoder": manifest.encoder,
        "control": manifest.control,
        "comparator": manifest.comparator,
        "commit": manifest.commit,
        "command": manifest.command,
    }
    evaluation = f"{manifest.dataset}/{manifest.split}"
    if manifest.question is not None:
        settings |= {"task": manifest.question.task, "inputs": ",".join(manifest.question.inputs)}
        metrics = list(_metrics_of_task(evaluation, task_card(results, seed=manifest.seed)))
    else:
        metrics = [
            metric
            for protocol in results.scorable
            for metric in _metrics_of(f"{evaluation} ({protocol})", card(results, protocol, seed=manifest.seed))
        ]
    record = record_of(
        metrics,
        publisher,
        benchmark=manifest.dataset,
        data={"dataset_name": evaluation, "url": source_url},
        model=model,
        developer=developer,
        source=manifest.name,
        at=manifest.created,
        details=settings,
        model_details={role.lower(): name for role, name in manifest.models.items()},
    )
    samples = _samples(results, record, with_texts=with_texts)
    return Record(record.folder, record.name, record.content, tuple(samples))


def record_of(
    metrics: Sequence[Metric],
    publisher: Publisher,
    *,
    benchmark: str,
    data: Mapping[str, str],
    model: str,
    developer: str,
    source: str,
    at: datetime,
    details: Mapping[str, str],
    model_details: Mapping[str, str] | None = None,
) -> Record:
    """A record of some figures of one system.

    Args:
        data: ``dataset_name``, and ``url`` if known.
        model: Name of the model, ``maker/name``.
        developer: Maker of the model; if empty, the part of the model's name before the slash.
        at: Start time of the run.
        details: Settings of the evaluation; empty ones are omitted.
        model_details: Details of the model; empty ones are omitted.
    """
    # A name on a hub begins with its owner's.
    developer = developer or (model.partition("/")[0] if "/" in model else "unknown")
    details = {name: value for name, value in details.items() if value}
    fingerprint = digest({"benchmark": benchmark, "model": model, "at": at.isoformat(), **details})
    fingerprint = fingerprint.removeprefix("sha256:")
    content: dict[str, Any] = {
        "schema_version": SCHEMA,
        # A slash separates the fields of such an id.
        "evaluation_id": f"{benchmark}/{model.replace('/', '_')}/{at.timestamp():.0f}",
        "evaluation_timestamp": at.isoformat(),
        "retrieved_timestamp": f"{datetime.now(UTC).timestamp():.0f}",
        "source_metadata": {
            "source_name": source,
            "source_type": "evaluation_run",
            "source_organization_name": publisher.organization,
            "evaluator_relationship": publisher.relationship,
            **({"source_organization_url": publisher.url} if publisher.url else {}),
        },
        "eval_library": {"name": _LIBRARY, "version": SOFTWARE, "additional_details": details},
        "model_info": {
            "name": model.rpartition("/")[2],
            "id": model if "/" in model else f"{developer}/{model}",
            "developer": developer,
            # We know the address of a model, but not who runs the machine, nor whether its weights are available.
            "additional_details": {
                "deployment_type": "unknown",
                "model_availability": "unknown",
                **(model_details or {}),
            },
        },
        "evaluation_results": [_result(metric, data, at) for metric in metrics],
    }
    folder = (_path_word(benchmark), _path_word(developer), _path_word(model.rpartition("/")[2]))
    # Derived from the content: writing the same run twice gives the same file, which `write` rejects.
    return Record(folder, str(uuid.UUID(fingerprint[:32], version=4)), content)


def _metrics_of(name: str, scored: Card) -> Iterator[Metric]:
    metric = partial(Metric, method=_method(scored.groups))
    yield metric(
        f"{name}: accuracy",
        "Share of memes that were given their gold class; none given is wrong.",
        scored.strict.accuracy,
        scored.n,
    )
    yield metric(
        f"{name}: macro-F1",
        "Mean F1 of both classes over all memes; none given is a miss.",
        scored.strict.macro_f1,
        scored.n,
    )
    yield metric(f"{name}: coverage", "Share of memes that were given a class.", scored.coverage, scored.n)
    if scored.auroc is not None:
        yield metric(f"{name}: AUROC", "Area under the ROC curve of the score.", scored.auroc, scored.scored)
    if scored.brier is not None:
        yield metric(
            f"{name}: Brier score",
            "Mean squared difference of score and gold.",
            scored.brier,
            scored.scored,
            lower_is_better=True,
        )


def _metrics_of_task(evaluation: str, scored: TaskCard) -> Iterator[Metric]:
    """The figures of a question, beginning with the share of memes with all labels right, which samples belong to."""
    share = "exact" if scored.question.multi else "accuracy"
    for name in sorted(scored.figures, key=lambda name: name != share):
        figure = scored.figures[name]
        if figure is not None:
            yield Metric(
                f"{evaluation} ({scored.question.task}): {name}",
                f"{name} of the labels of {scored.question.task}; a meme without an answer is wrong.",
                figure,
                scored.over[name],
                lower_is_better=name in LOWER_IS_BETTER,
                # The largest error of a level is from one end of the labels to the other.
                high=len(scored.question.labels) - 1.0 if name.startswith("mmae") else 1.0,
                method=_method(scored.groups),
            )


def _method(groups: int) -> str:
    return "bootstrap over groups of memes" if groups else "bootstrap over memes"


def _result(metric: Metric, data: Mapping[str, str], at: datetime) -> dict[str, Any]:
    figure = metric.figure
    uncertainty: dict[str, Any] = {"num_samples": metric.n}
    if isinstance(figure, Figure):
        uncertainty |= {
            "confidence_interval": {
                "lower": figure.low,
                "upper": figure.high,
                "confidence_level": 0.95,
                "method": metric.method,
            },
            "num_bootstrap_samples": RESAMPLES,
        }
    url = data.get("url")
    source = {"source_type": "url", "url": [url]} if url else {"source_type": "other"}
    return {
        "evaluation_result_id": _path_word(metric.name),
        "evaluation_name": metric.name,
        "source_data": {"dataset_name": data["dataset_name"], **source},
        "evaluation_timestamp": at.isoformat(),
        "metric_config": {
            "evaluation_description": metric.description,
            "lower_is_better": metric.lower_is_better,
            "score_type": "continuous",
            "min_score": metric.low,
            "max_score": metric.high,
        },
        "score_details": {
            "score": figure.value if isinstance(figure, Figure) else figure,
            "uncertainty": uncertainty,
        },
    }


def _samples(results: Results, record: Record, *, with_texts: bool) -> Iterator[dict[str, Any]]:
    accuracy = record.content["evaluation_results"][0]
    choices, answers = _answers(results)
    for one, gold, answer in answers:
        prediction, right = one.prediction, answer == gold
        raw = ", ".join(answer) if answer is not None else str(prediction.outcome)
        yield {
            "schema_version": SCHEMA,
            "evaluation_id": record.content["evaluation_id"],
            "model_id": record.content["model_info"]["id"],
            # A sample belongs to one result: accuracy, which is the mean of the samples' correctness.
            "evaluation_name": accuracy["evaluation_name"],
            "evaluation_result_id": accuracy["evaluation_result_id"],
            "sample_id": one.meme.id,
            "sample_hash": _sample_hash(one, "\n".join(gold)),
            "interaction_type": "single_turn",
            "input": {
                "raw": one.meme.text if with_texts else "",
                "reference": gold,
                "choices": choices,
            },
            "output": {"raw": [raw]},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": raw,
                    "extraction_method": "exact_match",
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": float(right), "is_correct": right},
            "error": prediction.reason or None if prediction.outcome is Outcome.FAILED else None,
            "metadata": {"split": one.meme.split, "source_label": one.meme.source_label},
        }


def _answers(results: Results) -> tuple[list[str], list[tuple[Judged, list[str], list[str] | None]]]:
    """The possible labels, and each meme with its gold labels and its predicted labels, None without an answer."""
    question = results.question
    if question is None:
        choices = [str(Outcome.HARMFUL), str(Outcome.NOT_HARMFUL)]
        return choices, [
            (
                one,
                [choices[not harmful]],  # harmful comes first
                [str(one.prediction.outcome)] if one.prediction.outcome.harmful is not None else None,
            )
            # The first protocol, as a sample belongs to one result: the first of the record.
            for harmful, one in results.under(results.scorable[0])
        ]
    answers = []
    for one in arrays_of(results)[0]:
        answer = one.prediction.said.get(question.task)
        gold = question.in_order(gold_of(one.meme, question.task) or frozenset())
        labels = None if answer is None else list(question.in_order(frozenset(answer.labels)))
        answers.append((one, list(gold), labels))
    return list(question.labels), answers


def _sample_hash(one: Judged, gold: str) -> str:
    return hashlib.sha256(f"{one.meme.id}\n{one.meme.text}\n{gold}".encode()).hexdigest()


def _path_word(name: str) -> str:
    """A name as a folder name: only letters, digits, dots and dashes."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip(".") or "unknown"
