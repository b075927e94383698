"""``memecourt-eval ablate``: what each part of the court is worth."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from court.events import Procedure
from eval.commands.options import (
    Shown,
    plan_of,
    run_watched,
    score_by_protocol,
    shows_sections,
    study_options,
    words_in,
)
from eval.datasets.items import Protocol
from eval.reports.sections import Section
from eval.runs.results import Results, read_results
from eval.scores.compare import Comparison, compare
from eval.scores.measure import SURE, figure, holm
from eval.scores.metrics import task_card
from eval.studies.arms import ModelOf, Study, arms_named, run_study
from eval.synthetic.world import GROUPS
from serving.cli.common import FILE

_OF_CARD = ("n", "unanswered", "failed", "figures", "baseline", "gold")


@click.command()
@study_options(procedure="full", split="test")
@click.option(
    "--arms",
    help="Arms, separated by commas. [default: all that change anything in the procedure, except those that run where "
    "they are named]",
)
@click.option(
    "--with-model",
    "models",
    multiple=True,
    metavar="[ROLE=]NAME[@URL]",
    help="Add an arm with another model in all roles or in one. Repeatable.",
)
@click.option(
    "--with-prompts",
    "prompts",
    multiple=True,
    metavar="SET",
    help=(
        "Add an arm with another prompt set: a packaged version or a folder (`memecourt prompts`). Without "
        "--arms only these are compared. Repeatable."
    ),
)
@click.option(
    "--with-policy",
    "policies",
    multiple=True,
    metavar="FILE",
    type=FILE,
    help="Add an arm with another policy, such as a paraphrase. Repeatable.",
)
@click.option(
    "--swap-groups",
    "groups",
    metavar="GROUP,GROUP…",
    help="Add an arm for each pair of groups, in which one replaces the other in texts and on badges; `invented` names "
    "those of `synthetic`.",
)
@shows_sections(page=False)
def ablate(**options: Any) -> Shown:
    """Judges a split once per arm, each with one part of the procedure changed, and compares each arm with `full`.

    Arms share one call store and one library of precedents, so that common calls are made once. Running the command
    again with the same --out continues, and can add arms.

    Differences are the arm minus `full`, paired by meme, with 95 % intervals by bootstrap (10,000 resamples); p is from
    the exact McNemar test. A meme without a class counts as wrong.
    """
    chosen = arms_named(
        words_in(options["arms"]),
        [ModelOf.parse(model) for model in options["models"]],
        Procedure(options["procedure"].upper()),
        options["prompts"],
        policies=options["policies"],
        groups=tuple(GROUPS) if options["groups"] == "invented" else words_in(options["groups"]),
    )
    study = Study("ablate", plan_of(options), chosen)
    runs = run_watched(lambda progress: run_study(study, progress))
    results = [read_results(folder.root) for folder in runs]
    by_protocol = score_by_protocol(
        study.plan.protocols,
        lambda protocol: compared_with_first(results, protocol, options["seed"]),
        named=options["protocols"] is not None,
    )
    return _shown(results[0], by_protocol, options["seed"])


def compared_with_first(results: Sequence[Results], protocol: Protocol, seed: int) -> list[tuple[Results, Comparison]]:
    """Compares each arm with the first."""
    # `full` is always the first arm, wherever it was named: see `arms_named`.
    return [(arm, compare(arm, results[0], protocol, seed=seed)) for arm in results]


def _shown(full: Results, by_protocol: Mapping[Protocol, Sequence[tuple[Results, Comparison]]], seed: int) -> Shown:
    figures = {str(protocol): ablation_json(each, protocol, seed) for protocol, each in by_protocol.items()}
    where = f"{full.dataset}, split {full.split}"
    sections = [_section(each, protocol, where) for protocol, each in by_protocol.items()]
    return Shown(title="Ablation", sections=sections, figures=figures)


def ablation_json(
    compared: Sequence[tuple[Results, Comparison]], protocol: Protocol, seed: int
) -> list[dict[str, Any]]:
    """The figures of each arm, alone and beside the first."""
    # Of the first, which is compared with itself, there is nothing to be corrected.
    corrected = [1.0, *holm([one.mcnemar_p for _, one in compared[1:]])]
    return [
        {
            "arm": arm.name,
            **_calls(arm),
            **{name: value for name, value in asdict(one).items() if name != "changed"},
            "corrected_p": p,
            "card": {name: value for name, value in asdict(card).items() if name in _OF_CARD},
        }
        for (arm, one), p in zip(compared, corrected, strict=True)
        for card in [task_card(arm, protocol, seed=seed)]
    ]


def _section(compared: Sequence[tuple[Results, Comparison]], protocol: Protocol, where: str) -> Section:
    head = ("arm", "accuracy", "macro-F1", "difference in accuracy", "in macro-F1", "p", "calls", "stored", "made")
    rows: list[tuple[str, ...]] = [head]
    for number, (arm, one) in enumerate(compared):
        calls = _calls(arm)
        differences = [figure(one.differences[name], "+.3f") for name in ("accuracy", "macro-f1")]
        against = (*differences, f"{one.mcnemar_p:.3g}") if number else ("", "", "")
        counts = (f"{calls[name]:,}" for name in ("calls", "stored", "made"))
        rows.append((arm.name, figure(one.a["accuracy"]), figure(one.a["macro-f1"]), *against, *counts))
    spent = ", ".join(f"{arm.name} {_calls(arm)['tokens']:,}" for arm, _ in compared)
    notes = [f"Tokens read and written, those out of the store counted: {spent}."]
    outcomes = {arm.name: [one.prediction.outcome for _, one in arm.under(protocol)] for arm, _ in compared}
    silent = {name: sum(outcome.harmful is None for outcome in each) for name, each in outcomes.items()}
    if any(silent.values()):
        silences = ", ".join(f"{name} {count:,}" for name, count in silent.items() if count)
        notes.append(f"Memes without a verdict, which count as wrong: {silences}.")
    (full, first), *others = compared
    unsure = [arm.name for arm, one in others if not one.sure]
    if unsure:
        names = ", ".join(unsure)
        notes.append(f"Within noise of {full.name} in accuracy: {names}. So many memes can't tell them apart.")
    # A single comparison needs no correction.
    if len(others) > 1:
        corrected = holm([one.mcnemar_p for _, one in others])
        left = [arm.name for (arm, _), p in zip(others, corrected, strict=True) if p < SURE]
        notes.append(
            f"These are {len(others)} tests at 5 %: one in twenty comes out below by chance alone. After Holm's "
            f"correction for that many: {', '.join(left) or 'none'}."
        )
    return Section("ablated", f"{where}, protocol {protocol}: {first.n:,} memes", tuple(rows), tuple(notes))


def _calls(arm: Results) -> dict[str, int]:
    calls = sum(one.prediction.cost.calls for one in arm.judged)
    stored = sum(one.prediction.cost.stored for one in arm.judged)
    tokens = sum(one.prediction.cost.tokens_in + one.prediction.cost.tokens_out for one in arm.judged)
    return {"calls": calls, "stored": stored, "made": calls - stored, "tokens": tokens}
