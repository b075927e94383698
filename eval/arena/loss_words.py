"""Reasons of lost battles as sections of a report."""

from __future__ import annotations

from eval.arena.losses import LossReport
from eval.arena.words import LossError
from eval.reports.sections import Section
from eval.scores.metrics import Figure
from serving.docket.review.agreement import Kappa


def loss_sections(report: LossReport) -> list[Section]:
    """Tables of aspects and of errors by model; each row adds up to 100 %."""
    names = list(report.models[0].aspects)
    aspects = (
        ("model", "losses", *(name.replace("_", " ") for name in names)),
        *((one.model, f"{one.n:,}", *(_percent(one.aspects[name]) for name in names)) for one in report.models),
    )
    errors = (
        ("model", "losses", *map(str, LossError)),
        *((one.model, f"{one.n:,}", *(_percent(one.errors[name]) for name in LossError)) for one in report.models),
    )
    notes = [
        f"In per cent of a model's losses that were explained, with 95 % intervals by bootstrap over memes. Of "
        f"{100 * report.by_verdicts:.0f} % the battle's verdicts tell the aspect; of the others the explainer does."
    ]
    if report.unexplained:
        notes.append(f"{report.unexplained:,} losses have no explanation that can be used, and are in no figure.")
    return [
        Section("aspects", "Why battles were lost: in what", aspects, (*notes, _agreement("aspect", report.aspects))),
        Section(
            "errors",
            "Why battles were lost: by which error",
            errors,
            (
                _agreement("error", report.errors),
                "Published (ProBench, of other models and questions): perception 25 to 41 %, reasoning 26 to 39, text "
                "20 to 31, knowledge 3.5 to 9, refusal 0 to 13.",
            ),
        ),
    ]


def _percent(figure: Figure) -> str:
    return f"{100 * figure.value:.0f} [{100 * figure.low:.0f}, {100 * figure.high:.0f}]"


def _agreement(what: str, kappa: Kappa) -> str:
    if kappa.n and kappa.value is None:
        return f"On {kappa.n:,} losses two explainers always gave one and the same {what}: there is no κ."
    if kappa.value is None:
        return f"Nothing is known of how far two explainers agree on the {what}: name another one with --second."
    few = "" if kappa.enough else " (too few to rely on)"
    return f"Two explainers agree on the {what} of {kappa.n:,} losses with κ = {kappa.value:.2f}{few}."
