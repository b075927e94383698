"""Backs up a docket in a file to a folder with a consistent, verified snapshot, and restores it.

::

    FOLDER/docket.sqlite            the database, copied by SQLite's own interface while others may write to it
    FOLDER/docket.sqlite-pictures/  the pictures of its trials
    FOLDER/docket.vkey              the public key of its checkpoints
    FOLDER/checkpoint.txt           its newest signed checkpoint
    FOLDER/settings.json            the settings in force, without secrets
    FOLDER/backup.json              what the backup holds; written last: a folder without it is no backup

The private key is not included, so that a stolen backup can't sign. Without the key, a restored docket can be read and
verified, but not written.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError
from sqlalchemy import select

from court.digests import sha256_of
from court.errors import BadRequest, Unavailable
from court.meme import is_text_digest
from court.values import Value
from retrieval.library.postgres.address import Address
from serving.docket.audit.verify import Report
from serving.docket.errors import DocketError
from serving.docket.log.anchors import read_anchor, read_keys
from serving.docket.open import Docket
from serving.docket.store import tables as t
from serving.docket.store.pictures import ObjectPictures, flush
from serving.docket.store.sqlite import copy_sqlite

DATABASE, PICTURES = "docket.sqlite", "docket.sqlite-pictures"
_KEY, _CHECKPOINT, _SETTINGS, _MANIFEST = "docket.vkey", "checkpoint.txt", "settings.json", "backup.json"
_UNFINISHED = ".unfinished"

Tell = Callable[[str], None]


class Backup(Value):
    """Description of a backup's contents."""

    format: int = 1
    made: AwareDatetime
    software: str
    entries: int = Field(ge=0)
    trials: int = Field(ge=0)
    pictures: int = Field(ge=0)
    database_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


async def back_up(
    docket: Docket, address: Path | Address, folder: Path, *, settings: str, software: str, tell: Tell
) -> Backup:
    """Backs up a docket while it may be written to, and verifies the copy as ``docket verify`` does.

    Args:
        folder: Folder of the backup, which is created; a crash leaves one with the suffix ``.unfinished`` next to it.

    Raises:
        BadRequest: The docket is in PostgreSQL, or the folder exists already.
        DocketError: Nothing was ever written to the docket, or the copy fails verification.
        Unavailable: The docket can't be read now, or the backup can't be written.
    """
    if isinstance(address, Address):
        raise BadRequest(
            "This docket lies in PostgreSQL, which has means of its own: `pg_dump --format=custom DATABASE > FILE` and "
            "`pg_restore` into an empty database. Pictures are in it unless MEMECOURT_PICTURES names another place.",
            field="docket",
        )
    _refuse_existing(folder)
    new = folder.with_name(folder.name + _UNFINISHED)
    try:
        # Discard an earlier interrupted attempt, whose copy may be incomplete.
        shutil.rmtree(new, ignore_errors=True)
        # Private, like the docket (BO-5).
        new.mkdir(parents=True, mode=0o700)
        tell("Copying the database and the pictures …")
        await _copy(docket, address, new)
        (new / _SETTINGS).write_text(settings, encoding="utf-8")
        tell("Checking the copy …")
        report = await _checked(new / DATABASE, new)
        backup = Backup(
            made=datetime.now(UTC),
            software=software,
            entries=report.size,
            trials=report.trials,
            pictures=report.pictures,
            database_sha256=await asyncio.to_thread(sha256_of, new / DATABASE),
        )
        (new / _MANIFEST).write_text(backup.model_dump_json(indent=1) + "\n", encoding="utf-8")
        # Flushed to disk before the folder gets its name, so that it is complete even after a power failure.
        await asyncio.to_thread(_flush_all, new)
        new.rename(folder)
        flush(folder.parent)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return backup


