"""onnxruntime reports to its makers by itself; in processes of the court it does not, and leaves no id of the user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from court.backends.ocr.reader import rapidocr_reader
from court.backends.onnx import NO_REPORTS, import_onnxruntime

ROOT = Path(__file__).parents[2]


def test_a_process_that_imports_it_leaves_nothing_in_the_home_of_its_user(tmp_path):
    # It is silent by itself where it takes a machine for one of continuous integration.
    plain = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    code = "from court.backends.onnx import import_onnxruntime; print(import_onnxruntime().__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**plain, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.match(r"\d+\.\d+", done.stdout) and not done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_operator_who_wants_the_reports_has_them(monkeypatch):
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    import_onnxruntime()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_workers_that_read_text_are_started_so():
    assert rapidocr_reader()._workers._guard.environment.items() >= NO_REPORTS.items()


@pytest.mark.parametrize("folder", ["court", "retrieval", "serving", "eval"])
def test_no_module_imports_it_otherwise(folder):
    """RapidOCR imports it too: in the workers above, and in a benchmark that runs it without them."""
    direct = re.compile(
        r"^\s*(?:import|from) (?:onnxruntime|rapidocr)\b|import_module\(\"(?:onnxruntime|rapidocr)", re.M
    )
    found = {path for path in (ROOT / folder).rglob("*.py") if direct.search(path.read_text())}
    names = ("court/backends/onnx.py", "court/backends/ocr/engine.py", "eval/perf/reading/reading.py")
    assert found <= {ROOT / name for name in names}
