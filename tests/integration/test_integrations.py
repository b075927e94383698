"""Plugins for other moderation tools against the real server; the parts of the tools that a plugin uses are faked."""

import base64
import os
import shutil
import subprocess
import sys
import types
from contextlib import contextmanager

import pytest

from tests.support.http import url_of
from tests.support.paths import ROOT
from tests.support.server import HARMFUL, HARMLESS, drawn

INTEGRATIONS = ROOT / "integrations"


@pytest.fixture
def court(start):
    return url_of(start(None, "--http", "127.0.0.1:0").ready())


def data_address(picture):
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def test_coop_plugin_gets_verdicts(court):
    if not shutil.which("node"):
        pytest.skip("Node is not installed")
    environment = {**os.environ, "MEMECOURT_URL": court, "MEMECOURT_PICTURE": data_address(drawn(*HARMLESS))}
    result = subprocess.run(
        ["node", "--test"], cwd=INTEGRATIONS / "coop", env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "# pass 4" in result.stdout


class ExpectedUdfError(Exception):
    """A fake of Osprey's ExpectedUdfException, which rules read as null."""


@contextmanager
def osprey():
    """Installs fakes of the Osprey modules that the plugin imports; Osprey is on no package index."""

    class UDFBase:
        def __class_getitem__(cls, _):
            return cls

    modules = {
        "osprey.engine.executor.execution_context": {
            "ExecutionContext": object,
            "ExpectedUdfException": ExpectedUdfError,
        },
        "osprey.engine.udf.arguments": {"ArgumentsBase": type("ArgumentsBase", (), {})},
        "osprey.engine.udf.base": {"UDFBase": UDFBase},
        "osprey.worker.adaptor.plugin_manager": {"hookimpl_osprey": lambda hook: hook},
    }
    before, path = set(sys.modules), list(sys.path)
    for name, members in modules.items():
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


def test_osprey_functions_get_verdicts(court, monkeypatch):
    monkeypatch.setenv("MEMECOURT_URL", court)
    with osprey():
        from memecourt_osprey.plugin import MemeArguments, register_udfs

        def call(function, **values):
            arguments = MemeArguments()
            for name, value in values.items():
                setattr(arguments, name, value)
            return function().execute(None, arguments)

        decision, score = register_udfs()
        harmful = {"image_url": data_address(drawn(*HARMFUL)), "text": HARMFUL[1], "namespace": "forum"}
        assert call(decision, **harmful) in ("block", "review")
        assert call(score, **harmful) > 0.5
        assert call(decision, text="the printer jams on monday") in ("allow", "block", "review"), (
            "a text without a picture"
        )
        for refused in ({}, {"image_url": "https://not-listed.example.org/meme.png"}):
            with pytest.raises(ExpectedUdfError, match="gave no verdict"):
                call(decision, **refused)
        monkeypatch.setenv("MEMECOURT_URL", "http://127.0.0.1:1")
        with pytest.raises(ExpectedUdfError, match="can't be reached"):
            call(score, **harmful)
