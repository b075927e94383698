"""Verifies bundles and receipts offline, without the court: ``python -m memecourt.verify``.

A **bundle** is one trial as the court's docket holds it: every entry with a proof that it is in the log, and a signed
count, so that no entry can be left out, in the middle or at the end. A **receipt** comes with a verdict, and proves
that the verdict is in the log. Both are checked against the public key of the docket, which must come from another
source than the file that is checked.

This file is self-contained: it needs only Python and the package ``cryptography``, so that people who do not trust the
rest of MemeCourt can read and use it. It was written independently of the court's own checks; tests compare the two.

A bundle does not prove that the court has no second log, nor that it has not rewritten this one with its own key. To
detect that, compare checkpoints with those that others have kept: ``--receipt`` and ``--anchor`` here, and ``memecourt
docket verify`` for whole dockets.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import hmac
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

FORMAT = "memecourt-bundle/1"
"""Format identifier in each bundle."""
COUNT = "memecourt-count/1"
"""First line of the signed note with the number of entries of a trial."""
SAMPLE = "memecourt-sample/1"
"""Format identifier in each random sample of trials."""
OWN_KINDS = frozenset({"PictureShown", "Erased", "Part", "PrecedentChanged", "KeyRotated", "SampleCommitted"})
"""Kinds of entries that are not events of a trial."""

_NOT_WHOLE = "This file is not what it has to be: "


class Violated(ValueError):
    """Raised if a proof or record differs from what the docket holds, or can't be proved; the message says why."""


class CantCheck(ValueError):
    """Raised if a check can't be made: the file, the key or the package for signatures is missing or unreadable."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Signed checkpoint of a docket's log, with the root hash of the tree (RFC 6962), 32 bytes."""

    origin: str
    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry that was proved to be in a log.

    Attributes:
        number: Index in the log, from 0.
        seq: Sequence number among the events of the trial, from 0; -1 if it is not an event.
        at: Time of the event, ISO 8601, UTC.
        header: Data of the Merkle tree's leaf.
        body: Content of the event; None if it was erased from the docket, or is withheld.
    """

    number: int
    kind: str
    trial_id: str
    seq: int
    at: str
    header: bytes
    body: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial of a verified bundle.

    Attributes:
        checkpoint: Checkpoint of the log that contains the entries.
        parts: Entries that hold texts of precedents and documents quoted in it, by number.
        known: Earlier checkpoints that the log was proved to extend.
    """

    trial_id: str
    checkpoint: Checkpoint
    entries: tuple[Logged, ...]
    parts: tuple[Logged, ...]
    known: tuple[Checkpoint, ...] = ()

    @property
    def hidden(self) -> int:
        """Number of entries without a body, because it was erased or is withheld."""
        return len(self.kinds_hidden)

    @property
    def kinds_hidden(self) -> tuple[str, ...]:
        """Kinds of the entries without a body. Whoever passed the bundle on may have removed it."""
        return tuple(entry.kind for entry in (*self.entries, *self.parts) if entry.body is None)

    def last(self, kind: str) -> Mapping[str, Any] | None:
        """Returns the body of the last event of a kind; None if there is none, or its body is missing."""
        return next((entry.body for entry in reversed(self.entries) if entry.kind == kind), None)

    @property
    def review(self) -> Mapping[str, Any] | None:
        """The body of the last review that was not withdrawn; None if there is none, or it can't be told."""
        withdrawn = [entry.body for entry in self.entries if entry.kind == "ReviewWithdrawn"]
        if None in withdrawn:
            return None
        gone = {body.get("of") for body in withdrawn if body}
        entries = [e for e in self.entries if e.kind == "VerdictReviewed" and (e.body or {}).get("seq") not in gone]
        return entries[-1].body if entries else None


