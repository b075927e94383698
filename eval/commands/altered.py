"""``memecourt-eval stability`` and ``counterfactual``: verdicts on altered memes, from the arms of a study."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from court.errors import BadRequest
from eval.commands.options import Shown, shows_sections
from eval.reports.sections import Section
from eval.runs.controls import swapped_groups
from eval.runs.results import Results, read_runs
from eval.scores.altered import FlipRate, group_gaps
from eval.scores.altered import stability as measured
from eval.scores.measure import SURE, figure
from eval.studies.arms import FULL_ARM, UNCHANGING
from serving.cli.common import PATH

_MOST = 20  # memes that a terminal shows
_study = click.argument("study", type=PATH, metavar="STUDY")


@click.command()
@_study
@shows_sections()
def stability(study: Path) -> Shown:
    """Says how many verdicts flip under alterations that should not change them, and on what that depends.

    STUDY is a folder of `memecourt-eval ablate` with arms such as white-space, cropped, defender-first, or with
    --with-policy; each is compared with the arm `full`. Intervals are 95 %: Wilson's, and by bootstrap over memes. The
    page and --json list every meme.
    """
    base, arms = _arms(study, lambda run: run.name in UNCHANGING or run.name.startswith("policy-"))
    found = measured(base, arms)
    flips, worst, right, always = map(figure, found.shares.values())
    lead = [
        f"{found.n:,} memes, {len(arms)} alterations. Flips of a meme, on average: {flips}.",
        f"Memes that at least one alteration flips: {worst}.",
        f"Accuracy {right}; with every alteration as well, the worst of {len(arms) + 1}: {always}.",
    ]
    parts = {"alteration": found.arms, **found.depends}
    heads = ("verdicts", "flipped", "silent in one")
    moved = [each for each in found.memes if each.share and each.share.value]
    sections = [
        *(_section(f"Flips by {name}", (name, *heads), rates) for name, rates in parts.items()),
        _section("Wrong labels", ("memes", "with a label", "wrong"), found.wrong),
        _section("Memes that flip most", ("meme", *heads, "risk"), moved[:_MOST]),
        _section("All memes", ("meme", *heads, "risk"), found.memes, detail=True),
    ]
    return Shown(title="Stability", lead=lead, sections=sections, figures=asdict(found))


def _section(title: str, head: tuple[str, ...], rates: Sequence[FlipRate], *, detail: bool = False) -> Section:
    cells = [
        (each.name, f"{each.n:,}", figure(each.share), f"{each.silent:,}", figure(each.risk, ".2f")) for each in rates
    ]
    rows = (head, *(row[: len(head)] for row in cells)) if cells else ()
    return Section(title.replace(" ", "-").lower(), title, rows, detail=detail)


@click.command()
@_study
@shows_sections()
def counterfactual(study: Path) -> Shown:
    """Says whether the same memes get other verdicts about one group than about another.

    STUDY is a folder of `memecourt-eval ablate --swap-groups`. Gaps are paired by meme, with 95 % intervals by
    bootstrap; p is exact for labels (McNemar) and by signed ranks for scores, corrected by Holm's procedure over all.
    """
    base, arms = _arms(study, lambda run: run.manifest is not None and swapped_groups(run.manifest.control) is not None)
    gaps = group_gaps(base, arms)
    head = ("groups", "memes", "found harmful, difference", "p", "score, difference", "p")
    rows = []
    for gap in gaps:
        labels = (figure(gap.labels, "+.3f"), figure(gap.p_labels, ".3g"))
        scores = (figure(gap.scores, "+.3f"), figure(gap.p_scores, ".3g"))
        rows.append((f"{gap.one} less {gap.other}", f"{gap.n:,}", *labels, *scores))
    title, tests = "The same memes, another group", [p for gap in gaps for p in (gap.p_labels, gap.p_scores)]
    beyond = sum(p is not None and p < SURE for p in tests)
    lead = [f"{beyond} of {len(tests) - tests.count(None)} differences are beyond chance (p < {SURE})."]
    sections = [Section("gaps", title, (head, *rows))]
    return Shown(title=title, lead=lead, sections=sections, figures={"gaps": [asdict(gap) for gap in gaps]})


def _arms(study: Path, wanted: Callable[[Results], bool]) -> tuple[Results, list[Results]]:
    """Returns the reference of a study and the wanted arms. Raises BadRequest if either is missing or not finished."""
    runs = read_runs([study])
    base = next((run for run in runs if run.name == FULL_ARM), None)
    arms = [run for run in runs if wanted(run)]
    if base is None or not arms:
        raise BadRequest(
            f"{study} lacks the arm {FULL_ARM}, or has no arm for this. `memecourt-eval ablate --help` tells how arms "
            "are named.",
            reason="ARMS_MISSING",
        )
    if unfinished := [run.name for run in (base, *arms) if not run.finished]:
        raise BadRequest(
            f"Not finished: {', '.join(unfinished)}. The same `memecourt-eval ablate` goes on from there.",
            reason="RUNS_DIFFER",
        )
    return base, arms
