"""``memecourt docket``: the log that all records are in, its signatures and proofs."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from court.errors import CourtError
from retrieval.library.postgres.address import Address
from serving.access.private_files import hand_on
from serving.cli.common import (
    FOLDER,
    MOST_WHO,
    MOST_WHY,
    NEW_FILE,
    PATH,
    awaited,
    docket_in,
    docket_option,
    library_option,
    printable,
    require_text,
    run,
    settings_of,
    tell,
    trial_argument,
    whole_id,
    with_options,
)
from serving.cli.hashes import hashes
from serving.cli.rotation import rotate_key
from serving.cli.sample import audit, commit, sample
from serving.docket.audit.verify import Report
from serving.docket.backup import back_up
from serving.docket.backup import restore as bring_back
from serving.docket.log.anchors import read_anchor, read_keys
from serving.docket.retention import WHO, RetentionPass, erase_expired, find_expired, retention_periods
from serving.docket.review.corrections import name_of
from serving.docket.store.bodies import document_owner
from serving.docket.store.log_append import make_key, read_key
from serving.settings import Settings
from serving.version import SOFTWARE

EXIT_CLEAN = 0
EXIT_VIOLATED = 1
EXIT_UNCHECKED = 2

_MOST_LISTED = 20
_PROGRESS_EVERY = 100_000
_LONGEST_ID = 10_000
"""Characters in the id of a precedent or a document, which their owners choose: addresses among them."""


_erasure = with_options(
    click.option(
        "--who",
        required=True,
        callback=require_text(MOST_WHO),
        help="Person who erases it; stays in the log permanently.",
    ),
    click.option(
        "--why",
        required=True,
        callback=require_text(MOST_WHY),
        help="Reason; stays in the log permanently, so name no person.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
)


@click.group()
def docket() -> None:
    """Proves and checks what the docket holds, hands single trials over, and erases them.

    The docket is one log of everything that happened, signed as it grows. See docs/docket.md.
    """


docket.add_command(commit)
docket.add_command(sample)
docket.add_command(audit)
docket.add_command(hashes)


@docket.command()
@click.option(
    "--key",
    "keys",
    type=NEW_FILE,
    required=True,
    help=(
        "Public key of the docket, as `memecourt docket key` printed it, from a place apart from the docket. "
        "One key per line."
    ),
)
@click.option(
    "--anchor",
    "anchors",
    type=NEW_FILE,
    multiple=True,
    help="Checkpoints stored elsewhere: those that the server pushed, or receipts and bundles as JSON. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@docket_option
@click.pass_context
def verify(
    context: click.Context, keys: Path, anchors: tuple[Path, ...], as_json: bool, docket: Path | Address | None
) -> None:
    """Checks the whole docket: recomputes every entry, signature, listing and picture.

    Exit status: 0 clean, 1 violated, 2 it could not be checked.

    Without --anchor, nobody can detect a tail that was cut off together with its checkpoints, nor a docket that was
    rewritten with its own key. With it, both are detected as far as its newest checkpoint reaches; later entries are
    the unanchored tail.
    """

    async def audit() -> Report:
        # Keys and anchors first: what can't be read there is said before a long check begins.
        verifiers = read_keys(keys)
        anchored = [read_anchor(path) for path in anchors]
        async with docket_in(settings_of(docket=docket)) as store:
            return await store.auditor.audit(verifiers, anchored, progress=_progress)

    try:
        report = run(audit())
    except (CourtError, click.ClickException) as error:
        click.echo(f"not checked: {error.message}", err=True)
        # Not 1, which says that something is wrong with the docket: a script must not raise that alarm for a missing
        # key.
        context.exit(EXIT_UNCHECKED)
    click.echo(json.dumps(_as_json(report), indent=2) if as_json else "\n".join(_report_lines(report, bool(anchors))))
    context.exit(EXIT_VIOLATED if report.violated else EXIT_UNCHECKED if report.unchecked else EXIT_CLEAN)


@docket.command()
@trial_argument
@click.option("--out", "-o", type=NEW_FILE, help="File to write. [default: ID.bundle.json]")
@click.option("--with-access", is_flag=True, help="Include who viewed the picture, not only how often.")
@click.option(
    "--anchor",
    "anchors",
    type=NEW_FILE,
    multiple=True,
    help="Checkpoints that the recipient has; the bundle then proves that the log extends them. Repeatable.",
)
@docket_option
@awaited
async def bundle(
    trial_id: str, out: Path | None, with_access: bool, anchors: tuple[Path, ...], docket: Path | Address | None
) -> None:
    """Writes one trial with its proofs to a file, for a third party.

    The recipient checks it with `python -m memecourt.verify FILE --key KEY`, without the docket and without trusting
    this court. It holds everything said in the trial and the texts of quoted precedents, and no picture.
    """
    known = [read_anchor(path) for path in anchors]
    async with docket_in(settings_of(docket=docket)) as store:
        trial_id = await whole_id(store, trial_id)
        text = await store.auditor.bundle(trial_id, with_access=with_access, anchors=known)
    path = out or Path(f"{trial_id}.bundle.json")
    try:
        path.write_text(text, encoding="utf-8")
        # What this process writes is private to its user; a bundle is made to be handed over.
        hand_on(path)
    except OSError as error:
        raise click.ClickException(f"{path} can't be written: {error.strerror}.") from None
    tell(f"Written to {path}.")


@docket.command()
@docket_option
@awaited
async def checkpoint(docket: Path | Address | None) -> None:
    """Prints the newest signed checkpoint. Stored elsewhere (`>> FILE`), it is an anchor."""
    async with docket_in(settings_of(docket=docket)) as store:
        click.echo(await store.log.checkpoint(), nl=False)


@docket.command()
@click.option(
    "--new",
    type=NEW_FILE,
    metavar="FILE",
    help="Make a private key for a docket that does not exist yet, and print its public key.",
)
@click.option("--all", "every", is_flag=True, help="Also print the earlier keys, oldest first, as a file for --key.")
@docket_option
@awaited
async def key(new: Path | None, every: bool, docket: Path | Address | None) -> None:
    """Prints the public key of the docket. Store it elsewhere: everything is verified against it."""
    if new:
        click.echo(_new_key(new))
        return
    async with docket_in(settings_of(docket=docket)) as store:
        for each in await store.log_keys.keys() if every else [await store.log.vkey()]:
            click.echo(str(each))


docket.add_command(rotate_key)


def _new_key(path: Path) -> str:
    # A docket whose key is lost can't sign anything any more.
    if path.exists():
        raise click.UsageError(f"There is a file at {printable(str(path))} already; a key is never written over.")
    make_key(path)
    return str(read_key(path).verifier)


@docket.command()
@trial_argument
@_erasure
@docket_option
@library_option
def erase(
    trial_id: str, who: str, why: str, yes: bool, docket: Path | Address | None, library: Path | Address | None
) -> None:
    """Erases a trial: its content, its picture, and the precedent that a correction of it became.

    This can't be undone. The log still shows that there was a trial, when, and who erased it; everything that remains
    still verifies. Copies handed out, exports and backups are not reached.
    """

    async def whole() -> str:
        async with docket_in(settings_of(docket=docket)) as store:
            return await whole_id(store, trial_id)

    # Before the question, which names the trial that is meant.
    trial_id = run(whole())
    _confirm(f"trial {printable(trial_id)}", yes=yes)

    async def work() -> None:
        # The precedent's name follows from the trial's id, so it is found also where the record is erased already.
        name = name_of(trial_id)
        async with docket_in(settings_of(docket=docket)) as store:
            # The library last: where that fails, the same command does the rest.
            erased = await store.eraser.erase(trial_id, who=who, why=why, at=datetime.now(UTC), precedents=(name,))
        removed = await _out_of_library(library, name, who, why)
        click.echo(f"{len(erased.numbers)} entries of trial {printable(trial_id)} are erased.")
        if removed:
            click.echo("The precedent that its overruling became is out of the library.")

    run(work())


def _confirm(thing: str, *, yes: bool) -> None:
    if not yes:
        click.confirm(f"Erase {thing} for ever?", abort=True)


@docket.command()
@click.option("--dry-run", is_flag=True, help="Erase nothing; print the number of trials by namespace.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@docket_option
@library_option
def expire(dry_run: bool, yes: bool, docket: Path | Address | None, library: Path | Address | None) -> None:
    """Erases trials past their retention period, as the server does every hour.

    The periods are `retention_days` and that of a table `[namespaces.NAME]`. Each trial is erased as by `memecourt
    docket erase`.
    """
    settings = settings_of(docket=docket, library=library)
    # A mistyped setting must not look like a docket in which nothing has expired.
    if not any((settings.retention_days, *(each.retention_days for each in settings.namespaces.values()))):
        raise click.UsageError("No period is set: give retention_days in the file of settings, or for a namespace.")
    # Looked for once more when it is erased: what expires while the question stands goes as well.
    if dry_run or not yes:
        found = run(_found(settings))
        for namespace, count in sorted(found.items()):
            click.echo(f"{count:>9,}  {printable(namespace) or '(no namespace)'}")
        if dry_run or not found:
            tell("Nothing was erased." if found else "No trial is older than it may be.")
            return
        _confirm(f"these {sum(found.values()):,} trials", yes=False)
    done = run(_expired(settings))
    click.echo(f"{sum(done.erased.values()):,} trials are erased.")
    if done.overdue:
        raise click.ClickException(f"{done.overdue:,} trials could not be erased; the log above says why. Try again.")


async def _found(settings: Settings) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    now = datetime.now(UTC)
    async with docket_in(settings) as store:
        for period in retention_periods(settings):
            async for lines in find_expired(store.index, period, now):
                found.update(line.namespace for line in lines)
    return found


async def _expired(settings: Settings) -> RetentionPass:
    from serving.wiring import forget_in_library

    async def forget(name: str) -> bool:
        # An overruled verdict may have become a precedent, which holds the text and the picture as well (PR-1).
        return await forget_in_library(settings, name, who=WHO, why="The trial was erased.")

    async with docket_in(settings) as store:
        return await erase_expired(
            store,
            retention_periods(settings),
            now=datetime.now(UTC),
            forget=forget,
            finding_days=settings.findings.days,
        )


@docket.command("erase-precedent")
@click.argument("precedent_id", metavar="ID", callback=require_text(_LONGEST_ID))
@_erasure
@docket_option
@library_option
def erase_precedent(
    precedent_id: str, who: str, why: str, yes: bool, docket: Path | Address | None, library: Path | Address | None
) -> None:
    """Erases a precedent: its text in all trials that quote it, and the meme in the library.

    This can't be undone. The trials remain and mark the quotations as erased.
    """
    _confirm(f"the precedent {printable(precedent_id)}", yes=yes)
    texts = run(_erased_texts(docket, precedent_id, who, why))
    removed = run(_out_of_library(library, precedent_id, who, why))
    click.echo(f"{texts} texts of the precedent {printable(precedent_id)} are erased.")
    click.echo("It is out of the library." if removed else "The library has nothing of it.")


@docket.command("erase-document")
@click.argument("document_id", metavar="ID", callback=require_text(_LONGEST_ID))
@_erasure
@docket_option
def erase_document(document_id: str, who: str, why: str, docket: Path | Address | None, *, yes: bool) -> None:
    """Erases a document that an expert witness read: its text, and its quotations in all records.

    This can't be undone. The trials remain and mark the quotations as erased. A model's own reply about the document is
    erased only with its trial.
    """
    _confirm(f"the document {printable(document_id)}", yes=yes)
    # Documents are quoted as precedents are, under names of their own.
    texts = run(_erased_texts(docket, document_owner(document_id), who, why))
    click.echo(f"{texts} texts of the document {printable(document_id)} are erased.")


async def _erased_texts(docket: Path | Address | None, owner: str, who: str, why: str) -> int:
    """Erases what records quote of a precedent or a document; returns the number of texts."""
    async with docket_in(settings_of(docket=docket)) as store:
        return len((await store.eraser.erase_precedent(owner, who=who, why=why, at=datetime.now(UTC))).numbers)


@docket.command()
@click.argument("folder", type=PATH)
@docket_option
@awaited
async def backup(folder: Path, docket: Path | Address | None) -> None:
    """Backs the docket up into a new FOLDER and checks the copy.

    The copy is consistent even while a server writes. It lacks the private key: back that up elsewhere.
    """
    settings = settings_of(docket=docket)
    async with docket_in(settings) as store:
        shown = json.dumps(settings.model_dump(mode="json"), indent=2) + "\n"
        made = await back_up(store, settings.docket_place, folder, settings=shown, software=SOFTWARE, tell=tell)
    click.echo(f"{folder}: {made.entries:,} entries, {made.trials:,} trials, {made.pictures:,} pictures; clean")


@docket.command()
@click.argument("folder", type=FOLDER)
@docket_option
@awaited
async def restore(folder: Path, docket: Path | Address | None) -> None:
    """Restores the backup in FOLDER to the docket that --docket or the settings name, and checks it.

    Existing data is never overwritten.
    """
    settings = settings_of(docket=docket)
    address = settings.docket_place
    found = await bring_back(folder, address, settings.pictures_place, tell=tell)
    click.echo(f"{address}: {found.entries:,} entries, {found.trials:,} trials, {found.pictures:,} pictures; clean")
    key = settings.docket_key_place or Path(str(address)).with_suffix(".key")
    if not key.exists():
        tell(f"Its private key is not at {key}: put it back before anything is judged with this docket.")


async def _out_of_library(library: Path | Address | None, precedent_id: str, who: str, why: str) -> bool:
    from serving.wiring import forget_in_library

    return await forget_in_library(settings_of(library=library), precedent_id, who=who, why=why)


def _progress(entries: int) -> None:
    if entries % _PROGRESS_EVERY == 0:
        tell(f"{entries:,} entries checked …")


def _report_lines(report: Report, with_anchor: bool) -> list[str]:
    """The report for people to read."""

    def line(name: str, text: str) -> str:
        return f"{name:<13}{text}"

    lines = [
        line("entries", f"{report.size:,}"),
        line("root", base64.b64encode(report.root).decode()),
        line("checkpoints", f"{report.checkpoints:,}"),
        line("trials", f"{report.trials:,}"),
        line("pictures", f"{report.pictures:,}"),
        line("erased", f"{report.erased:,} entries"),
    ]
    if with_anchor:
        lines.append(line("anchored", f"{report.anchored:,} entries (checkpoints kept outside: {report.anchors:,})"))
    tail = f"{report.tail:,} entries: nothing but the docket's own key vouches for them"
    lines.append(line("unanchored", tail if report.tail else "none"))
    total = sum(report.counts.values())
    if total:
        lines += ["", *(f"{finding.fault:<20} {printable(finding.text)}" for finding in report.findings[:_MOST_LISTED])]
        if total > _MOST_LISTED:
            lines.append(f"and {total - _MOST_LISTED:,} more")
    lines += ["", *(f"not checked: {text}" for text in report.unchecked)] if report.unchecked else []
    outcome = f"violated: {total:,} faults" if total else "could not be checked" if report.unchecked else "clean"
    return [*lines, "", outcome]


def _as_json(report: Report) -> dict[str, object]:
    return {
        "outcome": "violated" if report.violated else "unchecked" if report.unchecked else "clean",
        "entries": report.size,
        "root": base64.b64encode(report.root).decode(),
        "checkpoints": report.checkpoints,
        "trials": report.trials,
        "pictures": report.pictures,
        "bodies": report.bodies,
        "erased": report.erased,
        "anchors": report.anchors,
        "anchored": report.anchored,
        "unanchored": report.tail,
        "faults": {str(fault): count for fault, count in sorted(report.counts.items())},
        "findings": [
            {"fault": str(finding.fault), "text": finding.text, "entry": finding.entry} for finding in report.findings
        ],
        "unchecked": report.unchecked,
    }
