"""``memecourt-eval shadow``: what a candidate said of live content, beside what the court said.

The candidate's trial refers to the court's (``of_trial``): it is a trial in a docket of its own, or a retrial. Gold
labels come from people who reviewed the court's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import click

from court.display import word
from court.record import TrialRecord, TrialState
from court.verdict import Label
from eval.commands.options import Shown, shows_sections
from eval.reports.sections import Section
from eval.scores.measure import mcnemar
from retrieval.library.postgres.address import Address
from serving.cli.common import changed_place, docket_in, docket_option, printable, run, settings_of
from serving.cli.exports import utc
from serving.docket.errors import TrialUnknown
from serving.docket.store.listing import TrialFilter
from serving.export.tables import Selection

Pair = tuple["TrialRecord", "TrialRecord"]
"""Trial of the court, and that of the candidate on the same meme."""
_SHOWN = 20  # pairs of different labels that are listed; --json lists all


@click.command()
@click.argument("shadow_docket", metavar="SHADOW", callback=changed_place)
@click.option("--since", type=click.DateTime(), help="Only trials of the candidate at this time or later (UTC).")
@click.option("--namespace", help="Only trials of this namespace.")
@docket_option
@shows_sections(page=False)
def shadow(
    shadow_docket: Path | Address, since: datetime | None, namespace: str | None, docket: Path | Address | None
) -> Shown:
    """Compares a candidate's verdicts in the docket SHADOW with the court's on the same memes.

    Where people reviewed the court's trial, it says which of the two is right more often, and whether by more than
    chance. SHADOW may be the court's own docket, to compare memes that `memecourt rejudge` judged again.
    """
    pairs = run(_pairs(shadow_docket, docket, TrialFilter(opened_from=utc(since), namespace=namespace)))
    cells = Counter((_label_of(court), _label_of(candidate)) for court, candidate in pairs)
    different = [pair for pair in pairs if _label_of(pair[0]) != _label_of(pair[1])]
    golds = [(gold, *map(_label_of, pair)) for pair in pairs if (gold := _gold(pair[0])) is not None]
    # A trial without a label is wrong, as everywhere.
    right = Counter((court == gold, candidate == gold) for gold, court, candidate in golds)
    single = right[True, False], right[False, True]
    p = mcnemar(*single)
    same = f"{1 - len(different) / len(pairs):.3f}" if pairs else "–"
    figures = {
        "pairs": len(pairs),
        "reviewed": len(golds),
        "only_court_right": single[0],
        "only_shadow_right": single[1],
        "both_right": right[True, True],
        "mcnemar_p": p,
        "labels": [[*labels, count] for labels, count in sorted(cells.items())],
        "different": [[*(one.trial_id for one in pair), *map(_label_of, pair)] for pair in different],
    }
    return Shown(
        title="Shadow",
        lead=[
            f"memes {len(pairs):,}, of which reviewed {len(golds):,}; same outcome {same}",
            f"Right by the people who reviewed: court {right[True, True] + single[0]:,}, {single[0]:,} of them alone; "
            f"shadow {right[True, True] + single[1]:,}, {single[1]:,} of them alone; exact McNemar p = {p:.3g}.",
        ],
        sections=list(_sections(cells, different)),
        figures=figures,
    )


def _sections(cells: Counter[tuple[str, str]], different: Sequence[Pair]) -> Iterator[Section]:
    if cells:
        counts = [(word(first), word(second), f"{count:,}") for (first, second), count in sorted(cells.items())]
        yield Section("labels", "Labels", (("court", "shadow", "memes"), *counts))
    if different:
        rows = [
            (printable(court.trial_id), word(_label_of(court)), word(_label_of(candidate)), word(_gold(court) or "–"))
            for court, candidate in different[:_SHOWN]
        ]
        more = len(different) - _SHOWN
        notes = (f"and {more:,} more; --json lists all",) if more > 0 else ()
        head = ("trial", "court", "shadow", "person")
        yield Section("different", "Different labels", (head, *rows), notes, words=True)


async def _pairs(second: Path | Address, first: Path | Address | None, which: TrialFilter) -> list[Pair]:
    """Pairs whose trials have both ended and are not erased, in the order of the candidate's."""
    settings = settings_of(docket=first)
    found = []
    async with docket_in(settings) as court, docket_in(settings.model_copy(update={"docket": second})) as candidate:
        async for record in Selection(candidate.index, candidate.trials, which).records():
            if not record.opened.of_trial or record.state is TrialState.OPEN:
                continue
            try:
                earlier = await court.trials.record(record.opened.of_trial)
            except TrialUnknown:
                # Erased, or in another docket: there is nothing to compare the candidate's trial with.
                continue
            if earlier.state is TrialState.DECIDED:
                found.append((earlier, record))
    return found


def _label_of(record: TrialRecord) -> str:
    return str(record.verdict.label) if record.verdict else "FAILED"


def _gold(record: TrialRecord) -> Label | None:
    """Label that a reviewer found; None if nobody reviewed the trial, or the reviewer found no label."""
    return None if (review := record.review) is None or review.label is Label.UNDECIDED else review.label
