"""Tests of the Ray cluster used by the benchmark and the slow tests: a head that does not start is retried
elsewhere.
"""

import sys
from pathlib import Path

import pytest

from eval.perf import ray_nodes

# A stand-in for Ray: logs where it was to listen, then reports that it is up or exits, as configured for this start.
NODE = """
import os, pathlib, sys, time
log = pathlib.Path(os.environ["NODE_LOG"])
turn = log.read_text().count("\\n") if log.exists() else 0
with log.open("a") as file:
    print(os.environ["TMPDIR"], *sys.argv[1:], file=file)
if os.environ["NODE_TURNS"][turn] == "-":
    sys.exit("the store of state gave no answer")
print("Ray runtime started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """Sets how each start ends (`-` for a failure) and returns a function that reads the lines logged so far."""
    log = tmp_path / "starts"
    monkeypatch.setenv("NODE_LOG", str(log))
    monkeypatch.setattr(ray_nodes, "_RAY", (sys.executable, "-c", NODE))

    def with_turns(turns):
        monkeypatch.setenv("NODE_TURNS", turns)
        return lambda: log.read_text().splitlines()

    return with_turns


def test_cluster_is_restarted_elsewhere_when_its_head_fails_to_start(starts, caplog):
    lines = starts("-++")
    with ray_nodes.ray_nodes(2) as cluster:
        first, second, third = lines()
        assert cluster.env["TMPDIR"] not in first
        assert first.split("--port=")[1].split()[0] != second.split("--port=")[1].split()[0]
        assert f"--address={cluster.address}" in third
        assert len(cluster.nodes) == 2
    assert "the store of state gave no answer" in caplog.text
    assert not cluster.place.exists()
    assert all(node.returncode is not None for node in cluster.nodes)


def test_cluster_that_never_starts_reports_node_output_and_leaves_no_files(starts):
    lines = starts("---")
    with pytest.raises(ray_nodes.NodeDown, match="the store of state gave no answer"), ray_nodes.ray_nodes(1):
        pytest.fail("no node came up")
    assert len(lines()) == 3
    assert not any(Path(line.split()[0]).exists() for line in lines())
