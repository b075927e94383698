"""``memecourt-eval stability`` and ``counterfactual``: verdicts on altered memes, from the arms of a study."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eval.runs.results import Results
    from eval.scores.altered import FlipRate

_study = click.argument("study", type=click.Path(path_type=Path), metavar="STUDY")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")


@click.command()
@_study
@_as_json
def stability(study: Path, as_json: bool) -> None:
    """Says how many verdicts flip under alterations that should not change them, and on what that depends.

    STUDY is a folder of `memecourt-eval ablate` with arms such as white-space, cropped, defender-first, or with
    --with-policy; each is compared with the arm `full`. Intervals are 95 %: Wilson's, and by bootstrap over memes.
    """
    from eval.reports.sections import Section, as_text
    from eval.scores.altered import stability as measured
    from eval.scores.measure import figure
    from eval.studies.arms import UNCHANGING

    base, arms = _arms(study, lambda run: run.name in UNCHANGING or run.name.startswith("policy-"))
    found = measured(base, arms)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    lead = [
        f"{found.n:,} memes, {len(arms)} alterations. Flips of a meme, on average: {figure(found.of_memes)}.",
        f"Memes that at least one alteration flips: {figure(found.worst)}.",
        f"Accuracy {figure(found.right)}; with every alteration as well, the worst of {len(arms) + 1}: "
        f"{figure(found.right_always)}.",
        f"Mean risk of a wrong label, by the scores: {figure(found.risk)}; with the flips as well: "
        f"{figure(found.risk_with_flips)}.",
    ]
    parts = {"alteration": found.arms, **found.depends}
    sections = [Section(name, f"Flips by {name}", _rows(name, rates)) for name, rates in parts.items()]
    wrong = tuple((each.name, f"{each.n:,}", figure(each.share)) for each in found.wrong)
    sections.append(Section("wrong", "Wrong labels", (("memes", "with a label", "wrong"), *wrong)))
    most = tuple((meme, str(flips), str(n), f"{risk:.2f}") for meme, flips, n, risk in found.memes)
    head = ("meme", "flips", "verdicts", "risk")
    sections.append(Section("memes", "Memes that flip most", (head, *most), words=True))
    click.echo(as_text(lead, sections))


def _rows(name: str, rates: Iterable[FlipRate]) -> tuple[tuple[str, ...], ...]:
    from eval.scores.measure import figure

    head = (name, "verdicts", "flipped", "silent in one")
    return (head, *((each.name, f"{each.n:,}", figure(each.share), f"{each.silent:,}") for each in rates))


@click.command()
@_study
@_as_json
def counterfactual(study: Path, as_json: bool) -> None:
    """Says whether the same memes get other verdicts about one group than about another.

    STUDY is a folder of `memecourt-eval ablate --swap-groups`. Gaps are paired by meme, with 95 % intervals by
    bootstrap; p is exact for labels (McNemar) and by signed ranks for scores, corrected by Holm's procedure over all.
    """
    from eval.reports.sections import Section, as_text
    from eval.runs.controls import swapped_groups
    from eval.scores.altered import group_gaps
    from eval.scores.compare import signed_interval

    base, arms = _arms(study, lambda run: run.manifest is not None and swapped_groups(run.manifest.control) is not None)
    gaps = group_gaps(base, arms)
    if as_json:
        click.echo(json.dumps([asdict(gap) for gap in gaps]))
        return
    head = ("groups", "memes", "found harmful, difference", "p", "score, difference", "p")
    rows = [
        (
            f"{gap.one} less {gap.other}",
            f"{gap.n:,}",
            signed_interval(gap.labels),
            f"{gap.p_labels:.3g}",
            signed_interval(gap.scores) if gap.scores else "",
            f"{gap.p_scores:.3g}" if gap.p_scores is not None else "",
        )
        for gap in gaps
    ]
    click.echo(as_text((), [Section("gaps", "The same memes, another group", (head, *rows))]))


def _arms(study: Path, wanted: Callable[[Results], bool]) -> tuple[Results, list[Results]]:
    """Returns the reference of a study and the wanted arms. Raises BadRequest if either is missing."""
    from court.errors import BadRequest
    from eval.reports.gather import runs_below
    from eval.runs.results import read_results
    from eval.studies.arms import FULL_ARM

    runs = [read_results(root) for root in runs_below(study)]
    base = next((run for run in runs if run.name == FULL_ARM), None)
    arms = [run for run in runs if wanted(run)]
    if base is None or not arms:
        raise BadRequest(
            f"{study} lacks the arm {FULL_ARM}, or has no arm for this. `memecourt-eval ablate --help` tells how arms "
            "are named.",
            reason="ARMS_MISSING",
        )
    return base, arms