def verify_bundle(text: str, keys: Sequence[str]) -> Trial:
    """Checks a bundle.

    Raises:
        Violated: Something in it was altered or left out, or is not signed by these keys.
        CantCheck: The file is not a bundle, a key is invalid, or signatures can't be checked here.
    """
    bundle = _object(text)
    if bundle.get("format") != FORMAT:
        raise CantCheck(f"This is no bundle of the format {FORMAT}.")
    trial_id = _text(bundle, "trial")
    # The signature comes first: nothing else in the file is trusted before it is verified.
    checkpoint = open_checkpoint(_text(bundle, "checkpoint"), keys)
    _check_count(_text(bundle, "count"), keys, checkpoint, trial_id=trial_id, entries=len(_list(bundle, "entries")))
    entries = tuple(_logged(one, checkpoint) for one in _list(bundle, "entries"))
    parts = tuple(_logged(one, checkpoint) for one in _list(bundle, "parts"))
    # The signed count is not enough: a repeated entry could take the place of a missing one.
    for group in (entries, parts):
        if [one.number for one in group] != sorted({one.number for one in group}):
            raise Violated("Entries of the bundle stand twice or in another order than in the log.")
    for entry in entries:
        if entry.trial_id != trial_id:
            raise Violated(f"Entry {entry.number} belongs to another trial.")
    if any(part.kind != "Part" for part in parts):
        raise Violated("Something is handed over as a part that is none.")
    # Besides the count, which covers all entries: some of them are not events.
    seqs = sorted(entry.seq for entry in entries if entry.kind not in OWN_KINDS)
    if seqs != list(range(len(seqs))):
        raise Violated("The events of the trial are not counted from 0 without gaps.")
    if not any(entry.seq == 0 and entry.kind == "TrialOpened" for entry in entries):
        raise Violated("The trial is not opened by any entry.")
    # Otherwise whoever passes a bundle on could remove the precedents that a verdict was based on.
    if missing := _quoted(entries) - {part.number for part in parts}:
        raise Violated(f"The trial quotes entry {min(missing)} of the log, which is left out.")
    known = tuple(_continued(one, checkpoint, keys) for one in _list(bundle, "known"))
    return Trial(trial_id=trial_id, checkpoint=checkpoint, entries=entries, parts=parts, known=known)


def verify_receipt(
    keys: Sequence[str], *, checkpoint: str, entry: int, header: bytes, proof: Sequence[bytes], trial_id: str = ""
) -> Logged:
    """Checks the receipt of a verdict: the fields of ``memecourt.v1.Receipt``.

    Raises:
        Violated: The receipt does not prove that the verdict is in the log.
        CantCheck: A key is invalid, or signatures can't be checked here.
    """
    logged = _in_log(header, entry, proof, open_checkpoint(checkpoint, keys))
    if logged.kind != "VerdictGiven" or (trial_id and logged.trial_id != trial_id):
        raise Violated("The receipt is of another entry than of this verdict.")
    return logged


@dataclass(frozen=True)
class Sample:
    """A verified random sample.

    Attributes:
        entry: Number of the entry that committed to it.
        drawn_from: The log that it was drawn from.
    """

    entry: int
    commitment: Mapping[str, Any]
    drawn_from: Checkpoint
    trials: tuple[str, ...]


def sample_numbers(commitment: Mapping[str, Any], size: int, value: str) -> Iterator[int]:
    """Yields numbers of entries in the order of the draw, each once; those that are no verdicts are passed over."""
    bound = [commitment[name] for name in ("checkpoint", "count", "beacon", "round", "due")]
    seed = hashlib.sha256(json.dumps([SAMPLE, *bound, value.lower()], separators=(",", ":")).encode()).digest()
    seen: set[int] = set()
    turn = 0
    while len(seen) < size:
        # 256 bits over at most 63: no number is favoured to any degree that matters.
        number = int.from_bytes(hashlib.sha256(seed + turn.to_bytes(8, "big")).digest(), "big") % size
        turn += 1
        if number not in seen:
            seen.add(number)
            yield number


