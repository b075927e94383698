"""PI-1 to PI-3 with public collections of jailbreaks and injections, from ``scripts/fetch_injections.py``."""

import json
import os

import pytest

from scripts.fetch_injections import STRINGS
from tests.support.injections_shared import sweep_texts
from tests.support.sizes import FULL

pytestmark = pytest.mark.corpus


@pytest.fixture(scope="module")
def strings():
    if STRINGS.is_file():
        return json.loads(STRINGS.read_text())
    missing = "the public injection strings are missing: run python scripts/fetch_injections.py"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)  # in CI, a skipped check would go unnoticed
    pytest.skip(missing)


def shortened(text):
    """Returns both ends of a long text, where orders stand: all of it would take five minutes."""
    return text[:10_000] if FULL or len(text) <= 2000 else f"{text[:1000]}\n{text[-1000:]}"


@pytest.mark.slow
def test_pi_1_to_3_hold_for_public_injection_strings(strings):
    assert len(strings) > 1000
    texts = ((f"string {number}", shortened(text)) for number, text in enumerate(strings))
    checked, wrong = sweep_texts(texts, share=7)
    assert checked > (40_000 if FULL else 8_000)
    # By number only: the strings must not appear in logs.
    assert {promise: [where[:1] + where[2:4] for where in found] for promise, found in wrong.items() if found} == {}
