"""``memecourt docket rotate-key``: another key for the docket's checkpoints, in time or after a theft."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serving.cli.common import docket_in, docket_option, printable, run, settings_of, tell

if TYPE_CHECKING:
    from retrieval.library.postgres.address import Address
    from serving.settings import Settings


@click.command("rotate-key")
@click.option("--who", help="Person who rotates the key; stays in the log permanently.")
@click.option("--why", help="Reason; stays in the log permanently, so name no person.")
@click.option("--compromised", is_flag=True, help="Record in the log that others may have the old key.")
@click.option(
    "--prepare",
    is_flag=True,
    help="Only make the new key (FILE.next beside the old one), to copy it to the docket's other machines.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@docket_option
def rotate_key(
    who: str | None, why: str | None, compromised: bool, prepare: bool, yes: bool, docket: Path | Address | None
) -> None:
    """Goes over to another key: an entry of the log that both keys sign, and from there on the new one alone.

    What was signed before stays valid, and is checked with the old key or the new. Then keep the new public key where
    the old one is, and a checkpoint outside. Servers on this machine go over by themselves; on others, FILE.next has to
    lie beside their key file before. The same command once more finishes what was cut off.
    """
    settings = settings_of(docket=docket)
    place = settings.docket_key_place or Path(str(settings.docket_place)).with_suffix(".key")
    if prepare:
        click.echo(run(_prepared(settings, place)))
        return
    if not who or not why:
        raise click.UsageError("Say --who has the key changed, and --why.")
    if not yes:
        click.confirm("Have the docket's checkpoints signed with another key from now on?", abort=True)
    public, retired = run(_rotated(settings, place, who=who, why=why, compromised=compromised))
    click.echo(public)
    tell("Keep this line where the old one is kept, and a checkpoint outside (`memecourt docket checkpoint`).")
    if retired is not None:
        tell(f"The retired private key is at {printable(str(retired))}: backups of before need it. Keep it elsewhere.")


async def _prepared(settings: Settings, place: Path) -> str:
    from serving.docket.store.keys import make_key, next_key, read_key

    async with docket_in(settings) as store:
        (current, *_) = reversed(await store.log_keys.keys())
        # Makes none where one is: that of --prepare, or of a run that was cut off, is the one that counts.
        make_key(next_key(place), current.name)
    return str(read_key(next_key(place)).verifier)


async def _rotated(
    settings: Settings, place: Path, *, who: str, why: str, compromised: bool
) -> tuple[str, Path | None]:
    from serving.docket.store.keys import KeyFile, next_key, read_key, settle_keys

    public = await _prepared(settings, place)
    async with docket_in(settings) as store:
        current = await store.log.vkey()
        # The docket has gone over already, and was cut off before the files did.
        if current != public:
            old, new = KeyFile(place)(current), read_key(next_key(place))
            await store.log_keys.rotate(old, new, who=who, why=why, compromised=compromised, at=datetime.now(UTC))
        retired = settle_keys(place)
    return public, retired
