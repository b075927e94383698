"""A verdict in the terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memecourt.v1 import court_pb2 as wire
from serving.cli.common import excerpt, paragraph

if TYPE_CHECKING:
    from retrieval.postgres.address import Address

_COLOURS = {wire.LABEL_HARMFUL: "red", wire.LABEL_NOT_HARMFUL: "green"}
_MEANINGS = {
    wire.SCORE_MEANING_PRECEDENT_VOTE: "the precedents' calibrated vote",
    wire.SCORE_MEANING_LABEL_PROBABILITY: "the Judge's probability",
}


def show_verdict(
    name: str, response: wire.JudgeResponse, *, where: str = "", docket: Path | Address | None = None
) -> None:
    """Prints a verdict for a person to read.

    Args:
        name: Of the meme.
        response: The verdict.
        where: On which machine its record is, if not on this one.
        docket: What to name to open the record, if it is not where it is looked for anyway.
    """
    label = label_name(response.label)
    head = click.style(f" {label} ", bold=True, reverse=True, fg=_COLOURS.get(response.label, "yellow"))
    click.echo(f"{head}  {excerpt(name, 80)}")
    if response.HasField("harm_score"):
        meaning = _MEANINGS.get(response.harm_score_meaning, "a score that this client does not know")
        click.echo(f"  harm score  {response.harm_score:.2f} ({meaning})")
    if response.HasField("strengths"):
        harmful, benign = (
            wire.Strength.Name(s).removeprefix("STRENGTH_").lower()
            for s in (response.strengths.harmful, response.strengths.benign)
        )
        click.echo(f"  evidence    of harm {harmful}, benign {benign}")
    if response.text.source != wire.TEXT_SOURCE_NONE:
        origin = "read off the picture" if response.text.source == wire.TEXT_SOURCE_OCR else "given"
        click.echo(f"  text        “{excerpt(response.text.text, 70)}” ({origin})")
    else:
        click.echo("  text        none")
    click.echo()
    click.echo(paragraph(response.rationale))
    click.echo()
    if response.precedents:
        click.echo("  precedents")
        for place, precedent in enumerate(response.precedents, 1):
            click.echo(f"  {place:>2}  {_precedent(precedent)}")
            click.echo(f"      “{excerpt(precedent.text, 80)}”")
        click.echo()
    for review in response.review_reasons:
        click.echo(click.style("  a person should look", bold=True))
        click.echo(paragraph(review.detail, "    "))
    kept = f" --docket {docket}" if docket else ""
    click.echo(f"  record      {_this_command()} records show {response.verdict_id}{kept}{where}")
    click.echo()


def label_name(label: wire.Label.ValueType) -> str:
    """HARMFUL, NOT HARMFUL or UNDECIDED; a label that this client does not know is the last."""
    names = {wire.LABEL_HARMFUL: "HARMFUL", wire.LABEL_NOT_HARMFUL: "NOT HARMFUL"}
    return names.get(label, "UNDECIDED")


def _this_command() -> str:
    """This command as it can be typed here: its path where it is not on the PATH."""
    if shutil.which("memecourt"):
        return "memecourt"
    called = Path(sys.argv[0])
    if called.name != "memecourt":
        return f"{Path(sys.executable).name} -m serving.cli"
    return str(called.relative_to(Path.cwd())) if called.is_relative_to(Path.cwd()) else str(called)


def _precedent(precedent: wire.Precedent) -> str:
    def similarity(name: str) -> str:
        return f"{getattr(precedent, name):5.2f}" if precedent.HasField(name) else "    –"  # type: ignore[arg-type]

    text, picture = similarity("text_similarity"), similarity("picture_similarity")
    categories = f"  {', '.join(map(excerpt, precedent.categories))}" if precedent.categories else ""
    same = {
        wire.RELATION_SAME_MEME: "  the same meme",
        wire.RELATION_SAME_PICTURE: "  the same picture",
        wire.RELATION_SAME_TEXT: "  the same text",
    }.get(precedent.relation, "")
    label = label_name(precedent.label).lower()
    return f"{excerpt(precedent.id, 40):<14} {label:<12} text {text}  picture {picture}{same}{categories}"
