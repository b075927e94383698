"""Keeps a bank of an HMA in line with what people found harmful: hashes go there, pictures never do.

Reads the lines of ``memecourt docket hashes`` from standard input, pushes those that the bank lacks, and takes out what
it was given earlier and is not among them any more: overruled since, or erased. A file says what was pushed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

import requests

TIMEOUT_S = 30


class NotPushedError(Exception):
    """The HMA did not do what it was asked; the bank may be behind. Run again."""


class HashBank:
    """A bank of an HMA."""

    def __init__(self, url: str, bank: str, token: str = "") -> None:
        """Connects when it is used first.

        Args:
            token: Bearer token that something in front of it wants; HMA itself knows none.
        """
        self._bank = f"{url.rstrip('/')}/c/bank/{quote(bank, safe='')}"
        self._session = requests.Session()
        if token:
            self._session.headers["authorization"] = f"Bearer {token}"

    def add(self, pdq: str, note: str) -> int:
        """Pushes a hash, and returns its id in the bank. Raises NotPushedError."""
        said = self._ask("POST", "/signal", {"pdq": pdq, "note": note})
        if not isinstance(said.get("id"), int):
            raise NotPushedError("the answer to a push has no id")
        return int(said["id"])

    def remove(self, content: int) -> None:
        """Takes a hash out; one that is not there any more is none. Raises NotPushedError."""
        self._ask("DELETE", f"/content/{content}", None)

    def _ask(self, verb: str, path: str, body: Mapping[str, str] | None) -> Mapping[str, object]:
        try:
            answer = self._session.request(verb, self._bank + path, json=body, timeout=TIMEOUT_S, allow_redirects=False)
            said = answer.json() if answer.ok else {}
        except (requests.RequestException, ValueError) as error:
            raise NotPushedError(f"the HMA can't be reached: {type(error).__name__}") from None
        if not answer.ok or not isinstance(said, dict):
            raise NotPushedError(f"the HMA answers with status {answer.status_code}")
        return said


class PushedHashes:
    """File of what was pushed: each change is on the disk before the next is made."""

    def __init__(self, path: Path) -> None:
        """Reads the file; none is as an empty one. Raises ValueError if it is no such file."""
        self._path = path
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if not isinstance(found, dict) or not all(isinstance(content, int) for content in found.values()):
            raise ValueError(f"{path} is no file of pushed hashes")
        self.contents: dict[str, int] = found

    def put(self, key: str, content: int) -> None:
        """Notes a hash that was pushed."""
        self.contents[key] = content
        self._write()

    def drop(self, key: str) -> None:
        """Notes that a hash was taken out."""
        del self.contents[key]
        self._write()

    def _write(self) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(self.contents, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)


def reconcile(lines: Iterable[str], bank: HashBank, pushed: PushedHashes) -> tuple[int, int]:
    """Brings a bank in line with all lines of ``memecourt docket hashes``; returns how many were pushed and taken out.

    Raises:
        NotPushedError: The HMA did not do something; what was done is noted.
        ValueError: A line is none of the command's.
    """
    wanted: dict[str, tuple[str, str]] = {}
    # All lines are read before anything is done: a command that broke off must not empty the bank.
    for line in lines:
        found = json.loads(line)
        pdq = str(found["pdq"])
        if len(pdq) != 64 or int(pdq, 16) < 0:
            raise ValueError("a PDQ hash has 64 hex digits")
        wanted[f"{found['verdict_id']}/{pdq}"] = (pdq, f"memecourt {found['verdict_id']}")
    gone = [key for key in pushed.contents if key not in wanted]
    # First out, then in: a person's "not harmful" must not wait for pushes that fail.
    for key in gone:
        bank.remove(pushed.contents[key])
        pushed.drop(key)
    new = [key for key in wanted if key not in pushed.contents]
    for key in new:
        pushed.put(key, bank.add(*wanted[key]))
    return len(new), len(gone)


def main() -> None:
    """Brings a bank in line once."""
    parser = argparse.ArgumentParser(prog="memecourt-hma", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("url", help="address of the HMA")
    parser.add_argument("--bank", required=True, help="name of the bank, which exists")
    parser.add_argument("--pushed", required=True, type=Path, help="file that says what was pushed")
    given = parser.parse_args()
    try:
        lines = sys.stdin.read().splitlines()
        if not lines or json.loads(lines[-1]) != {"end": True}:
            sys.exit("The lines of `memecourt docket hashes` broke off: the bank is left as it is.")
        bank = HashBank(given.url, given.bank, os.environ.get("HMA_TOKEN", ""))
        added, removed = reconcile(lines[:-1], bank, PushedHashes(given.pushed))
    except NotPushedError as error:
        sys.exit(f"{error}. The bank may be behind: run it again.")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"This can't be read: {error}. The lines are those of `memecourt docket hashes`.")
    except OSError as error:
        sys.exit(f"{given.pushed} can't be read or written: {error.strerror}. Run it again.")
    print(f"{added} pushed, {removed} taken out")


if __name__ == "__main__":
    main()
