"""The check of names and docstrings that `make lint` runs: it reports each fault exactly once."""

import ast

from scripts.plain_words import faults, name_faults

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
