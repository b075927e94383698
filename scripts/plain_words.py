"""Checks the words of code and pages: openings of docstrings, names, the share of comments, and lengths of sentences.

A first line such as "What came of it." tells nothing, and "Of the meme." only beside the name that it explains. Neither
does a name such as ``told`` or ``kept``, or one that three classes share. Tests are held to the same words.

    python scripts/plain_words.py [PATH ...]    # files or folders, .py or .md; all of the project if none is named
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("court", "retrieval", "serving", "eval", "proto/memecourt", "scripts", "tests")
OPENING = re.compile(
    r"(?:what|whether|whose|whom|who|how|where|when|those|these|of|it|nobody|nothing|none|each|as|by|for|with|so|such)\b",
    re.IGNORECASE,
)
"""Words that no docstring begins with."""
ENTRY = re.compile(r"^\s+(?P<name>\w+(?: \([^)]*\))?): (?P<text>\S.*)$")
"""A line of a section such as Args, Attributes or Raises."""
FRAGMENT = re.compile(r"(?:Of|That|What|Whether|Who|Whose|How|Where|When|Those|As|By|It|For|With|So)\b")
"""Words that no description of an argument, attribute or error begins with."""

VAGUE = re.compile(
    r"(?<![a-z])(?:told|said|telling|asked|asking|heard|given|kept|held|seen|lately|untold|unneeded|nobody|whose|tally|"
    r"rests?|looks?|near(?!_(?:duplicate|meme))|alike|twin)(?![a-z])"
)
"""Words in a name that leave open who did what to what."""
VAGUE_VARIABLES = {"told", "said", "asked", "heard", "given", "kept", "held"}
"""Names of arguments and variables likewise; fields keep theirs where they are stored under them."""
STORED_NAMES = {"court/events.py", "court/precedents.py"}
"""Files whose classes are named as the records that stand in dockets name them."""
TEST_OPENING = re.compile(r"test_(?:what|whatever|whether|whose|whom|who|whoever|it|nobody|nothing|none|such)_")
"""Openings of a test's name that hide its subject."""
MOST_CLASSES = 2
"""Classes at most that share a name. Tests may share theirs: a fake is read in the file that uses it."""
LEAST_COMMENTS = 5.0
"""Comments at least on 100 lines that are not blank, in the product's own folders."""
PRODUCT = ("court/", "retrieval/", "serving/", "eval/", "proto/")

MEAN_SENTENCE, LONGEST_SENTENCE, LONGEST_PARAGRAPH, NEGATED = 18, 40, 90, 0.2
"""Words of a page's mean and longest sentence and of its longest paragraph; share of its sentences with a negation."""
MOST_WORDS, MOST_DOOR_WORDS = 45_000, 25_000
"""Words of all pages of ``docs/`` together, and of the start (README, tutorial) with the pages of the three doors."""
DOORS = ("Engineer", "Reviewer and auditor", "Researcher")
"""Groups of the navigation (``zensical.toml``) whose pages people read to do something."""
NEGATION = re.compile(
    r"(?<!non-)\b(?:not(?! harmful)|no|never|none|nobody|nothing|nor|neither|cannot|\w+n't)\b", re.IGNORECASE
)
"""Words that deny. "Not harmful" is a label."""
SENTENCE_END = re.compile(r"(?<=[.!?])[)*_”\"]*\s+(?=[\"“(*`\[A-Z0-9])")


def name_faults(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Yields a line for each vague name of a class or function, and for each name that too many classes share."""
    classes = defaultdict(list)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(node, ast.ClassDef) and not file.startswith("tests/"):
                classes[node.name.lstrip("_")].append(f"{file}:{node.lineno}")
            if file not in STORED_NAMES and VAGUE.search(re.sub(r"([a-z])([A-Z])", r"\1_\2", node.name).lower()):
                yield f"{file}:{node.lineno}: the name {node.name} is vague"
            elif TEST_OPENING.match(node.name):
                yield f"{file}:{node.lineno}: the name {node.name} does not begin with its subject"
            if not isinstance(node, ast.ClassDef):
                yield from (f"{file}:{line}: the name {name} is vague" for line, name in vague_variables(node))
    for name, places in classes.items():
        if len(places) > MOST_CLASSES:
            yield f"{', '.join(places)}: {len(places)} classes are named {name}"


def vague_variables(place: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and name of each vaguely named argument and variable of a function, without the functions in it."""
    for node in ast.iter_child_nodes(place):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue  # its variables are reported in its own turn
        if isinstance(node, ast.arg) and node.arg in VAGUE_VARIABLES:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_VARIABLES:
            yield node.lineno, node.id
        yield from vague_variables(node)


def comment_share(texts: Iterator[str]) -> float:
    """Returns the number of comments on 100 lines that are not blank."""
    comments = lines = 0
    for text in texts:
        comments += sum(
            token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline)
        )
        lines += sum(1 for line in text.splitlines() if line.strip())
    return 100 * comments / max(lines, 1)