def verify_sample(text: str, keys: Sequence[str], *, expected: Mapping[str, Any], value: str) -> Sample:
    """Verifies that a sample is the one that the docket had committed to, drawn by the beacon's value.

    Args:
        expected: The commitment as it was received before the round: ``entry`` with its number, and its content.
        value: The beacon's value for that round, in hex, from the beacon.

    Raises:
        Violated: The sample is another one, or not from that log.
        CantCheck: The file or a key is invalid.
    """
    file = _object(text)
    if file.get("format") != SAMPLE:
        raise CantCheck(_NOT_WHOLE + "it is no sample.")
    checkpoint = open_checkpoint(_text(file, "checkpoint"), keys)
    logged = _logged(file.get("commitment"), checkpoint)
    body = logged.body
    if logged.kind != "SampleCommitted" or body is None or {"entry": logged.number, **body} != dict(expected):
        raise Violated("The sample follows another commitment than the one that was received before.")
    if datetime.fromisoformat(_text(body, "at")) >= datetime.fromisoformat(_text(body, "due")):
        raise Violated("The docket committed to the sample when the beacon's value was known already.")
    continued = {"checkpoint": body["checkpoint"], "proof": _list(file, "consistency")}
    drawn_from = _continued(continued, checkpoint, keys)
    numbers, trials = sample_numbers(body, drawn_from.size, value), list[str]()
    for one in _list(file, "draws"):
        number = next(numbers, None) if len(trials) < body["count"] else None
        entry = _logged(one, drawn_from)
        if entry.number != number:
            raise Violated(f"Entry {entry.number} was not the next one to be drawn by this value.")
        if entry.kind == "VerdictGiven":
            trials.append(entry.trial_id)
    if len(trials) < body["count"] and next(numbers, None) is not None:
        raise Violated("The sample ends before all of its trials were drawn.")
    return Sample(logged.number, body, drawn_from, tuple(trials))


def open_checkpoint(note: str, keys: Sequence[str]) -> Checkpoint:
    """Opens a signed checkpoint and returns its content (C2SP tlog-checkpoint).

    Raises:
        Violated: The note is not a checkpoint, or is not signed by one of the keys.
        CantCheck: A key is invalid, or signatures can't be checked here.
    """
    lines = _open_note(note, keys).split("\n")
    if len(lines) < 4 or not re.fullmatch(r"(0|[1-9][0-9]{0,18})", lines[1], re.ASCII):
        raise Violated("A signed note stands where a checkpoint has to.")
    root, own = _base64(lines[2]), _keys_of(lines[0], keys)
    if len(root) != 32 or not own:
        raise Violated("A signed note stands where a checkpoint of this docket has to.")
    # Any of the keys was accepted above; it must be one of this docket.
    if len(own) < len(keys):
        _open_note(note, own)
    return Checkpoint(lines[0], int(lines[1]), root)


def _keys_of(origin: str, keys: Sequence[str]) -> list[str]:
    """Returns the keys of one docket: the key of one docket proves nothing about another, even if both are trusted."""
    return [key for key in keys if _key(key)[0] == origin]


def _check_count(note: str, keys: Sequence[str], checkpoint: Checkpoint, *, trial_id: str, entries: int) -> None:
    """Checks the signed number of entries that the trial has in the log of this checkpoint."""
    # Only with keys of this docket: another trusted docket must not vouch for its entries.
    lines = _open_note(note, _keys_of(checkpoint.origin, keys)).split("\n")
    root = base64.b64encode(checkpoint.root).decode()
    expected = [COUNT, f"log {checkpoint.origin}", f"trial {trial_id}", f"size {checkpoint.size}", f"root {root}"]
    # Seven, because the text ends with a line break. Size and root bind the count to this state of the log.
    if lines[:5] != expected or len(lines) != 7 or not lines[5].startswith("entries "):
        raise Violated("The signed count is of another trial or another log.")
    if lines[5] != f"entries {entries}":
        raise Violated(f"The docket signed {lines[5].removeprefix('entries ')} entries; the bundle has {entries}.")


def _logged(one: Any, checkpoint: Checkpoint) -> Logged:
    """Verifies that an entry of a bundle is in the log, and that its body matches its commitment."""
    if not isinstance(one, dict):
        raise CantCheck(_NOT_WHOLE + "an entry is no object.")
    header = _text(one, "header").encode()
    logged = _in_log(header, _number(one, "number"), [_base64(_str(part)) for part in _list(one, "proof")], checkpoint)
    body, salt = one.get("body"), one.get("salt")
    # Erased or withheld. Body and salt are always removed together.
    if body is None and salt is None:
        return logged
    if not isinstance(body, str) or not isinstance(salt, str):
        raise Violated(f"Entry {logged.number} has lost its body or its salt.")
    # The header was verified against the log above, so this is the logged commitment.
    committed = _object(header.decode())["commitment"]
    if not hmac.compare_digest(hmac.digest(_base64(salt), _str(body).encode(), hashlib.sha256).hex(), committed):
        raise Violated(f"The body of entry {logged.number} is not the one that was logged.")
    value = _object(body)
    # The commitment covers only the body: a genuine body could be put under the header of another kind or trial.
    place = (value.get("kind"), value.get("trial_id", ""), value.get("seq", -1))
    if place != (logged.kind, logged.trial_id, logged.seq):
        raise Violated(f"The body of entry {logged.number} tells of something else than its header.")
    return Logged(
        number=logged.number,
        kind=logged.kind,
        trial_id=logged.trial_id,
        seq=logged.seq,
        at=logged.at,
        header=header,
        body=value,
    )


