"""Memes tried twice, by the court and by other means: pairs of trials, and the pairs as two runs.

The second trial refers to the first (``of_trial``): it is a shadow trial, in its own docket, or a retrial. Gold labels
come from people who reviewed the first.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from court.digests import digest
from court.record import TrialRecord, TrialState
from court.verdict import Label
from eval.datasets.items import JudgedMeme, Protocol
from eval.runs.results import RunFolder, RunManifest
from eval.solvers.trial import prediction_of
from serving.docket.errors import TrialUnknown
from serving.docket.ports import TrialReader
from serving.export.tables import Selection
from serving.version import SOFTWARE


@dataclass(frozen=True, slots=True)
class TrialPair:
    """Two trials of one meme."""

    first: TrialRecord
    second: TrialRecord

    @property
    def gold(self) -> Label | None:
        """Label that a reviewer found; None if nobody reviewed the first trial, or the reviewer found no label."""
        review = self.first.review
        return None if review is None or review.label is Label.UNDECIDED else review.label


async def read_pairs(second: Selection, first: TrialReader) -> AsyncIterator[TrialPair]:
    """Yields the pairs whose trials have both ended and are not erased, in the order of the second trials."""
    async for record in second.records():
        if not record.opened.of_trial or record.state is TrialState.OPEN:
            continue
        try:
            earlier = await first.record(record.opened.of_trial)
        except TrialUnknown:
            # Erased, or in another docket: there is nothing to compare the second trial with.
            continue
        if earlier.state is TrialState.DECIDED:
            yield TrialPair(earlier, record)


def write_runs(pairs: Sequence[TrialPair], out: Path, *, command: str, names: tuple[str, str]) -> tuple[Path, Path]:
    """Writes the pairs with a reviewer's gold label as two finished runs that can be compared."""
    memes = [_meme(pair, number) for number, pair in enumerate(pairs, 1)]
    sides: tuple[Callable[[TrialPair], TrialRecord], ...] = (lambda pair: pair.first, lambda pair: pair.second)
    folders = []
    for name, side in zip(names, sides, strict=True):
        records = [side(pair) for pair in pairs]
        folder = RunFolder(out / name)
        folder.write_memes(memes)
        folder.write_predictions([prediction_of(meme, each) for meme, each in zip(memes, records, strict=True)])
        folder.write_manifest(_manifest(name, records, command))
        folders.append(folder.root)
    return folders[0], folders[1]


def _meme(pair: TrialPair, number: int) -> JudgedMeme:
    gold, text = pair.gold, pair.first.text
    assert gold is not None, "checked by the caller"
    return JudgedMeme(
        id=pair.first.trial_id,
        split="reviewed",
        line=number,
        image="",
        text=text.text if text else "",
        harmful=gold is Label.HARMFUL,
        source_label=str(gold),
    )


def _manifest(name: str, records: Sequence[TrialRecord], command: str) -> RunManifest:
    # Described by the last trial, as a manifest has room for one description.
    opened, now = records[-1].opened, datetime.now(UTC)
    cited = records[-1].precedents
    return RunManifest(
        name=name,
        created=now,
        finished=now,
        dataset="reviewed content",
        split="reviewed",
        # In place of a data set's files: the ids identify this set of pairs.
        data={"trials": digest([record.trial_id for record in records])},
        protocols=(Protocol.PLAIN,),
        procedure=opened.procedure,
        settings=opened.settings,
        settings_digest=opened.versions.settings,
        models=opened.versions.models,
        prompts=opened.versions.prompts,
        policy=opened.policy.digest,
        library=opened.versions.library,
        library_size=cited.findings.library.size if cited else 0,
        encoder=opened.versions.encoder,
        software=SOFTWARE,
        python=sys.version.split()[0],
        machine=platform.machine(),
        command=command,
    )
