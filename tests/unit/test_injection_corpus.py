"""PI-1 to PI-3 with what others have collected: jailbreaks and injections, by ``scripts/fetch_injections.py``."""

import json
import os

import pytest

from scripts.fetch_injections import STRINGS
from tests.unit.test_injections import swept

pytestmark = pytest.mark.corpus


@pytest.fixture(scope="module")
def strings():
    if STRINGS.is_file():
        return json.loads(STRINGS.read_text())
    missing = "the injections of others are not here: run python scripts/fetch_injections.py"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)  # a check that may skip itself where it counts is none
    pytest.skip(missing)


@pytest.mark.slow
def test_pi_1_to_3_hold_for_the_injections_of_others(strings):
    assert len(strings) > 1000
    checked, wrong = swept((f"string {number}", text[:10_000]) for number, text in enumerate(strings))
    assert checked > 40_000
    # By number only: their words are not for a log.
    assert {promise: [where[:1] + where[2:4] for where in found] for promise, found in wrong.items() if found} == {}