def _in_log(header: bytes, number: int, proof: Sequence[bytes], checkpoint: Checkpoint) -> Logged:
    """Verifies that a header is in the log at an index, and returns its entry."""
    try:
        value = _object(header.decode())
    except (UnicodeDecodeError, CantCheck):
        raise Violated(f"The header of entry {number} is none.") from None
    # By exact type, because True is an int too.
    known = {"v": int, "number": int, "kind": str, "trial": str, "seq": int, "at": str, "commitment": str}
    if {name: type(one) for name, one in value.items()} != known or value["v"] != 1:
        raise Violated(f"The header of entry {number} is none that this program knows.")
    # Only the canonical encoding, because others (duplicate keys, spaces, another order) may be read differently.
    written = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if written.encode(errors="surrogatepass") != header or not value["commitment"].isascii():
        raise Violated(f"The header of entry {number} is not written as headers are.")
    # The index is part of the hashed header, so no entry can be presented at another's index.
    if value["number"] != number:
        raise Violated(f"The header of entry {number} is that of entry {value['number']}.")
    # Prefix 0x00 for an entry, 0x01 for a node (RFC 6962), so that a node can't pass for an entry.
    root = _root(number, checkpoint.size, hashlib.sha256(b"\x00" + header).digest(), proof)
    if root != checkpoint.root:
        raise Violated(f"Entry {number} does not stand in the log that was signed.")
    return Logged(
        number=number,
        kind=value["kind"],
        trial_id=value["trial"],
        seq=value["seq"],
        at=value["at"],
        header=header,
        body=None,
    )


def _root(number: int, size: int, leaf: bytes, proof: Sequence[bytes]) -> bytes:
    """Returns the root that an audit path leads to (RFC 9162 §2.1.3.2); empty for an invalid path."""
    # Empty never equals the root of a checkpoint, which has 32 bytes.
    if not 0 <= number < size:
        return b""
    here, last = number, size - 1
    for sibling in proof:
        # The path is longer than the height of the tree.
        if last == 0:
            return b""
        # The sibling is on the left of a right child, or of a last node without a sibling on its level.
        if here % 2 or here == last:
            leaf = _node(sibling, leaf)
            # Such a node moves up unhashed until it is a right child.
            while here and here % 2 == 0:
                here, last = here // 2, last // 2
        else:
            leaf = _node(leaf, sibling)
        here, last = here // 2, last // 2
    return leaf if last == 0 else b""


def _continued(one: Any, checkpoint: Checkpoint, keys: Sequence[str]) -> Checkpoint:
    """Verifies that an earlier checkpoint is a prefix of the log (RFC 9162 §2.1.4.2), and returns it."""
    if not isinstance(one, dict):
        raise CantCheck(_NOT_WHOLE + "a known checkpoint is no object.")
    known = open_checkpoint(_text(one, "checkpoint"), keys)
    proof = [_base64(_str(part)) for part in _list(one, "proof")]
    wrong = Violated(f"The log of {checkpoint.size} entries is not shown to continue that of {known.size} entries.")
    if known.origin != checkpoint.origin or known.size > checkpoint.size:
        raise wrong
    # RFC 9162 has no proofs for these: the empty log is a prefix of every log, and every log of itself.
    if known.size in (0, checkpoint.size):
        if proof or known.root != (checkpoint.root if known.size else hashlib.sha256(b"").digest()):
            raise wrong
        return known
    if known.size & (known.size - 1) == 0:  # a perfect tree is a node of the larger one
        proof.insert(0, known.root)
    here, last = known.size - 1, checkpoint.size - 1
    # The proof starts with the largest complete subtree at the end of the smaller log.
    while here % 2:
        here, last = here // 2, last // 2
    if not proof:
        raise wrong
    old = new = proof[0]
    for sibling in proof[1:]:
        if last == 0:
            raise wrong
        if here % 2 or here == last:
            # A left sibling belongs to both trees; a right sibling was added later, and belongs to the larger tree
            # only.
            old, new = _node(sibling, old), _node(sibling, new)
            while here and here % 2 == 0:
                here, last = here // 2, last // 2
        else:
            new = _node(new, sibling)
        here, last = here // 2, last // 2
    # Both roots must match: either one alone proves nothing about the other.
    if last or (old, new) != (known.root, checkpoint.root):
        raise wrong
    return known


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _quoted(entries: Sequence[Logged]) -> set[int]:
    """Returns the numbers of the entries that bodies refer to in place of texts."""
    numbers: set[int] = set()
    quoting = ("PrecedentsCited", "VerdictGiven", "EvidenceSearched", "DocumentWeighed", "ClaimSettled")
    # Iterative, because the file's author controls how deeply a body is nested.
    left: list[Any] = [entry.body for entry in entries if entry.kind in quoting]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if value.keys() == {"part"} and isinstance(value["part"], int):
                numbers.add(value["part"])
            left += value.values()
        elif isinstance(value, list):
            left += value
    return numbers


