"""``memecourt facts``: corpora of documents by which the expert checks claims of fact."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import click

from court.errors import BadRequest
from retrieval.facts.corpus import CorpusManifest, FactCorpus, open_corpus
from retrieval.facts.documents import is_date
from retrieval.facts.extraction import TextExtractor
from retrieval.facts.reading import Origin, read_documents, read_trust
from retrieval.facts.starter import STARTER_FACTS
from retrieval.facts.writer import refuse_corpus_place, write_corpus
from retrieval.library.sources import Problem
from retrieval.open import BUILTIN, load_text_encoder, open_facts
from serving.cli.common import NEW_FILE, NEW_FOLDER, PATH, awaited, excerpt, printable, tell

_SHOWN = 10  # problems that are listed one by one; --json lists all
_encoder = click.option(
    "--encoder", metavar="NAME", help="Encoder of passages: builtin, onnx:FOLDER, or none to search by words only."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")


@click.group()
def facts() -> None:
    """Makes, shows and searches corpora of documents, by which claims of fact are checked."""


@facts.command()
@click.argument("folder", type=NEW_FOLDER, metavar="DIR")
@click.argument("files", nargs=-1, type=PATH, metavar="[FILE…]")
@click.option("--starter", is_flag=True, help="Use the demonstration corpus of MemeCourt instead of FILEs.")
@_encoder
@click.option(
    "--trust",
    type=NEW_FILE,
    help='TOML file with a table [trust], such as "who.int" = 3. More trusted hits of a search come first.',
)
@click.option("--source", default="", help="Source of documents that do not name one. [default: the site or the file]")
@click.option("--date", default="", metavar="YYYY-MM-DD", help="Date of documents that do not state one.")
@click.option("--name", help="Name of the corpus. [default: its folder's name]")
@click.option("--replace", is_flag=True, help="Replace an existing corpus, atomically.")
@click.option("--skip-bad", is_flag=True, help="Skip and list unreadable documents instead of stopping.")
@_json
@awaited
async def build(
    folder: Path,
    files: tuple[Path, ...],
    starter: bool,
    encoder: str | None,
    trust: Path | None,
    source: str,
    date: str,
    name: str | None,
    replace: bool,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Makes a corpus in DIR of documents in FILEs.

    \b
    .txt .md      one document, UTF-8
    .html .pdf    one document; title and date as the file has them
    .jsonl        a document a line: id, text; title, url, date, source as far as they are known

    A document that can't be read ends it, and nothing is written, unless --skip-bad is given. PDF and HTML are read in
    a process with limits of memory and time. Where the encoder is not set up, --encoder none searches by words alone.
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if bool(files) is starter:
        raise click.UsageError("Name FILEs, or give --starter; not both.")
    if starter and (source or date):
        raise click.UsageError("The starter corpus names its sources and dates: leave --source and --date out.")

    trusted = read_trust(trust) if trust else {}
    origin = Origin(source, _checked_date(date))
    refuse_corpus_place(folder, replace)  # before anything is read or loaded
    extractor = TextExtractor()
    try:
        read = await read_documents([STARTER_FACTS] if starter else files, extractor, origin=origin)
    finally:
        await extractor.aclose()
    if read.problems and not skip_bad:
        _print_problems(read.problems)
        raise BadRequest(
            f"{len(read.problems):,} of {len(read.problems) + len(read.good):,} documents can't be read. Nothing "
            "was written. Mend them, or leave them out with --skip-bad.",
            reason="DOCUMENTS_UNREADABLE",
        )
    # After the documents are read: a file that can't be is found before seconds are spent on weights.
    loaded = await asyncio.to_thread(load_text_encoder, encoder or BUILTIN)
    manifest = await asyncio.to_thread(
        lambda: write_corpus(
            folder,
            read.good,
            name=name or ("starter" if starter else folder.resolve().name),
            encoder=loaded,
            trust=trusted,
            demonstration=starter,
            replace=replace,
        )
    )
    if as_json:
        left_out = [{"file": one.source, "line": one.line, "id": one.id, "reason": one.reason} for one in read.problems]
        click.echo(json.dumps({**_figures(manifest), "left_out": left_out}))
        return
    _print_problems(read.problems)
    click.echo(_summary(manifest))


@facts.command()
@click.argument("folder", type=NEW_FOLDER, metavar="DIR")
@_json
@awaited
async def show(folder: Path, as_json: bool) -> None:
    """Describes the corpus in DIR after checking every byte."""
    corpus = await _open(folder, None, search=False)
    manifest = corpus.manifest
    if as_json:
        click.echo(json.dumps({"digest": f"sha256:{corpus.digest}", **_figures(manifest)}))
        return
    click.echo(_summary(manifest))
    click.echo(f"digest   sha256:{corpus.digest}")
    for source, count in Counter(one.source for one in corpus.documents).most_common(20):
        click.echo(f"{count:>6,}  {excerpt(source, 90)}")


@facts.command()
@click.argument("folder", type=NEW_FOLDER, metavar="DIR")
@click.argument("query")
@click.option(
    "-k", "most", default=5, show_default=True, type=click.IntRange(1, 100), help="Number of passages to show."
)
@_encoder
@_json
@awaited
async def search(folder: Path, query: str, most: int, encoder: str | None, as_json: bool) -> None:
    """Finds the passages of the corpus in DIR that match QUERY, as the expert witness does."""
    corpus = await _open(folder, encoder, search=True)
    found = corpus.search(query, most)
    if as_json:
        hits = [
            {**hit.document.model_dump(exclude={"text", "id"}), "id": hit.id, "text": hit.text, "trust": hit.trust}
            for hit in found
        ]
        click.echo(json.dumps({"hits": hits}))
        return
    if not found:
        click.echo("Nothing in the corpus speaks about it.")
    for number, hit in enumerate(found, 1):
        about = "  ".join(filter(None, (hit.document.source, hit.document.date, f"trust {hit.trust}")))
        click.echo(f"{number:>3}  {excerpt(hit.id, 40)}  {excerpt(about, 100)}")
        click.echo(f"     “{excerpt(hit.text, 160)}”")


async def _open(folder: Path, encoder: str | None, *, search: bool) -> FactCorpus:
    if not search:
        # Documents can be shown where the encoder of the corpus is not installed.
        return await asyncio.to_thread(lambda: open_corpus(folder, search=False))
    return await asyncio.to_thread(open_facts, folder, encoder)


def _checked_date(date: str) -> str:
    if not is_date(date):
        raise BadRequest("--date is no YYYY-MM-DD, YYYY-MM or YYYY of the calendar.", reason="BAD_DATE")
    return date


def _figures(manifest: CorpusManifest) -> dict[str, object]:
    return manifest.model_dump(mode="json", exclude={"files"})


def _summary(manifest: CorpusManifest) -> str:
    by = f"words and vectors of {manifest.encoder}" if manifest.encoder else "words alone"
    mark = " It is a demonstration: no real decision may rest on it." if manifest.demonstration else ""
    return (
        f"The corpus {printable(manifest.name)}: {manifest.documents:,} documents in {manifest.passages:,} passages, "
        f"searched by {by}.{mark}"
    )


def _print_problems(problems: list[Problem]) -> None:
    for one in problems[:_SHOWN]:
        where = f"{one.source}, line {one.line:,}" if one.line else one.source
        tell(f"  {printable(where)}: {printable(one.reason)}.")
    if len(problems) > _SHOWN:
        tell(f"  … and {len(problems) - _SHOWN:,} more.")
