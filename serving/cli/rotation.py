"""``memecourt docket rotate-key``: another key for the docket's checkpoints, in time or after a theft."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from retrieval.library.postgres.address import Address
from serving.cli.common import (
    MOST_WHO,
    MOST_WHY,
    docket_in,
    docket_option,
    printable,
    require_text,
    run,
    settings_of,
    tell,
)
from serving.docket.log.entries import KeyRotated, parse
from serving.docket.open import Docket
from serving.docket.store.log_append import KeyFile, make_key, next_key, read_key, settle_keys
from serving.settings import Settings

_AT_ONCE = 100
"""Most entries of rotations that are read from the log at a time."""
EXIT_ONLY_FINISHED = 3
"""An earlier rotation was finished, and not the one that was asked for made."""


@click.command("rotate-key")
@click.option(
    "--who", callback=require_text(MOST_WHO), help="Person who rotates the key; stays in the log permanently."
)
@click.option("--why", callback=require_text(MOST_WHY), help="Reason; stays in the log permanently, so name no person.")
@click.option("--compromised", is_flag=True, help="Record in the log that others may have the old key.")
@click.option(
    "--prepare",
    is_flag=True,
    help="Only make the new key (FILE.next beside the old one), to copy it to the docket's other machines.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@docket_option
@click.pass_context
def rotate_key(
    context: click.Context,
    who: str | None,
    why: str | None,
    compromised: bool,
    prepare: bool,
    yes: bool,
    docket: Path | Address | None,
) -> None:
    """Changes to another key by an entry of the log that both keys sign; from then on only the new one signs.

    Earlier signatures stay valid, and are checked with the old key or the new. Afterwards store the new public key
    where the old one is, and a checkpoint elsewhere. Servers on this machine change by themselves; on other machines,
    FILE.next must lie beside their key file first.

    If an earlier rotation was interrupted, the command finishes it and makes no further one. It then exits with code 3
    if that rotation had another --who, --why or --compromised.
    """
    settings = settings_of(docket=docket)
    path = settings.docket_key_place or Path(str(settings.docket_place)).with_suffix(".key")
    if prepare:
        click.echo(run(_prepared(settings, path)))
        return
    if not who or not why:
        raise click.UsageError("Say --who has the key changed, and --why.")
    if not yes:
        click.confirm("Have the docket's checkpoints signed with another key from now on?", abort=True)
    done = run(_rotated(settings, path, who=who, why=why, compromised=compromised))
    click.echo(done.public)
    if done.finished is not None:
        tell(
            f"An earlier rotation was cut off: the docket went over to this key at {done.finished.at:%Y-%m-%d %H:%M} "
            f"UTC ({printable(done.finished.who)}: {printable(done.finished.why)}), and its files have now followed. "
            "No further rotation was made; for one, give the command again."
        )
    tell("Keep this line where the old one is kept, and a checkpoint outside (`memecourt docket checkpoint`).")
    if done.retired is not None:
        where = printable(str(done.retired))
        tell(f"The retired private key is at {where}: backups of before need it. Keep it elsewhere.")
    if done.finished is not None:
        # Whoever repeats a command that was cut off has what they wanted; a script that rotates for another reason must
        # not take the old rotation for its own.
        same = (done.finished.who, done.finished.why, done.finished.compromised) == (who, why, compromised)
        context.exit(0 if same else EXIT_ONLY_FINISHED)


@dataclass(frozen=True, slots=True)
class RotatedKey:
    """Result of the command."""

    public: str
    retired: Path | None
    finished: KeyRotated | None = None


async def _prepared(settings: Settings, path: Path) -> str:
    public, is_current = await _next_key(settings, path)
    if is_current:
        raise click.ClickException(
            f"{printable(str(path))}.next holds the key that the docket has already gone over to. Finish that "
            "rotation first, by the command without --prepare, and then prepare another."
        )
    return public


async def _next_key(settings: Settings, path: Path) -> tuple[str, bool]:
    """The public key of FILE.next, which is made where there is none, and whether it is that of the docket already."""
    async with docket_in(settings) as store:
        (current, *_) = reversed(await store.log_keys.keys())
        # Makes none where one is: that of --prepare, or of a run that was cut off, is the one that counts.
        make_key(next_key(path), current.name)
    public = str(read_key(next_key(path)).verifier)
    return public, public == str(current)


async def _rotated(settings: Settings, path: Path, *, who: str, why: str, compromised: bool) -> RotatedKey:
    public, is_current = await _next_key(settings, path)
    finished = None
    async with docket_in(settings) as store:
        # The docket has gone over already, and was cut off before the files did.
        if is_current:
            finished = await _last_rotation(store)
        else:
            old, new = KeyFile(path)(await store.log.vkey()), read_key(next_key(path))
            await store.log_keys.rotate(old, new, who=who, why=why, compromised=compromised, at=datetime.now(UTC))
        retired = settle_keys(path)
    return RotatedKey(public, retired, finished)


async def _last_rotation(store: Docket) -> KeyRotated:
    last, first = None, 0
    while found := await store.log.entries(first, _AT_ONCE, {"KeyRotated"}):
        last, first = found[-1], found[-1].number + 1
    assert last is not None, "a docket goes over to another key by an entry alone"
    return KeyRotated.model_validate(parse(last.body or ""))