def _open_note(note: str, keys: Sequence[str]) -> str:
    """Returns the text of a note signed by one of the keys (C2SP signed-note)."""
    if not keys:
        raise CantCheck("No public key was given.")
    _str(note)
    # At the last blank line: the text may contain one, signatures don't.
    text, gap, below = note.rpartition("\n\n")
    text += "\n"
    # C2SP signed-note allows no control characters except line breaks.
    if not gap or not below.endswith("\n") or any(letter < " " and letter != "\n" for letter in note):
        raise Violated("A signed note is malformed.")
    # Parse all keys first: a mistyped key must not go unnoticed because another one matches.
    trusted = [_key(key) for key in keys]
    signed = False
    for line in below[:-1].split("\n"):
        dash, space, remainder = line.partition(" ")
        name, gap, encoded = remainder.partition(" ")
        if dash != "—" or not space or not gap:
            raise Violated("A signed note is malformed.")
        signature = _base64(encoded)
        for own, id_, public in trusted:
            # Signatures by others, such as witnesses, are ignored; a wrong signature by a known key is a sign of
            # tampering.
            if (name, signature[:4]) == (own, id_):
                if not _verifies(public, signature[4:], text.encode()):
                    raise Violated("A signature is wrong: what was signed has been altered.")
                signed = True
    if not signed:
        raise Violated("A note is not signed with the given key.")
    return text


def _key(text: str) -> tuple[str, bytes, bytes]:
    found = re.fullmatch(r"([^+\s]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]{44})", text.strip())
    key = base64.b64decode(found[3]) if found else b""
    # The first byte is the signature algorithm: 0x01 is Ed25519 (C2SP signed-note).
    if not found or key[:1] != b"\x01":
        raise CantCheck("This is no public key of a docket. Copy the line that `memecourt docket key` printed.")
    id_ = hashlib.sha256(found[1].encode() + b"\n" + key).digest()[:4]
    # The id is also a checksum: a copying mistake in the key must not be reported as tampering.
    if id_.hex() != found[2]:
        raise CantCheck("This public key was not copied as it is: its parts don't belong together.")
    return found[1], id_, key[1:]


