"""Tests of exclusive use of arena and probe folders: one process at a time, and no folders with other files."""

import pytest

from court.errors import BadRequest
from eval.runs.sole_use import LOCK, refuse_others, sole_use


def test_folder_is_used_by_one_process_at_a_time(tmp_path):
    out = tmp_path / "deep" / "arena"
    with sole_use(out, "arena"):
        with pytest.raises(BadRequest, match="Another process is at the arena") as caught, sole_use(out, "arena"):
            pass
        assert caught.value.reason == "RUN_IN_USE"
    with sole_use(out, "arena"):
        assert (out / LOCK).exists()


def test_folder_with_other_files_is_refused(tmp_path):
    refuse_others(tmp_path / "missing", "probe")
    (tmp_path / LOCK).touch()
    refuse_others(tmp_path, "probe")
    (tmp_path / "calls.sqlite").touch()
    refuse_others(tmp_path, "probe", {LOCK, "calls.sqlite"})
    with pytest.raises(BadRequest, match="is not empty and holds no probe") as caught:
        refuse_others(tmp_path, "probe")
    assert caught.value.reason == "OUT_NOT_EMPTY"
