"""Plugins of other moderation tools, against the real server; of the tools, what a plugin touches is stood in for."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import types
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.test_http import url_of
from tests.integration.test_server import HARMFUL, HARMLESS, drawn

pytestmark = [pytest.mark.integration, pytest.mark.slow]

INTEGRATIONS = Path(__file__).parents[2] / "integrations"


@pytest.fixture
def court(start):
    return url_of(start(None, "--http", "127.0.0.1:0").ready())


def data_address(picture):
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def test_the_plugin_for_coop_asks_a_court(court):
    if not shutil.which("node"):
        pytest.skip("there is no Node here")
    environment = {**os.environ, "MEMECOURT_URL": court, "MEMECOURT_PICTURE": data_address(drawn(*HARMLESS))}
    done = subprocess.run(
        ["node", "--test"], cwd=INTEGRATIONS / "coop", env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 4" in done.stdout


class ExpectedUdfError(Exception):
    """Stands in for Osprey's ExpectedUdfException, which rules read as null."""


@contextmanager
def osprey():
    """What the plugin imports of Osprey, which is on no index."""

    class UDFBase:
        def __class_getitem__(cls, _):
            return cls

    parts = {
        "osprey.engine.executor.execution_context": {
            "ExecutionContext": object,
            "ExpectedUdfException": ExpectedUdfError,
        },
        "osprey.engine.udf.arguments": {"ArgumentsBase": type("ArgumentsBase", (), {})},
        "osprey.engine.udf.base": {"UDFBase": UDFBase},
        "osprey.worker.adaptor.plugin_manager": {"hookimpl_osprey": lambda hook: hook},
    }
    before, path = set(sys.modules), list(sys.path)
    for name, members in parts.items():
        for end in range(1, name.count(".") + 2):
            package = ".".join(name.split(".")[:end])
            sys.modules.setdefault(package, types.ModuleType(package))
        vars(sys.modules[name]).update(members)
    sys.path.insert(0, str(INTEGRATIONS / "osprey" / "src"))
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("osprey", "memecourt_osprey"):
                del sys.modules[name]


def test_the_functions_for_osprey_ask_a_court(court, monkeypatch):
    monkeypatch.setenv("MEMECOURT_URL", court)
    with osprey():
        from memecourt_osprey.plugin import MemeArguments, register_udfs

        def asked(function, **given):
            arguments = MemeArguments()
            for name, value in given.items():
                setattr(arguments, name, value)
            return function().execute(None, arguments)

        decision, score = register_udfs()
        harmful = {"image_url": data_address(drawn(*HARMFUL)), "text": HARMFUL[1], "namespace": "forum"}
        assert asked(decision, **harmful) in ("block", "review")
        assert asked(score, **harmful) > 0.5
        assert asked(decision, text="the printer jams on monday") in ("allow", "block", "review"), "a text alone"
        for refused in ({}, {"image_url": "https://not-listed.example.org/meme.png"}):
            with pytest.raises(ExpectedUdfError, match="gave no verdict"):
                asked(decision, **refused)
        monkeypatch.setenv("MEMECOURT_URL", "http://127.0.0.1:1")
        with pytest.raises(ExpectedUdfError, match="can't be reached"):
            asked(score, **harmful)