async def restore(folder: Path, address: Path | Address, pictures: Path | str | None, *, tell: Tell) -> Backup:
    """Restores and verifies a backup. The database gets its name last: until then there is no docket.

    Args:
        address: File of the docket, which must not exist yet.

    Raises:
        BadRequest: The folder is not a complete backup, the docket exists already, or the docket or its pictures would
            not be on a disk.
        DocketError: The backup is damaged.
        Unavailable: The docket can't be written.
    """
    if isinstance(address, Address):
        raise BadRequest("A backup is restored to a file: name it with --docket.", field="docket")
    if isinstance(pictures, str):
        raise BadRequest("Pictures are restored to a directory. Leave MEMECOURT_PICTURES out, or name one.")
    picture_folder = pictures or address.with_name(f"{address.name}-pictures")
    try:
        backup = Backup.model_validate_json((folder / _MANIFEST).read_bytes())
    except (OSError, ValidationError):
        raise BadRequest(
            f"{folder} is no finished backup: {_MANIFEST} is missing in it, or damaged.", reason="NO_BACKUP"
        ) from None
    for one in (address, picture_folder):
        _refuse_existing(one)
    try:
        # Before anything is copied, so that a damaged backup leaves nothing behind.
        if await asyncio.to_thread(sha256_of, folder / DATABASE) != backup.database_sha256:
            raise DocketError("The backup's database is not what was written: its SHA-256 is another.")
        tell("Copying the database and the pictures …")
        new = address.with_name(address.name + _UNFINISHED)
        address.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new_pictures = picture_folder.with_name(picture_folder.name + _UNFINISHED)
        shutil.rmtree(new_pictures, ignore_errors=True)
        await asyncio.to_thread(shutil.copytree, folder / PICTURES, new_pictures)
        await asyncio.to_thread(shutil.copyfile, folder / DATABASE, new)
        # A docket is private, whatever the umask (BO-5).
        new.chmod(0o600)
        await asyncio.to_thread(_flush_all, new_pictures)
        flush(new)
        # In this order: a crash in between leaves pictures without a docket, rather than a docket without pictures.
        new_pictures.rename(picture_folder)
        new.rename(address)
        flush(address.parent)
    except OSError as error:
        raise _unwritable(address, error) from None
    tell("Checking it …")
    await _checked(address, folder, picture_folder)
    return backup


async def _copy(docket: Docket, address: Path, new: Path) -> None:
    """Copies the database, the pictures of its trials, the public key and the newest checkpoint."""
    pictures = ObjectPictures.open(new / PICTURES)
    copied: set[str] = set()
    missing: set[str] | None = None
    try:
        while True:
            # The database first: pictures of later trials are then not needed.
            await asyncio.to_thread(copy_sqlite, address, new / DATABASE)
            copy = Docket.open(new / DATABASE, create=False, read_only=True)
            try:
                wanted = await copy.transactions.read(
                    lambda connection: set(connection.execute(select(t.trials.c.pixels_sha256).distinct()).scalars())
                )
                (new / _KEY).write_text(await copy.log.vkey() + "\n", encoding="ascii")
                (new / _CHECKPOINT).write_text(await copy.log.checkpoint(), encoding="utf-8")
            except Unavailable:
                raise DocketError("Nothing was ever signed in this docket: there is nothing to back up.") from None
            finally:
                await copy.close()
            wanted = {digest for digest in wanted if digest and not is_text_digest(digest)}
            lacking = set()
            for pixels in sorted(wanted - copied):
                if frames := await docket.trials.frames(pixels):
                    await pictures.keep(pixels, frames)
                    copied.add(pixels)
                else:
                    lacking.add(pixels)
            # A missing picture may have been erased meanwhile, which a new copy of the database shows.
            if not lacking or lacking == missing:
                break
            # If the next copy lacks the same ones, they are lost, and the verification reports them.
            missing = lacking
        # Their trials were erased between two copies of the database: the backup must not bring them back (PR-1).
        for pixels in copied - wanted:
            await asyncio.to_thread(pictures.forget_now, pixels)
    finally:
        pictures.close()


async def _checked(database: Path, folder: Path, pictures: Path | None = None) -> Report:
    """Verifies a copy. Raises DocketError if anything in it is wrong."""
    copy = Docket.open(database, create=False, read_only=True, pictures=pictures)
    try:
        report = await copy.auditor.audit(read_keys(folder / _KEY), [read_anchor(folder / _CHECKPOINT)])
    finally:
        await copy.close()
    # A check that could not be made also counts as a failure.
    if report.violated or report.unchecked:
        findings = [finding.text for finding in report.findings[:3]] + report.unchecked[:1]
        raise DocketError(
            f"The copy is not clean: {' '.join(findings)} `memecourt docket verify` tells whether the docket is.",
            reason="BACKUP_NOT_CLEAN",
        )
    return report


def _refuse_existing(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise BadRequest(f"{path} is there already, and is not written over. Name another place.", reason="EXISTS")
    if path.is_dir():
        path.rmdir()


def _unwritable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{path} can't be written: {error.strerror}.", reason="BACKUP_UNWRITABLE", retry_after=None)


def _flush_all(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        flush(path)
