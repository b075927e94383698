"""The private key that signs a docket's checkpoints: a file that only its owner may read."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from serving.docket.errors import DocketError
from serving.docket.log.errors import BadNote
from serving.docket.log.notes import SigningKey


class KeyFile:
    """File of the signing key, which is read, or created for a new docket, at the first signature."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: SigningKey | None = None

    def __call__(self, known: str) -> SigningKey:
        """Returns the key.

        Args:
            known: Public key of the docket; empty if no checkpoint has been signed.

        Raises:
            DocketError: The key is missing, can't be read, or is not the docket's.
        """
        if self._key is None or (known and str(self._key.verifier) != known):
            self._key = self._find(known)
        return self._key

    def _find(self, known: str) -> SigningKey:
        # Only a docket that has signed nothing gets a new key; any other needs its own key.
        if not known:
            return self._made()
        # During a key rotation, or after a crash in it, the new key is next to the old one.
        for path in (self._path, next_key(self._path)):
            if path.exists() and str((key := self._read(path)).verifier) == known:
                return key
        self._read(self._path)  # raises if it is missing or invalid
        raise DocketError(
            "The key file is not that of this docket: its checkpoints are signed with another key. All servers of "
            "a docket need the same one: name a copy of its file with MEMECOURT_DOCKET_KEY.",
            reason="DOCKET_KEY",
        )

    def _made(self) -> SigningKey:
        try:
            make_key(self._path)
        except OSError:
            raise _unreadable() from None
        return self._read(self._path)

    def _read(self, path: Path) -> SigningKey:
        try:
            return read_key(path)
        except FileNotFoundError:
            raise DocketError(
                "The key that this docket's checkpoints are signed with is not there. Put its file back beside the "
                "docket, or name it with MEMECOURT_DOCKET_KEY.",
                reason="DOCKET_KEY",
            ) from None
        except (OSError, ValueError, BadNote):
            raise _unreadable() from None


def _unreadable() -> DocketError:
    return DocketError(
        "The docket's key file can't be read, or holds no key. Put the right one back, or name it with "
        "MEMECOURT_DOCKET_KEY.",
        reason="DOCKET_KEY",
    )


def read_key(path: Path) -> SigningKey:
    """Reads a key file; raises OSError, ValueError or BadNote if it can't be read or is invalid."""
    return SigningKey.parse(path.read_text("ascii"))


def next_key(path: Path) -> Path:
    """Returns the file of the new key during a rotation, next to the current one."""
    return path.with_name(f"{path.name}.next")


def settle_keys(path: Path) -> Path | None:
    """Completes a rotation: moves the new key into place, and keeps the retired one next to it.

    Returns:
        The file of the retired key; None if that is gone.
    """
    retired = None
    if path.exists():
        retired = path.with_name(f"{path.name}.retired-{read_key(path).verifier.id.hex()}")
        path.replace(retired)
    next_key(path).replace(path)
    return retired


def make_key(path: Path, name: str = "") -> None:
    """Creates a key file if there is none; of several concurrent processes, one succeeds."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    key = SigningKey.create(name or f"memecourt-docket-{secrets.token_hex(8)}")
    # Completely written and flushed before it gets its name: nobody reads half a key, and no key in use is lost.
    handle, unnamed = tempfile.mkstemp(dir=path.parent, prefix=".docket-key-")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(key.secret() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # link() fails if the name is taken, unlike rename(), which would replace a key that has already signed.
            os.link(unnamed, path)
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        Path(unnamed).unlink()
