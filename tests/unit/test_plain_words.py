"""The check of names and docstrings that `make lint` runs: it reports each fault exactly once."""

import ast

from scripts.plain_words import MOST_DOOR_WORDS, door_pages, faults, name_faults, page_faults, paragraphs
from tests.support.paths import ROOT

NESTED = """
def outer(told):
    kept = 1
    def inner(held):
        said = lambda asked: asked
    class Local:
        def method(self, heard):
            given: int = 2
"""


def test_vague_names_are_reported_once_at_any_depth():
    found = list(name_faults({"a.py": ast.parse(NESTED)}))
    assert sorted(found) == [
        f"a.py:{line}: the name {name} is vague"
        for line, name in [(2, "told"), (3, "kept"), (4, "held"), (5, "asked"), (5, "said"), (7, "heard"), (8, "given")]
    ]


DESCRIBED = '''
def outer(first):
    """Opens.

    Args:
        first: Whether so.
    """
    def inner():
        """What it is."""
'''


def test_vague_openings_of_docstrings_and_descriptions_are_reported_once():
    found = sorted(faults("a.py", ast.parse(DESCRIBED)))
    assert found == ["a.py:2: first: Whether so.", "a.py:8: What it is."]


PAGE = """# A heading that is not counted

```console
$ not --a sentence
```

| no | table |
|---|---|

Short is [good](not-a-word.md). `not code` is one word.

- An item is a paragraph.
"""


def test_paragraphs_are_a_page_without_code_tables_and_headings():
    assert list(paragraphs(PAGE)) == ["Short is good. `code` is one word.", "An item is a paragraph."]
    assert list(page_faults("a.md", PAGE)) == []


def test_each_bound_of_a_page_is_reported():
    long = "Word " + " ".join(["word"] * 40) + ". "
    found = list(page_faults("a.md", f"{long * 3}\n\nIt is not so.\n"))
    assert [fault.partition(": ")[2].partition(" of ")[0] for fault in found] == [
        "31.8 words a sentence, more than 18",
        "25%",
        *["a sentence"] * 3,
        "a paragraph",
    ]


def test_start_and_doors_stay_within_their_words():
    pages = door_pages()
    assert {"README.md", "docs/tutorial.md", "docs/engineer.md", "docs/reviewer.md"} < pages and len(pages) > 30
    assert sum(len((ROOT / page).read_text("utf-8").split()) for page in pages) <= MOST_DOOR_WORDS
