"""Signed notes (C2SP signed-note, Ed25519) and checkpoints of a log (C2SP tlog-checkpoint).

A note is a text, an empty line, and a line per signature. A checkpoint is a note with a log's name, its size and the
root of its tree. Keys use the format of Go's ``golang.org/x/mod/sumdb/note``, so that its tools can read them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from serving.docket.log.errors import BadNote
from serving.docket.log.merkle import HASH_SIZE

_ED25519 = b"\x01"  # the signature type, C2SP signed-note "Signature types"
_PRIVATE = "PRIVATE+KEY+"
_SIGNATURE = "— "
# Limits the cost of untrusted notes. Go's note package also reads at most 100 signatures.
_MAX_SIGNATURES = 100
_MOST_BYTES = 1 << 20
_NO_KEY = "This is no {what}: {form}. Copy the whole line that `memecourt docket key` printed."
_TORN = "name, digits and key don't belong together"
_VERIFIER_FORM = "it has to read NAME+8 hexadecimal digits+base64"
_SIGNING_FORM = "it has to read PRIVATE+KEY+NAME+8 hexadecimal digits+base64"


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key that verifies signatures."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        if len(self.public) != 32:
            raise BadNote("A public key of Ed25519 has 32 bytes.")

    @property
    def id(self) -> bytes:
        """Four bytes that distinguish keys of the same name."""
        # C2SP signed-note: SHA-256 of name, newline, signature type and public key, cut to 4 bytes.
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        """Returns the key as text: ``NAME+ID+KEY``."""
        return f"{self.name}+{self.id.hex()}+{_encoded(_ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a key. Raises BadNote if it is invalid."""
        name, id_, public = _key_parts(text.strip(), "public key of a docket", _VERIFIER_FORM)
        key = cls(name, public)
        if key.id != id_:
            raise BadNote(_NO_KEY.format(what="public key of a docket", form=_TORN))
        return key

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """True if a signature of this key over these bytes is valid."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """A private key that signs notes. It never appears in ``repr`` or in errors."""

    __slots__ = ("_key", "verifier")

    def __init__(self, name: str, seed: bytes) -> None:
        """Loads a key."""
        if len(seed) != 32:
            raise BadNote("A private key of Ed25519 has 32 bytes.")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verifier = VerifierKey(name, self._key.public_key().public_bytes_raw())

    @classmethod
    def create(cls, name: str) -> Self:
        """Generates a key from the system's randomness."""
        return cls(name, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a key from :meth:`secret`. Raises BadNote if it is invalid."""
        what = "private key of a docket"
        text = text.strip()
        if not text.startswith(_PRIVATE):
            raise BadNote(_NO_KEY.format(what=what, form=_SIGNING_FORM))
        name, id_, seed = _key_parts(text.removeprefix(_PRIVATE), what, _SIGNING_FORM)
        key = cls(name, seed)
        if key.verifier.id != id_:
            raise BadNote(_NO_KEY.format(what=what, form=_TORN))
        return key

    @property
    def name(self) -> str:
        """Name of the key."""
        return self.verifier.name

    def secret(self) -> str:
        """Returns the private key as text, which must be kept secret."""
        return f"{_PRIVATE}{self.name}+{self.verifier.id.hex()}+{_encoded(_ED25519 + self._key.private_bytes_raw())}"

    def sign(self, message: bytes) -> bytes:
        """Returns a signature of 64 bytes (RFC 8032)."""
        return self._key.sign(message)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Statement about the state of a log, to be signed."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """Returns the text to be signed."""
        return f"{self.origin}\n{self.size}\n{_encoded(self.root)}\n"


def sign_note(text: str, keys: Sequence[SigningKey]) -> str:
    """Signs a text as a note. Raises BadNote if the text is not allowed in a note."""
    _check_text(text)
    lines = [f"{_SIGNATURE}{key.name} {_encoded(key.verifier.id + key.sign(text.encode()))}\n" for key in keys]
    return f"{text}\n{''.join(lines)}"


def open_note(note: str, keys: Iterable[VerifierKey]) -> str:
    """Returns the text of a note after verifying that at least one of the keys has signed it.

    Signatures of other keys are ignored; an invalid signature of a trusted key invalidates the whole note.

    Raises:
        BadNote: The note is malformed, or not signed by one of the keys.
    """
    text, signatures = split_note(note)
    # By name and id: four bytes are too few to be unique, and a name may have several keys.
    trusted = {(key.name, key.id): key for key in keys}
    signed = False
    for name, id_, signature in signatures:
        key = trusted.get((name, id_))
        if key is None:
            continue
        if not key.verifies(text.encode(), signature):
            raise BadNote("A signature of this note is wrong: it was altered after it was signed.")
        signed = True
    if not signed:
        raise BadNote("None of the given keys has signed this note. Give the key of the docket that it is from.")
    return text


def split_note(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """Splits a note into its text and signatures (name, key id, signature), without verifying them.

    Raises:
        BadNote: The note is malformed.
    """
    # Checked before splitting, since notes come from untrusted files and servers.
    if len(note) > _MOST_BYTES:
        raise BadNote("This is no signed note: it is too long.")
    # The text may contain empty lines: the last one in the note ends it.
    text, gap, below = note.rpartition("\n\n")
    # The first newline of the gap belongs to the signed text.
    text += "\n"
    if not gap or not below.endswith("\n"):
        raise BadNote("This is no signed note: a text, an empty line and lines of signatures have to stand in it.")
    _check_text(text)
    lines = below[:-1].split("\n")
    if len(lines) > _MAX_SIGNATURES:
        raise BadNote(f"This note has {len(lines)} signatures; at most {_MAX_SIGNATURES} are read.")
    return text, [_signature(line) for line in lines]


def sign_checkpoint(key: SigningKey, origin: str, size: int, root: bytes) -> str:
    """Signs a checkpoint."""
    return sign_note(_checked(Checkpoint(origin, size, root)).text, [key])


def open_checkpoint(note: str, keys: Iterable[VerifierKey]) -> Checkpoint:
    """Checks the signature of a checkpoint and returns its content.

    Raises:
        BadNote: The note is malformed, not signed by one of the keys, or signed by a key of another name than its
            log's.
    """
    keys = list(keys)  # iterated twice below
    checkpoint = read_checkpoint(open_note(note, keys))
    own = [key for key in keys if key.name == checkpoint.origin]
    if not own:
        raise BadNote("This checkpoint is of another log than the key.")
    if len(own) < len(keys):
        open_note(note, own)  # a key of one log can't vouch for another, even if both are trusted
    return checkpoint


def read_checkpoint(text: str) -> Checkpoint:
    """Parses the text of a checkpoint; extra lines, which others may have added, are ignored.

    Raises:
        BadNote: The text is not a checkpoint.
    """
    lines = text.removesuffix("\n").split("\n")
    # Further lines are allowed (C2SP tlog-checkpoint), empty ones are not.
    if len(lines) < 3 or not all(lines):
        raise BadNote("This is no checkpoint: it has to have lines for the log's name, its size and its root.")
    # Without leading zeros, so that the representation is unique. 19 digits also limit what int() has to parse.
    if not re.fullmatch(r"0|[1-9][0-9]{0,18}", lines[1], re.ASCII):
        raise BadNote("This is no checkpoint: the second line has to be the size of the log.")
    return _checked(Checkpoint(lines[0], int(lines[1]), _decoded(lines[2])))


def check_name(name: str) -> None:
    """Raises BadNote if a key's name is invalid."""
    if not name or "+" in name or any(letter.isspace() or not letter.isprintable() for letter in name):
        raise BadNote("The name of a key has to be one or more printable letters, without spaces or plus signs.")


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    if not checkpoint.origin or "\n" in checkpoint.origin or checkpoint.size < 0:
        raise BadNote("A checkpoint names its log in one line, and its size is 0 or more.")
    if len(checkpoint.root) != HASH_SIZE:
        raise BadNote(f"The root in a checkpoint has {HASH_SIZE} bytes.")
    return checkpoint


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadNote("The text of a note has to be Unicode.") from None
    # No control characters except newlines, so that the signed text looks the same to everyone.
    if not text.endswith("\n") or any(letter < " " and letter != "\n" for letter in text):
        raise BadNote("The text of a note ends in a newline and holds no other control characters.")


def _signature(line: str) -> tuple[str, bytes, bytes]:
    name, space, encoded = line.removeprefix(_SIGNATURE).partition(" ")
    if not line.startswith(_SIGNATURE) or not space:
        raise BadNote("A line below the empty line of this note is no signature.")
    check_name(name)
    signature = _decoded(encoded)
    # Four bytes of the key's id, and at least one of a signature, whose length depends on the kind of key.
    if len(signature) < 5:
        raise BadNote("A signature of this note is cut short.")
    return name, signature[:4], signature[4:]


def _key_parts(text: str, what: str, form: str) -> tuple[str, bytes, bytes]:
    """Parses name, id and 32 bytes of a key."""
    # The error never contains the text, which may be a private key.
    bad = BadNote(_NO_KEY.format(what=what, form=form))
    # Base64 may contain plus signs too: only the first two are separators.
    name, _, remainder = text.partition("+")
    id_, _, encoded = remainder.partition("+")
    if not re.fullmatch(r"[0-9a-f]{8}", id_):
        raise bad
    try:
        check_name(name)
        key = _decoded(encoded)
    except BadNote:
        raise bad from None
    if len(key) != 33 or key[:1] != _ED25519:
        raise bad
    return name, bytes.fromhex(id_), key[1:]


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise BadNote("A part of this note or key is no base64.") from None
    if _encoded(data) != text:  # the encoding must be canonical
        raise BadNote("A part of this note or key is no base64 as it has to be written.")
    return data
