"""Signatures of messages by Standard Webhooks: ``v1`` (HMAC-SHA256) and ``v1a`` (Ed25519).

Secrets are stored in private files. Their prefix determines the scheme: ``whsec_`` or ``whsk_``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typing_extensions import override

from court.errors import BadRequest
from serving.settings import WebhookSettings

_HMAC, _PRIVATE, _PUBLIC = "whsec_", "whsk_", "whpk_"
_HMAC_BYTES = (24, 64)
"""Minimum and maximum bytes of a secret, by the specification."""
_SEED = 32
_OTHERS, _OTHERS_OF_MOUNTED = 0o077, 0o037
"""Permissions that others must not have. For a file of another user, such as a mounted secret, its group may read."""


class Signer(Protocol):
    """Signs messages with one secret.

    Attributes:
        public_key: Public key that verifies signatures; empty for shared secrets.
    """

    public_key: str

    def sign(self, message: bytes) -> str:
        """Returns the signature, prefixed by its scheme."""


class HmacSigner(Signer):
    """Signs with a secret shared with the receiver."""

    public_key = ""

    def __init__(self, secret: bytes) -> None:
        """Raises ValueError if the secret is too short or too long."""
        if not _HMAC_BYTES[0] <= len(secret) <= _HMAC_BYTES[1]:
            raise ValueError("a secret has 24 to 64 bytes")
        self._secret = secret

    @override
    def sign(self, message: bytes) -> str:
        return f"v1,{base64.b64encode(hmac.digest(self._secret, message, sha256)).decode()}"


class Ed25519Signer(Signer):
    """Signs with a private key, of which the receiver has the public half."""

    def __init__(self, key: bytes) -> None:
        """Takes the seed of a key, optionally followed by the public half. Raises ValueError if it is invalid."""
        if len(key) not in (_SEED, 2 * _SEED):
            raise ValueError("a key has 32 bytes, or 64 with its public half")
        self._key = Ed25519PrivateKey.from_private_bytes(key[:_SEED])
        public = self._key.public_key().public_bytes_raw()
        if key[_SEED:] not in (b"", public):
            raise ValueError("the halves of the key belong to two")
        self.public_key = _PUBLIC + base64.b64encode(public).decode()

    @override
    def sign(self, message: bytes) -> str:
        return f"v1a,{base64.b64encode(self._key.sign(message)).decode()}"


def signers_of(hook: WebhookSettings) -> Sequence[Signer]:
    """Reads the secrets of a receiver, the one in force first.

    Raises:
        BadRequest: A file can't be read, is readable by others, or contains no valid secret.
    """
    files = [hook.secret_file, *([hook.old_secret_file] if hook.old_secret_file else [])]
    return [_signer_in(path, hook.name) for path in files]


def signature_of(signers: Sequence[Signer], message_id: str, timestamp: int, body: bytes) -> str:
    """Returns the header ``webhook-signature`` with one signature per secret."""
    message = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return " ".join(signer.sign(message) for signer in signers)


def make_secret(path: Path, *, ed25519: bool) -> Signer:
    """Writes a new secret into a new private file. Raises BadRequest if that fails."""
    prefix = _PRIVATE if ed25519 else _HMAC
    text = prefix + base64.b64encode(secrets.token_bytes(_SEED)).decode()
    try:
        # O_EXCL: never overwrite a secret in use. The mode is set at creation, so that others can't read it at any
        # moment.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text + "\n")
    except OSError as error:
        raise BadRequest(f"{path} can't be made: {error.strerror}.", reason="WEBHOOK_SECRET", field="path") from None
    return _parsed(text)


def _signer_in(path: Path, hook: str) -> Signer:
    try:
        with path.open("rb") as file:
            # Of the open file, since the path may refer to another one by now.
            found = os.fstat(file.fileno())
            # A secret is far shorter; a mistyped path may name a file of any size.
            text = file.read(1024)
    except OSError as error:
        raise _unusable(hook, path, f"can't be read: {error.strerror}") from None
    forbidden = _OTHERS if found.st_uid == os.geteuid() else _OTHERS_OF_MOUNTED
    if stat.S_IMODE(found.st_mode) & forbidden:
        raise _unusable(hook, path, f"may be read by others than its owner. Take that from them: chmod 600 {path.name}")
    try:
        return _parsed(text.decode("ascii").strip())
    except ValueError as error:
        # Only for ValueError itself: its subclass UnicodeDecodeError quotes bytes of the file.
        why = f" ({error})" if type(error) is ValueError else ""
        raise _unusable(
            hook,
            path,
            f"holds no secret{why}: `memecourt webhooks secret {path.name}` makes one, whsec_ with base64 behind it",
        ) from None


def _parsed(text: str) -> Signer:
    """Parses a secret. Raises ValueError if it is invalid."""
    for prefix, kind in ((_HMAC, HmacSigner), (_PRIVATE, Ed25519Signer)):
        if text.startswith(prefix):
            # Without validate, b64decode skips invalid characters, so a mistyped secret would become another one.
            try:
                return kind(base64.b64decode(text.removeprefix(prefix), validate=True))
            except binascii.Error:
                raise ValueError("what stands behind its prefix is no base64") from None
    raise ValueError("it begins with neither whsec_ nor whsk_")


def _unusable(hook: str, path: Path, why: str) -> BadRequest:
    return BadRequest(
        f"The file {path.name} with the secret of the webhook {hook} {why}.", reason="WEBHOOK_SECRET", field="webhooks"
    )
