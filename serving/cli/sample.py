"""``memecourt docket commit``, ``sample`` and ``audit``: a random sample that nobody could choose, judged blind."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import click

from court.verdict import Label
from memecourt.verify import CantCheck, Sample, Violated, verify_sample
from retrieval.library.postgres.address import Address
from serving.cli.common import (
    FILE,
    MOST_WHO,
    NEW_FILE,
    awaited,
    docket_in,
    docket_option,
    require_text,
    settings_of,
    tell,
)
from serving.cli.exports import output_file
from serving.docket.audit.sample import commit_sample, draw_sample, sign_result
from serving.docket.errors import TrialUnknown
from serving.docket.open import Docket

_MOST = 10_000


@click.command()
@click.option("--who", required=True, callback=require_text(MOST_WHO), help="Auditor; recorded.")
@click.option("--count", required=True, type=click.IntRange(1, _MOST), help="Number of trials to draw.")
@click.option("--beacon", required=True, callback=require_text(200), help="Public beacon, such as a chain of drand.")
@click.option("--round", "round_", required=True, type=click.IntRange(min=0), help="Round of the beacon.")
@click.option("--due", required=True, type=click.DateTime(), help="Time of that round (UTC), in the future.")
@docket_option
@awaited
async def commit(who: str, count: int, beacon: str, round_: int, due: datetime, docket: Path | Address | None) -> None:
    """Commits the log to a random sample of trials, and prints the commitment as JSON.

    It names the newest checkpoint, the number of trials, a beacon and a future round: whoever keeps it until then can
    verify that nobody chose the sample.
    """
    fields = {"who": who, "count": count, "beacon": beacon, "round": round_, "due": due.replace(tzinfo=UTC)}
    async with docket_in(settings_of(docket=docket)) as store:
        commitment = await commit_sample(store.transactions, store.log, fields, at=datetime.now(UTC))
    click.echo(json.dumps(commitment, indent=1))


@click.command()
@click.argument("commitment", type=FILE)
@click.option("--value", required=True, help="Value of the beacon in that round, in hex.")
@click.option("--out", "-o", type=NEW_FILE, default="sample.json", show_default=True, help="File with the proofs.")
@click.option(
    "--sheet", type=NEW_FILE, default="sheet.csv", show_default=True, help="Sheet to be judged by, without labels."
)
@docket_option
@awaited
async def sample(commitment: Path, value: str, out: Path, sheet: Path, docket: Path | Address | None) -> None:
    """Draws the sample of a COMMITMENT by the beacon's value: proofs for the auditor, and a sheet to judge blind.

    `python -m memecourt.verify SAMPLE --key KEY --commitment COMMITMENT --value VALUE` checks it without the docket.
    """
    expected, rows = _read(commitment), StringIO()
    table = csv.DictWriter(rows, ["trial_id", "content_id", "text", "label"], lineterminator="\n")
    table.writeheader()
    async with docket_in(settings_of(docket=docket)) as store:
        text = await draw_sample(store.transactions, store.log, int(expected.get("entry", -1)), value)
        # Checked as the auditor will, so that a sheet is never of a sample that does not verify.
        drawn = await _verified(store, text, expected, value)
        for trial_id in drawn.trials:
            try:
                record = await store.trials.record(trial_id)
                # Nothing of the court's or of anybody's finding.
                text_judged = record.text.text if record.text else ""
                table.writerow({"trial_id": trial_id, "content_id": record.opened.meme.content_id, "text": text_judged})
            # An erased trial stays in the sample: else erasing would be a way to choose it.
            except TrialUnknown:
                tell(f"{trial_id} is erased; it counts as not judged.")
    for path, content in ((out, text), (sheet, rows.getvalue())):
        with output_file(path) as file:
            file.write(content.encode())
    tell(f"{len(drawn.trials)} trials drawn: {out}, {sheet}")


@click.command()
@click.argument("sample_file", metavar="SAMPLE", type=FILE)
@click.argument("sheet", type=FILE)
@click.option("--commitment", type=FILE, required=True, help="Commitment as it was kept.")
@click.option("--value", required=True, help="Value of the beacon in that round, in hex.")
@docket_option
@awaited
async def audit(sample_file: Path, sheet: Path, commitment: Path, value: str, docket: Path | Address | None) -> None:
    """Compares the labels of a filled SHEET with the court's, and prints the error with its interval, signed.

    A label is harmful or not_harmful; rows without one count as not judged.
    """
    expected, pairs = _read(commitment), dict[str, tuple[Label, Label]]()
    async with docket_in(settings_of(docket=docket)) as store:
        drawn = await _verified(store, _text(sample_file), expected, value)
        for row in csv.DictReader(_text(sheet).splitlines(keepends=True)):
            trial_id, label = row.get("trial_id") or "", (row.get("label") or "").strip().upper().replace(" ", "_")
            if label not in ("", Label.HARMFUL, Label.NOT_HARMFUL):
                raise click.ClickException(f"{sheet}: a label is harmful or not_harmful.")
            # A label for another trial would move the error towards what somebody wished for.
            if trial_id not in drawn.trials:
                raise click.ClickException(f"{sheet}: a row is of a trial that was not drawn.")
            if label:
                verdict = (await store.trials.record(trial_id)).verdict
                assert verdict is not None, "verdicts are drawn"
                pairs[trial_id] = (verdict.label, Label(label))
        key = store.signer(await store.log.vkey())
    click.echo(sign_result(expected, drawn.trials, pairs, key), nl=False)


async def _verified(store: Docket, text: str, expected: Mapping[str, Any], value: str) -> Sample:
    try:
        return verify_sample(text, [str(key) for key in await store.log_keys.keys()], expected=expected, value=value)
    except (CantCheck, Violated) as error:
        raise click.ClickException(str(error)) from None


def _read(path: Path) -> Mapping[str, Any]:
    # RecursionError: a file of brackets is not worth a traceback.
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise click.ClickException(f"{path} is no commitment (memecourt docket commit).")
    return value


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")
