"""A batch job on a Ray cluster compared with the same job in one process; and with a worker killed.

``memecourt-eval run`` judges synthetic memes by ``summary``: in a single process, then on a cluster of two workers on
this machine, then on that cluster with one of the workers killed (SIGKILL) when half of the memes are judged. Each of
the three is timed from the start of the process to its end, and from the first meme to the last: on a small machine,
Ray's startup is most of the difference. Memes that the killed job lost, has twice, or judged differently from the job
in one process are counted.

All three share this machine's processors, so more nodes do not make it faster; that takes a cluster of several
machines. This benchmark measures the cost of Ray.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.perf.batch import OutputLines
from eval.perf.bench import Result
from eval.perf.ray_nodes import RayNodes, ray_nodes
from eval.runs.folder import PREDICTIONS, RunFolder
from eval.runs.prediction import Prediction
from eval.synthetic.make import Layout, make

_WORKERS = 2
_PRECEDENTS = 40
_PICTURE = (160, 120)  # pixels; small, because decoding speed is not measured here
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Times of a job, in seconds.

    Attributes:
        wall_s: From the start of its process to its end.
        judging_s: From its first prediction to its last.
    """

    wall_s: float
    judging_s: float


def batch_ray(*, memes: int = 2000) -> Result:
    """Runs the benchmark. Raises RuntimeError if a job ends with an error or the cluster does not start."""
    with TemporaryDirectory(prefix="memecourt-ray-batch-") as directory, ray_nodes(1, processors=_WORKERS) as cluster:
        return compare_jobs(cluster, Path(directory), memes)


def compare_jobs(cluster: RayNodes, place: Path, memes: int) -> Result:
    """Runs the three jobs in an existing directory. Raises RuntimeError as above."""
    # Once for all three, so that they judge the very same memes.
    make(place / "data", Layout.HARMEME, train=_PRECEDENTS, val=4, test=memes, size=_PICTURE)
    on_cluster = ("--ray", cluster.address, "--ray-workers", str(_WORKERS))
    here = _run(place / "here", os.environ, ())
    there = _run(place / "there", cluster.env, on_cluster)
    killed = _run(place / "killed", cluster.env, on_cluster, _Killer(cluster, memes // 2))
    predictions = _predictions(place / "here")
    figures: dict[str, float] = {
        "ray_over_here": there.wall_s / here.wall_s,
        "ray_judging_over_here": there.judging_s / max(here.judging_s, _POLL_S),
        "killed_over_ray": killed.wall_s / there.wall_s,
        "here_s": here.wall_s,
        "ray_s": there.wall_s,
        "here_judging_s": here.judging_s,
        "ray_judging_s": there.judging_s,
    }
    counts: dict[str, float] = {}
    for name in ("there", "killed"):
        found = _predictions(place / name)
        # Compared with the number generated, and not with the first job, which may have lost some too.
        counts[f"{name}_lost"] = memes - len(found)
        counts[f"{name}_twice"] = sum(len(each) - 1 for each in found.values())
        counts[f"{name}_differ"] = sum(found[meme] != predictions[meme] for meme in predictions.keys() & found.keys())
    return Result(figures=figures | counts, goals=dict.fromkeys(counts, "== 0"))


@dataclass(slots=True)
class _Killer:
    """Kills a worker of a cluster once a number of memes is judged.

    Attributes:
        done: True once it has killed a worker.
    """

    cluster: RayNodes
    after: int
    done: bool = False

    def __call__(self, judged: int) -> None:
        """Receives the number of memes judged so far."""
        # At half time, when all workers are judging; only once, or the job would never end.
        if not self.done and judged >= self.after:
            os.kill(self.cluster.workers()[0], signal.SIGKILL)
            self.done = True


def _run(out: Path, environment: Mapping[str, str], options: Sequence[str], killer: _Killer | None = None) -> JobTimes:
    log = out.with_name(f"{out.name}.log")
    command = [
        sys.executable,
        "-m",
        "eval",
        "run",
        "--dataset",
        "synthetic-harmeme",
        "--data",
        str(out.parent / "data"),
    ]
    command += ["--out", str(out), "--procedure", "summary", *options]
    lines = OutputLines(out / PREDICTIONS)
    judged, first, last = 0, 0.0, 0.0
    with log.open("wb") as log_file:
        began = time.perf_counter()
        # A separate home directory for each, so that none finds precedents that another has prepared.
        env = {**environment, "MEMECOURT_HOME": str(out.with_name(f"home-{out.name}"))}
        process = subprocess.Popen(command, stdout=log_file, stderr=log_file, env=env)
        try:
            while process.poll() is None:
                # Read from the output file, as a user waiting for the job would see it.
                before, judged, now = judged, lines.count(), time.perf_counter()
                if judged != before:
                    first, last = first or now, now
                if killer is not None:
                    killer(judged)
                time.sleep(_POLL_S)
            wall = time.perf_counter() - began
        finally:
            process.kill()
            process.wait()
    # A kill that came too late would measure nothing and look like a success.
    if process.returncode or (killer is not None and not killer.done):
        what = f"exit code {process.returncode}" if process.returncode else "no worker killed"
        raise RuntimeError(f"The job {out.name} ended with {what}:\n{log.read_text('utf-8', 'replace')[-2000:]}")
    return JobTimes(wall, last - first)


def _predictions(out: Path) -> dict[str, list[Prediction]]:
    """Returns predictions by meme, without the fields that are specific to a run."""
    found: dict[str, list[Prediction]] = {}
    for one in RunFolder(out).predictions():
        found.setdefault(one.meme, []).append(one.model_copy(update={"trial": "", "cost": None}))
    return found