def faults(file: str, tree: ast.Module) -> Iterator[str]:
    """Yields a line for each docstring and each description in a file that opens so."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (ast.get_docstring(node) or "").splitlines()
        place = f"{file}:{getattr(node, 'lineno', 1)}"
        if lines and OPENING.match(lines[0].lstrip("`*")):
            yield f"{place}: {lines[0]}"
        for line in lines:
            entry = ENTRY.match(line)
            if entry and FRAGMENT.match(entry["text"]):
                yield f"{place}: {line.strip()}"


def paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs and items of lists of a page, without code, tables, headings and addresses of links."""
    text = re.sub(
        r"^```.*?^```$|^---\n.*?^---$|<!--.*?-->|^#.*?$|^\|.*?$|^    \S.*?$", "\n", text, flags=re.MULTILINE | re.DOTALL
    )
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\s*(?:[-*>]|\d+\.)\s+", "\n\n", text, flags=re.MULTILINE)
    # What is quoted from a program counts as one word.
    text = re.sub(r"`[^`]+`", "`code`", text)
    yield from filter(None, (" ".join(part.split()) for part in text.split("\n\n")))


def documentation() -> list[Path]:
    """Returns the hand-written pages of ``docs/``."""
    return sorted(page for page in (ROOT / "docs").rglob("*.md") if "node_modules" not in page.parts)


def door_pages() -> set[str]:
    """Returns the pages of the start and of the three doors, as the site's navigation groups them."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    groups = {title: pages for group in nav for title, pages in group.items()}
    # Looked up and not searched for: a door of another name ends the check.
    listed = {f"docs/{page}" for door in DOORS for entry in groups[door] for page in entry.values()}
    return {"README.md", "docs/tutorial.md", *listed}


def page_faults(file: str, text: str) -> Iterator[str]:
    """Yields a line for each bound that a page does not hold."""
    parts = list(paragraphs(text))
    sentences = [sentence for part in parts for sentence in SENTENCE_END.split(part) if len(sentence.split()) > 1]
    if not sentences:
        return
    mean = sum(len(sentence.split()) for sentence in sentences) / len(sentences)
    negated = sum(bool(NEGATION.search(sentence)) for sentence in sentences) / len(sentences)
    if mean > MEAN_SENTENCE:
        yield f"{file}: {mean:.1f} words a sentence, more than {MEAN_SENTENCE}"
    if negated > NEGATED:
        yield f"{file}: {negated:.0%} of the sentences deny something, more than {NEGATED:.0%}"
    for bound, kind, texts in ((LONGEST_SENTENCE, "sentence", sentences), (LONGEST_PARAGRAPH, "paragraph", parts)):
        yield from (
            f"{file}: a {kind} of {len(one.split())} words, more than {bound}: {one[:60]}…"
            for one in texts
            if len(one.split()) > bound
        )


def main(places: list[str]) -> None:
    """Ends with 1 and the lines where there are any."""
    chosen = [Path(place).resolve() for place in places] or [ROOT / folder for folder in FOLDERS]
    found_files = (sorted(place.rglob("*.py")) if place.is_dir() else [place] for place in chosen)
    paths = [path for files in found_files for path in files if path.suffix == ".py" and "_pb2" not in path.name]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    found = [fault for file, tree in trees.items() for fault in faults(file, tree)] + list(name_faults(trees))
    pages = [path for path in chosen if path.suffix == ".md"] if places else [ROOT / "README.md", *documentation()]
    words = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in pages}
    found += [fault for page, text in words.items() for fault in page_faults(page, text)]
    if (total := sum(len(text.split()) for page, text in words.items() if page.startswith("docs/"))) > MOST_WORDS:
        found.append(f"{total} words in docs/, more than {MOST_WORDS}")
    doors = door_pages()
    if (total := sum(len(text.split()) for page, text in words.items() if page in doors)) > MOST_DOOR_WORDS:
        found.append(f"{total} words in the start and the three doors, more than {MOST_DOOR_WORDS}")
    share = comment_share(text for file, text in texts.items() if file.startswith(PRODUCT))
    if not places and share < LEAST_COMMENTS:
        found.append(f"{share:.2f} comments on 100 lines, fewer than {LEAST_COMMENTS:g}: say why, not what")
    if found:
        sys.exit("\n".join([*found, "How to write: CONTRIBUTING.md, section Habits."]))


if __name__ == "__main__":
    main(sys.argv[1:])
