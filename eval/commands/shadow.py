"""``memecourt-eval shadow``: what a candidate said of live content, beside what the court said.

The candidate's trial refers to the court's (``of_trial``): it is a trial in a docket of its own, or a retrial. Gold
labels come from people who reviewed the court's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import click

from court.digests import digest
from court.display import word
from court.record import TrialRecord, TrialState
from court.verdict import Label
from eval.commands.options import Shown, command_line, shows_sections
from eval.datasets.items import JudgedMeme, Protocol
from eval.reports.sections import Section
from eval.runs.results import RunFolder, RunManifest
from eval.session.directory import circumstances
from eval.solvers.trial import prediction_of
from retrieval.library.postgres.address import Address
from serving.cli.common import NEW_FOLDER, changed_place, docket_in, docket_option, printable, run, settings_of
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
@click.option(
    "--out",
    type=NEW_FOLDER,
    help="Write reviewed trials as two runs, OUT/court and OUT/shadow, for `memecourt-eval compare`.",
)
@docket_option
@shows_sections(page=False)
def shadow(
    shadow_docket: Path | Address,
    since: datetime | None,
    namespace: str | None,
    out: Path | None,
    docket: Path | Address | None,
) -> Shown:
    """Compares a candidate's verdicts in the docket SHADOW with the court's on the same memes.

    SHADOW may be the court's own docket, to compare memes that `memecourt rejudge` judged again.
    """
    pairs = run(_pairs(shadow_docket, docket, TrialFilter(opened_from=utc(since), namespace=namespace)))
    cells = Counter((_label_of(court), _label_of(candidate)) for court, candidate in pairs)
    different = [pair for pair in pairs if _label_of(pair[0]) != _label_of(pair[1])]
    reviewed = [pair for pair in pairs if _gold(pair[0]) is not None]
    end = []
    if out is not None:
        if not reviewed:
            raise click.ClickException("No trial of these was reviewed: there is nothing to compare with.")
        court, candidate = (_write_run(out / name, reviewed, side) for side, name in enumerate(("court", "shadow")))
        end = [f"memecourt-eval compare {court} {candidate}"]
    same = f"{1 - len(different) / len(pairs):.3f}" if pairs else "–"
    figures = {
        "pairs": len(pairs),
        "reviewed": len(reviewed),
        "labels": [[*labels, count] for labels, count in sorted(cells.items())],
        "different": [[*(one.trial_id for one in pair), *map(_label_of, pair)] for pair in different],
    }
    return Shown(
        title="Shadow",
        lead=[f"memes {len(pairs):,}, of which reviewed {len(reviewed):,}; same outcome {same}"],
        sections=list(_sections(cells, different)),
        figures=figures,
        end=end,
    )


def _sections(cells: Counter[tuple[str, str]], different: Sequence[Pair]) -> Iterator[Section]:
    if cells:
        counts = [(word(first), word(second), f"{count:,}") for (first, second), count in sorted(cells.items())]
        yield Section("labels", "Labels", (("court", "shadow", "memes"), *counts))
    if different:
        rows = [
            (
                printable(court.trial_id),
                *(word(_label_of(one)) for one in (court, candidate)),
                word(_gold(court) or "–"),
            )
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
    review = record.review
    return None if review is None or review.label is Label.UNDECIDED else review.label


def _write_run(root: Path, pairs: Sequence[Pair], side: int) -> Path:
    """Writes one side of pairs with a reviewer's label as a finished run that can be compared."""
    memes = [_meme(court, number) for number, (court, _) in enumerate(pairs, 1)]
    records, folder = [pair[side] for pair in pairs], RunFolder(root)
    folder.write_memes(memes)
    folder.write_predictions([prediction_of(meme, each) for meme, each in zip(memes, records, strict=True)])
    folder.write_manifest(_manifest(root.name, records))
    return root


def _meme(court: TrialRecord, number: int) -> JudgedMeme:
    gold, text = _gold(court), court.text
    return JudgedMeme(
        id=court.trial_id,
        split="reviewed",
        line=number,
        text=text.text if text else "",
        harmful=gold is Label.HARMFUL,
        source_label=str(gold),
    )


def _manifest(name: str, records: Sequence[TrialRecord]) -> RunManifest:
    # Described by the last trial, as a manifest has room for one description.
    opened, cited, about = records[-1].opened, records[-1].precedents, circumstances(command_line())
    versions = opened.versions
    return RunManifest(
        **about,
        name=name,
        finished=about["created"],
        dataset="reviewed content",
        split="reviewed",
        # In place of a data set's files: the ids identify this set of pairs.
        data={"trials": digest([record.trial_id for record in records])},
        protocols=(Protocol.PLAIN,),
        procedure=opened.procedure,
        settings=opened.settings,
        settings_digest=versions.settings,
        models=versions.models,
        prompts=versions.prompts,
        policy=opened.policy.digest,
        library=versions.library,
        library_size=cited.findings.library.size if cited else 0,
        encoder=versions.encoder,
    )
