"""Acceptance of any model server: it starts, every event is there, and nearly all replies are usable."""

import asyncio
import os
from contextlib import nullcontext

import pytest

from scripts import demo_full
from tests.support.live_trials import try_drawn_memes

URL, MODEL = (os.environ.get(f"MEMECOURT_LIVE_{name}", "") for name in ("URL", "MODEL"))


@pytest.mark.skipif(not MODEL, reason="MEMECOURT_LIVE_MODEL names no model")
def test_full_trials_at_a_real_model(tmp_path):
    key = os.environ.get("MEMECOURT_LIVE_KEY", "")
    with nullcontext((URL, MODEL, key)) if URL else demo_full.served(MODEL) as (url, name, its_key):
        tried = asyncio.run(try_drawn_memes(url, name, its_key, tmp_path))
    print(tried.report)
    assert tried.faults == []
