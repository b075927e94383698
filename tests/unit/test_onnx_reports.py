"""onnxruntime's telemetry: processes of the court disable it, and leave no user id behind."""

import os
import re
import subprocess
import sys

import pytest

from court.backends.ocr.reader import rapidocr_reader
from court.backends.onnx import NO_REPORTS, import_onnxruntime
from tests.support.paths import ROOT


def test_importing_onnxruntime_writes_nothing_into_the_user_s_home(tmp_path):
    # onnxruntime disables telemetry by itself if it detects continuous integration.
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


def test_operator_can_enable_telemetry(monkeypatch):
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    import_onnxruntime()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_text_reading_workers_start_with_telemetry_disabled():
    assert rapidocr_reader()._workers._guard.environment.items() >= NO_REPORTS.items()


@pytest.mark.parametrize("folder", ["court", "retrieval", "serving", "eval"])
def test_modules_import_onnxruntime_only_through_the_wrapper(folder):
    """RapidOCR imports it too, in the workers above."""
    direct = re.compile(
        r"^\s*(?:import|from) (?:onnxruntime|rapidocr)\b|import_module\(\"(?:onnxruntime|rapidocr)", re.M
    )
    found = {path for path in (ROOT / folder).rglob("*.py") if direct.search(path.read_text())}
    names = ("court/backends/onnx.py", "court/backends/ocr/worker.py")
    assert found <= {ROOT / name for name in names}