def _verifies(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ModuleNotFoundError:
        raise CantCheck("To check signatures, install the package: pip install cryptography") from None
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    # RecursionError for JSON that is nested too deeply.
    except (ValueError, RecursionError):
        raise CantCheck(_NOT_WHOLE + "it is no JSON.") from None
    if not isinstance(value, dict):
        raise CantCheck(_NOT_WHOLE + "it is no JSON object.")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object, and refuses duplicate keys, of which another program may read the other value."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _text(value: Mapping[str, Any], name: str) -> str:
    return _str(value.get(name), name)


def _str(value: Any, name: str = "a part") -> str:
    if not isinstance(value, str):
        raise CantCheck(f"{_NOT_WHOLE}{name} is missing or no text.")
    try:
        # JSON can contain half of a surrogate pair, which has no UTF-8 encoding and so no hash.
        value.encode()
    except UnicodeEncodeError:
        raise CantCheck(f"{_NOT_WHOLE}{name} is no Unicode.") from None
    return value


def _list(value: Mapping[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    if not isinstance(found, list):
        raise CantCheck(f"{_NOT_WHOLE}{name} is missing or no list.")
    return found


def _number(value: Mapping[str, Any], name: str) -> int:
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise CantCheck(f"{_NOT_WHOLE}{name} is missing or no number.")
    return found


def _base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Violated("A part that has to be base64 is none.") from None
    # Decoding ignores spare bits of the last character, so two texts could encode the same bytes.
    if base64.b64encode(data).decode() != text:
        raise Violated("A part that has to be base64 is not written as it has to be.")
    return data


def _receipts(text: str) -> list[dict[str, Any]]:
    """Parses receipts from JSON: receipts themselves, or responses that contain one, in protobuf's JSON mapping."""
    # Either one object, possibly over several lines, or one object per line.
    lines = [text] if text.lstrip().startswith("{") and "\n{" not in text.strip() else text.split("\n")
    found = []
    for line in filter(str.strip, lines):
        value = _object(line)
        receipt = value.get("receipt", value)
        if not isinstance(receipt, dict):
            raise CantCheck(_NOT_WHOLE + "there is no receipt in it.")
        # Protobuf's JSON has the first spelling; with preserving_proto_field_name, the second.
        trial_id = value.get("verdictId", value.get("verdict_id", ""))
        found.append({**receipt, "trial_id": trial_id})
    if not found:
        raise CantCheck(_NOT_WHOLE + "there is nothing in it.")
    return found


def _receipt(fields: Mapping[str, Any], keys: Sequence[str]) -> tuple[Logged, Checkpoint]:
    """Verifies a receipt in JSON, and returns its entry and the checkpoint of the log."""
    entry = fields.get("entry", 0)  # protobuf writes 64-bit integers as text, and omits zero
    if not isinstance(entry, int | str) or not re.fullmatch(r"0|[1-9][0-9]{0,18}", str(entry), re.ASCII):
        raise CantCheck(_NOT_WHOLE + "entry is no number.")
    logged = verify_receipt(
        keys,
        checkpoint=_text(fields, "checkpoint"),
        entry=int(entry),
        header=_base64(_text(fields, "header")),
        # In a log of one entry the proof is empty, and protobuf omits an empty list.
        proof=[_base64(_str(part)) for part in _list({"proof": [], **fields}, "proof")],
        trial_id=_str(fields["trial_id"]),
    )
    return logged, open_checkpoint(_text(fields, "checkpoint"), keys)


def _against_receipts(trial: Trial, text: str, keys: Sequence[str]) -> int:
    """Compares a bundle with receipts of its trial, and returns their number.

    Raises:
        Violated: They differ.
        CantCheck: No receipt is of this trial, or one is newer than the bundle.
    """
    by_number = {entry.number: entry for entry in trial.entries}
    agreed = 0
    for fields in _receipts(text):
        logged, checkpoint = _receipt(fields, keys)
        # Before skipping receipts of other trials: two roots for one size prove two logs, whatever the trial.
        _same_log(trial, checkpoint)
        if logged.trial_id != trial.trial_id:
            continue
        if logged.number >= trial.checkpoint.size:
            raise CantCheck("The receipt is of an entry that came after this bundle was made. Ask for a new one.")
        # Same index and same header, which contains the commitment: the same verdict.
        here = by_number.get(logged.number)
        if here is None or here.header != logged.header:
            raise Violated(f"The receipt is of another verdict than entry {logged.number} of the bundle.")
        agreed += 1
    # Without any receipt to compare, the result must not read as agreement.
    if not agreed:
        raise CantCheck("None of the receipts is of this trial.")
    return agreed


def _against_anchor(trial: Trial, text: str, keys: Sequence[str]) -> int:
    """Compares a bundle with checkpoints kept elsewhere, and returns their number.

    Raises:
        Violated: One is of another log.
        CantCheck: There is no checkpoint, or the bundle has no proof that relates to it.
    """
    notes = re.findall(r"(?:^(?!— )[^\n]+\n)+\n(?:^— [^\n]+\n)+", text, re.MULTILINE)
    if not notes:
        raise CantCheck("There is no checkpoint in the anchor.")
    for note in notes:
        anchor = open_checkpoint(note, keys)
        _same_log(trial, anchor)
        shown = {(known.size, known.root) for known in (*trial.known, trial.checkpoint)}
        if (anchor.size, anchor.root) not in shown:
            raise CantCheck(
                f"How the log goes with a checkpoint over {anchor.size} entries is not shown in this bundle. Ask for "
                "one that is made with that checkpoint: memecourt docket bundle --anchor."
            )
    return len(notes)


def _same_log(trial: Trial, other: Checkpoint) -> None:
    # A fork, which no proof within a bundle can reveal: the same docket and size with another history.
    for one in (*trial.known, trial.checkpoint):
        if one.origin == other.origin and one.size == other.size and one.root != other.root:
            raise Violated(f"The docket has signed two different logs of {one.size} entries.")


def _bundle_lines(trial: Trial) -> Iterator[str]:
    checkpoint = trial.checkpoint
    yield f"trial     {_shown(trial.trial_id)}"
    yield f"log       {checkpoint.origin}, {checkpoint.size} entries, root {base64.b64encode(checkpoint.root).decode()}"
    yield (
        f"entries   {len(trial.entries)}, numbers {trial.entries[0].number} to {trial.entries[-1].number}"
        if (trial.entries)
        else "entries   0"
    )
    if trial.hidden:
        kinds = ", ".join(_shown(kind) for kind in sorted(set(trial.kinds_hidden)))
        yield f"hidden    {trial.hidden} bodies, erased or withheld: {kinds}"
    ruling, reviewed = trial.last("VerdictGiven"), trial.review
    if ruling:
        verdict = ruling.get("verdict")
        label = verdict.get("label") if isinstance(verdict, dict) else "?"
        yield f"verdict   {_shown(label)}, given {_shown(ruling.get('at'))}"
    if reviewed:
        outcome, label, at = (_shown(reviewed.get(name)) for name in ("outcome", "label", "at"))
        yield f"review    {outcome} as {label}, {at}"


def _shown(value: Any) -> str:
    """Escapes a value of the file for display in a terminal."""
    return str(value).encode("unicode_escape").decode()


def _is_bundle(text: str) -> bool:
    try:
        return bool(_object(text).get("format") == FORMAT)
    except CantCheck:
        return False


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise CantCheck(f"{Path(path).name} can't be read.") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks a file; returns 0 if it is right, 1 if it is not, 2 if it could not be checked."""
    parser = argparse.ArgumentParser(
        prog="python -m memecourt.verify",
        description="Checks a bundle, a receipt (of a JudgeResponse, as JSON) or a sample of the docket offline.",
        epilog="Exit status: 0 it is right, 1 it is not, 2 it could not be checked.",
    )
    parser.add_argument("file", help="a bundle, a sample, or JSON that holds a receipt")
    parser.add_argument("--key", required=True, metavar="FILE", help="public keys of the docket, one a line")
    parser.add_argument("--receipt", metavar="FILE", help="JSON of receipts that the bundle must agree with")
    parser.add_argument(
        "--anchor", metavar="FILE", help="checkpoints kept elsewhere that the bundle's log must continue"
    )
    parser.add_argument("--commitment", metavar="FILE", help="of a sample: the commitment as it was received before")
    parser.add_argument("--value", metavar="HEX", help="of a sample: the beacon's value in the round")
    options = parser.parse_args(arguments)
    try:
        keys = [line for line in _read(options.key).splitlines() if line.strip()]
        text = _read(options.file)
        # By the format field in the file, not by its name.
        if _is_bundle(text):
            trial = verify_bundle(text, keys)
            agreed = _against_receipts(trial, _read(options.receipt), keys) if options.receipt else 0
            print(*_bundle_lines(trial), sep="\n")
            if options.receipt:
                print(f"receipts  {agreed} agree")
            if options.anchor:
                print(f"anchors   {_against_anchor(trial, _read(options.anchor), keys)} agree")
        elif options.commitment and options.value:
            expected = _object(_read(options.commitment))
            sample = verify_sample(text, keys, expected=expected, value=options.value)
            print(
                f"{len(sample.trials)} trials, drawn from {sample.drawn_from.size} entries as entry {sample.entry} says"
            )
        elif options.receipt or options.anchor:
            raise CantCheck("--receipt and --anchor are what a bundle is held against, and this file is none.")
        else:
            for fields in _receipts(text):
                logged, checkpoint = _receipt(fields, keys)
                print(f"trial {_shown(logged.trial_id)}: its verdict is entry {logged.number} of {checkpoint.size}")
            print("receipts alone were checked: what else stands in the file, a bundle of the trial shows")
    except Violated as wrong:
        print(f"violated: {wrong}", file=sys.stderr)
        return 1
    except CantCheck as wrong:
        print(f"not checked: {wrong}", file=sys.stderr)
        return 2
    print("right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
