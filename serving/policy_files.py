"""Policy files: faults that the format allows, policies that others wrote, and the file of a policy."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass(slots=True)
class Imported:
    """A policy that was read from another format."""

    policy: Policy
    left_out: list[str] = field(default_factory=list)
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
        raise BadRequest(
            f"{path} can't be read: {getattr(error, 'strerror', None) or 'it is no text in UTF-8'}.",
            reason="BAD_POLICY",
            field="policy",
        ) from None
    read = _read_markdown(text)
    if not read.clauses:
        raise BadRequest(
            f"{path} names nothing that is forbidden: a heading such as “Violates” with a list of criteria is missing.",
            reason="BAD_POLICY",
            field="policy",
        )
    if source.is_dir():
        read.take_data_sets(source / "datasets")
    title = read.title or path.stem
    return Imported(
        Policy(
            id=re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")[:128] or "imported",
            version="1",
            preamble=(read.preamble() or title)[:10_000],
            targets=("individual", "organization", "community", "society"),
            clauses=tuple(
                Clause(
                    number=str(number),
                    category=each.category[:60],
                    text=each.text[:2000],
                    violates=tuple(dict.fromkeys(each.violates)),
                    allows=tuple(dict.fromkeys(each.allows)),
                )
                for number, each in enumerate(read.clauses, 1)
            ),
        ),
        read.left_out,
    )


@dataclass(slots=True)
class _ImportedClause:
    category: str
    text: str
    violates: list[str] = field(default_factory=list)
    allows: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Markdown:
    """Parts of a policy in Markdown, as far as they are read."""

    title: str = ""
    clauses: list[_ImportedClause] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    examples: list[tuple[str, str, bool]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def preamble(self) -> str:
        allowed = [f"Allowed: {' '.join(self.exceptions)}"] if self.exceptions else []
        return "\n".join([*self.lines, *allowed])

    def take_example(self, heading: str, text: str, forbidden: bool) -> None:
        named = (each for each in self.clauses if each.category.casefold() in heading.casefold())
        clause = next(named, self.clauses[0])
        (clause.violates if forbidden else clause.allows).append(text)

    def take_data_sets(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            taken = 0
            if path.suffix in (".csv", ".jsonl") and path.stat().st_size <= _LONGEST:
                for row in _rows(path):
                    fields = {str(name).casefold(): str(value) for name, value in row.items()}
                    content = next(
                        (fields[name] for name in ("text", "content", "input", "prompt") if name in fields), ""
                    )
                    label = next((fields[name] for name in ("label", "expected", "violates") if name in fields), "")
                    side = _side(label)
                    if content.strip() and side is not None:
                        self.take_example(fields.get("category", ""), content, side)
                        taken += 1
            if path.is_file() and not taken:
                self.left_out.append(f"file {path.name}")


def _first(fields: dict[str, str], *names: str) -> str:
    return next((fields[name] for name in names if name in fields), "")


def _rows(path: Path) -> Iterator[dict[str, object]]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
            return
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _side(words: str) -> bool | None:
    """True for a label of what is forbidden, False for one of what is allowed, None if it says neither."""
    if _GOOD.search(words):
        return False
    return True if _BAD.search(words) else None


def _read_markdown(text: str) -> _Markdown:
    read, kind, headings = _Markdown(), "preamble", dict[int, str]()
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            level, words = len(heading[1]), heading[2].strip("*_ ")
            headings = {at: name for at, name in headings.items() if at < level} | {level: words}
            if level == 1 and not read.title:
                read.title = words
                continue
            # A heading below one of a kind, such as a category below "Violates", is of the same kind.
            found = next((name for name, form in _KINDS if re.search(form, words, re.IGNORECASE)), None)
            above = next((name for at, name in sorted(headings.items(), reverse=True) if 1 < at < level), "")
            kind = found or (kind if above else "skipped")
            if kind == "skipped":
                read.left_out.append(words)
            continue
        words = (item[1] if (item := _ITEM.match(line)) else line).strip()
        if not words or kind == "skipped":
            continue
        here = headings[max(headings)] if headings else ""
        if kind.endswith("examples"):
            _take_example(read, here, words, allowed=kind == "allowed examples")
        elif kind == "clauses":
            if item:
                category = here if len(headings) > 1 and max(headings) > 2 else read.title or "harm"
                bold = re.match(r"\*\*(.+?)\*\*:?\s*(.*)", words)
                read.clauses.append(_ImportedClause(bold[1].strip(": ") if bold else category, words.replace("**", "")))
            else:
                read.lines.append(words)
        elif kind == "allowed":
            read.exceptions.append(words)
        else:
            read.lines.append(words)
    # At the end, as examples may stand before the clauses that they belong to.
    for above, example, forbidden in read.examples if read.clauses else ():
        read.take_example(above, example, forbidden)
    return read


def _take_example(read: _Markdown, heading: str, words: str, *, allowed: bool) -> None:
    quoted = _EXAMPLE.match(words)
    label = _side(quoted[2]) if quoted else None
    forbidden = label if label is not None else False if allowed else _side(heading)
    if forbidden is None:
        # Of which side it is nobody says.
        read.left_out.append(f"example below {heading}")
        return
    read.examples.append((heading, quoted[1] if quoted else words, forbidden))
