"""Policy files: faults that the format allows, policies that others wrote, and the file of a policy."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from court.errors import BadRequest
from court.policy import Clause, Policy

_LONGEST = 1_000_000
"""Bytes of a file that is imported."""


def faults_of(policy: Policy) -> Iterator[str]:
    """Yields a sentence on each fault of a valid policy that makes it contradict or repeat itself."""
    by_text = defaultdict[str, list[str]](list)
    forbidden, allowed = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for clause in policy.clauses:
        by_text[_plain(clause.text)].append(clause.number)
        for place, texts in ((forbidden, clause.violates), (allowed, clause.allows)):
            for text in texts:
                place[_plain(text)].append(clause.number)
    for numbers in by_text.values():
        if len(numbers) > 1:
            yield f"Clauses {', '.join(numbers)} say the same."
    for text, numbers in forbidden.items():
        if text in allowed:
            yield f"Clause {numbers[0]} forbids an example that clause {allowed[text][0]} allows."
        if len(numbers) > len(set(numbers)):
            yield f"Clause {numbers[0]} has an example twice."


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def to_toml(policy: Policy) -> str:
    """Returns the file of a policy."""
    lines = [f"id = {_quoted(policy.id)}", f"version = {_quoted(policy.version)}"]
    lines += [f"preamble = {_quoted(policy.preamble)}", f"targets = [{', '.join(map(_quoted, policy.targets))}]"]
    for clause in policy.clauses:
        lines += ["", "[[clauses]]"]
        lines += [f"{name} = {_quoted(getattr(clause, name))}" for name in ("number", "category", "text")]
        lines += ["facts = true"] if clause.facts else []
        for name in ("reasons", "violates", "allows"):
            if values := getattr(clause, name):
                lines += [f"{name} = [", *(f"    {_quoted(value)}," for value in values), "]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # A string of JSON is one of TOML, apart from the delete character, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class Imported(NamedTuple):
    """A policy that was read from another format."""

    policy: Policy
    left_out: list[str]
    """Headings and files without a counterpart, in order."""


_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(.*)$")
_EXAMPLE = re.compile(r"^[\"“'](.+?)[\"”']\s*(?:->|→|=>|:|=|—|-)?\s*(.*)$")
_KINDS = (
    # In this order: "not violating examples" are examples of what is allowed, and no criteria.
    ("skipped", r"severity|level|action|enforce|penalt|output|format|instruction|label|role\b|task\b|respon"),
    (
        "allowed examples",
        r"(safe|allowed|benign|negative|not? viol|non-viol|excluded).*example|example.*(safe|allowed)",
    ),
    ("examples", r"example"),
    ("allowed", r"safe|allowed|benign|not? viol|non-viol|exclu|exception|permitted|out of scope"),
    ("clauses", r"viol|criteria|prohibit|forbid|disallow|includ|rules|harmful|unsafe|clauses"),
    ("preamble", r"defin|terms|overview|purpose|scope|summary|goal|introduc|background|policy"),
)
_BAD = re.compile(r"\b(1|violat\w*|unsafe|harmful|yes|true|positive)\b", re.IGNORECASE)
_GOOD = re.compile(r"\b(0|safe|allowed|benign|no|false|negative|not?[ -]\w+|non-\w+)\b", re.IGNORECASE)


def import_policy(source: Path) -> Imported:
    """Reads a policy that a guard model is given as Markdown, or the folder of a policy pack.

    Criteria become clauses, categories stay, definitions and exceptions go into the preamble, and examples become
    tests: an example belongs to the clause whose category its section names, else to the first clause.

    Raises:
        BadRequest: There is no policy, or nothing in it is a criterion.
    """
    path = source / "policy.md" if source.is_dir() else source
    try:
        text = path.read_bytes()[:_LONGEST].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(
            f"{path} can't be read: {getattr(error, 'strerror', None) or 'it is no text in UTF-8'}."
        ) from None
    read = _Parts()
    read.take_markdown(text)
    if not read.clauses:
        raise _unusable(
            f"{path} names nothing that is forbidden: a heading such as “Violates” with a list of criteria is missing."
        )
    read.take_data_sets(source / "datasets")
    title = read.title or path.stem
    allowed = [f"Allowed: {' '.join(read.exceptions)}"] if read.exceptions else []
    policy = Policy(
        id=re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")[:128] or "imported",
        version="1",
        preamble=("\n".join([*read.lines, *allowed]) or title)[:10_000],
        targets=("individual", "organization", "community", "society"),
        clauses=tuple(map(read.clause, range(len(read.clauses)))),
    )
    return Imported(policy, read.left_out)


def _unusable(why: str) -> BadRequest:
    return BadRequest(why, reason="BAD_POLICY", field="policy")


@dataclass(slots=True)
class _Parts:
    """Parts of a policy, as far as they are read."""

    title: str = ""
    lines: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    clauses: list[tuple[str, str]] = field(default_factory=list)
    """Category and text."""
    examples: list[tuple[str, str, bool]] = field(default_factory=list)
    """Section or category, text, and True for what is forbidden."""
    left_out: list[str] = field(default_factory=list)

    def clause(self, place: int) -> Clause:
        """Returns a clause with its examples, once all is read: they may stand before the clauses."""
        categories = [category.casefold() for category, _ in self.clauses]
        own = {True: dict[str, None](), False: dict[str, None]()}
        for where, text, forbidden in self.examples:
            named = (at for at, category in enumerate(categories) if category in where.casefold())
            if next(named, 0) == place:
                own[forbidden][text] = None
        category, text = self.clauses[place]
        violates, allows = tuple(own[True]), tuple(own[False])
        return Clause(number=str(place + 1), category=category[:60], text=text[:2000], violates=violates, allows=allows)

    def take_markdown(self, text: str) -> None:
        kind, headings = "preamble", dict[int, str]()
        for line in text.splitlines():
            if heading := _HEADING.match(line):
                level, words = len(heading[1]), heading[2].strip("*_ ")
                headings = {at: name for at, name in headings.items() if at < level} | {level: words}
                if level == 1 and not self.title:
                    self.title = words
                    continue
                # A heading below one of a kind, such as a category below "Violates", is of the same kind.
                found = next((name for name, form in _KINDS if re.search(form, words, re.IGNORECASE)), None)
                kind = found or (kind if any(1 < at < level for at in headings) else "skipped")
                if kind == "skipped":
                    self.left_out.append(words)
                continue
            item = _ITEM.match(line)
            words = (item[1] if item else line).strip()
            if not words or kind == "skipped":
                continue
            here = headings[max(headings)] if headings else ""
            if kind.endswith("examples"):
                self._take_example(here, words, allowed=kind == "allowed examples")
            elif kind == "clauses" and item:
                category = here if len(headings) > 1 and max(headings) > 2 else self.title or "harm"
                bold = re.match(r"\*\*(.+?)\*\*:?\s*(.*)", words)
                self.clauses.append((bold[1].strip(": ") if bold else category, words.replace("**", "")))
            else:
                (self.exceptions if kind == "allowed" else self.lines).append(words)

    def _take_example(self, heading: str, words: str, *, allowed: bool) -> None:
        quoted = _EXAMPLE.match(words)
        label = _side(quoted[2]) if quoted else None
        forbidden = label if label is not None else False if allowed else _side(heading)
        if forbidden is None:
            # Of which side it is nobody says.
            self.left_out.append(f"example below {heading}")
            return
        self.examples.append((heading, quoted[1] if quoted else words, forbidden))

    def take_data_sets(self, folder: Path) -> None:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            taken = list(_labelled(path)) if path.stat().st_size <= _LONGEST else []
            self.examples += taken
            self.left_out += [] if taken else [f"file {path.name}"]


def _labelled(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Yields category, text and side of the labelled rows of a file; nothing of files of other formats."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows: Iterable[object] = ()
        if path.suffix == ".csv":
            rows = csv.DictReader(file)
        elif path.suffix == ".jsonl":
            rows = map(_parsed, file)
        for row in rows:
            if isinstance(row, dict):
                fields = {str(name).casefold(): str(value) for name, value in row.items()}
                content = _first(fields, ("text", "content", "input", "prompt"))
                side = _side(_first(fields, ("label", "expected", "violates")))
                if content.strip() and side is not None:
                    yield fields.get("category", ""), content, side


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _first(fields: dict[str, str], names: Sequence[str]) -> str:
    return next((fields[name] for name in names if name in fields), "")


def _side(words: str) -> bool | None:
    """True for a label of what is forbidden, False for one of what is allowed, None if it says neither."""
    if _GOOD.search(words):
        return False
    return True if _BAD.search(words) else None
