"""The cluster of the benchmark and of the slow tests: a node that does not come up is started anew, elsewhere."""

import sys
from pathlib import Path

import pytest

from eval.perf import ray_nodes

# In place of Ray: it says that it is up, or ends, as its turn has it, and writes down where it was to listen.
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
    """Sets how the starts end, `-` for one that fails, and tells the lines that they have written."""
    log = tmp_path / "starts"
    monkeypatch.setenv("NODE_LOG", str(log))
    monkeypatch.setattr(ray_nodes, "_RAY", (sys.executable, "-c", NODE))

    def with_turns(turns):
        monkeypatch.setenv("NODE_TURNS", turns)
        return lambda: log.read_text().splitlines()

    return with_turns


def test_a_cluster_whose_head_did_not_come_up_is_started_anew_elsewhere(starts):
    lines = starts("-++")
    with ray_nodes.ray_nodes(2) as cluster:
        first, second, third = lines()
        assert cluster.env["TMPDIR"] not in first
        assert first.split("--port=")[1].split()[0] != second.split("--port=")[1].split()[0]
        assert f"--address={cluster.address}" in third
        assert len(cluster.nodes) == 2
    assert not cluster.place.exists()
    assert all(node.returncode is not None for node in cluster.nodes)


def test_a_cluster_that_never_comes_up_says_what_its_node_wrote_and_leaves_nothing(starts):
    lines = starts("---")
    with pytest.raises(ray_nodes.NodeDown, match="the store of state gave no answer"), ray_nodes.ray_nodes(1):
        pytest.fail("no node came up")
    assert len(lines()) == 3
    assert not any(Path(line.split()[0]).exists() for line in lines())
