import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from court.backends.sandbox import process as worker_process
from court.backends.sandbox.process import Death, Guard, GuardedWorkers, JobFailed, WorkerDied
from court.errors import Overrun, Unavailable
from tests.support.leftovers import alive
from tests.support.paths import TESTS
from tests.support.playing import wait_until

CHILD = TESTS / "support" / "misbehaving_worker.py"
MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def child(tmp_path, monkeypatch):
    """Replaces the worker module by the misbehaving child; the real interpreter still runs it, isolated as usual."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$1" "$2" {CHILD} "$5"\n')
    script.chmod(0o755)
    monkeypatch.setattr(worker_process.sys, "executable", str(script))


def pool(workers=1, **guard):
    bounds = {"cpu_s": 5.0, "wall_s": 20.0, "memory_bytes": 256 * MIB, "max_reply_bytes": MIB}
    return GuardedWorkers("any", Guard(**{**bounds, **guard}), name="odd worker", workers=workers)


async def death_of(workers, **body):
    with pytest.raises(WorkerDied) as caught:
        await workers.run(body)
    return caught.value


async def pid_of(workers):
    return (await workers.run({"act": "echo"})).body["pid"]


async def test_reply_has_payloads_and_cost_of_its_job():
    async with aclosing(pool()) as workers:
        reply = await workers.run({"act": "echo", "say": "grüß"}, [b"", b"\x00" * 100_000])
        assert reply.body["said"] == "grüß"
        assert reply.payloads == [b"", b"\x00" * 100_000]
        assert 0 <= reply.cpu_s < 5
        assert 4 * MIB < reply.peak_bytes < 256 * MIB


async def test_processes_are_reused_and_replaced_after_their_number_of_jobs():
    async with aclosing(pool(jobs_per_process=2)) as workers:
        pids = [await pid_of(workers) for _ in range(5)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


@pytest.mark.parametrize(
    ("body", "death", "words"),
    [
        ({"act": "spin"}, Death.CPU_SPENT, "0.3 s"),
        ({"act": "segfault"}, Death.CRASHED, "SIGSEGV"),
        ({"act": "leave"}, Death.CRASHED, "status 7"),
        ({"act": "signal_itself", "number": signal.SIGKILL}, Death.KILLED, "SIGKILL"),
        ({"act": "signal_itself", "number": 40}, Death.CRASHED, "signal 40"),
        ({"act": "signal_itself", "number": signal.SIGHUP}, Death.KILLED, "SIGHUP"),
        ({"act": "signal_itself", "number": signal.SIGABRT}, Death.CRASHED, "SIGABRT"),
        ({"act": "raw", "hex": "ffffffff"}, Death.BABBLED, "header of 4294967295"),
        ({"act": "raw", "hex": "00000004" + b"null".hex()}, Death.BABBLED, "faults"),
        ({"act": "raw", "hex": "00000009" + b'{"job":1}'.hex()}, Death.BABBLED, "faults"),
        ({"act": "raw", "hex": b"hello, world".hex()}, Death.BABBLED, "header of"),
        ({"act": "forged", "job": "ready"}, Death.BABBLED, "not given"),
        ({"act": "many", "size": MIB, "count": 2}, Death.BABBLED, "payloads"),
        # Far more than the pipe and its reader can buffer: the end must still be noticed.
        ({"act": "many", "size": 16 * MIB, "count": 2}, Death.BABBLED, "payloads"),
        ({"act": "many", "size": 1, "count": 65}, Death.BABBLED, "faults"),
    ],
)
async def test_death_of_a_worker_is_classified_and_the_next_job_is_served(body, death, words):
    async with aclosing(pool(cpu_s=0.3)) as workers:
        error = await death_of(workers, **body)
        assert error.death is death
        assert words in str(error)
        assert (await workers.run({"act": "echo", "say": 1})).body["said"] == 1


async def test_late_exit_notification_is_not_taken_for_a_closed_pipe(monkeypatch):
    async with aclosing(pool()) as workers:
        await workers.warm()
        (process,) = workers._alive
        wait = process._process.wait

        async def wait_later():
            await asyncio.sleep(1.5)
            return await wait()

        monkeypatch.setattr(process._process, "wait", wait_later)
        assert (await death_of(workers, act="signal_itself", number=signal.SIGKILL)).death is Death.KILLED


async def test_process_that_closes_its_pipe_and_keeps_running_is_ended(monkeypatch):
    monkeypatch.setattr(worker_process, "_ENDS_S", 0.5)
    async with aclosing(pool()) as workers:
        before = await pid_of(workers)
        died = await death_of(workers, act="hang_up")
        assert died.death is Death.BABBLED and "ran on" in str(died)
        assert await pid_of(workers) != before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_shutdown_signals_of_the_parent_do_not_end_a_job(number):
    async with aclosing(pool()) as workers:
        before = await pid_of(workers)
        reply = await workers.run({"act": "signal_itself", "number": number, "say": "done"})
        assert reply.body == {"pid": before, "said": "done"}


async def test_cpu_time_is_counted_per_job_and_not_per_process():
    async with aclosing(pool(cpu_s=0.5)) as workers:
        before = await pid_of(workers)
        for _ in range(12):
            await workers.run({"act": "hoard", "bytes": 100 * MIB})
        assert await pid_of(workers) == before


async def test_memory_is_limited_and_failures_report_only_their_type():
    async with aclosing(pool()) as workers:
        before = await pid_of(workers)
        with pytest.raises(JobFailed) as caught:
            await workers.run({"act": "hoard", "bytes": 300 * MIB})
        assert caught.value.kind == "MemoryError"
        with pytest.raises(JobFailed) as caught:
            await workers.run({"act": "fail"})
        assert str(caught.value) == "KeyError"
        assert await pid_of(workers) == before


async def test_timed_out_job_raises_overrun_and_ends_its_process():
    async with aclosing(pool(wall_s=1.0)) as workers:
        before = await pid_of(workers)
        started = time.monotonic()
        with pytest.raises(Overrun) as caught:
            await workers.run({"act": "sleep", "seconds": 60})
        assert time.monotonic() - started < 50
        assert "odd worker" in caught.value.message
        assert await pid_of(workers) != before


async def test_cancelled_job_ends_its_process():
    async with aclosing(pool()) as workers:
        before = await pid_of(workers)
        task = asyncio.create_task(workers.run({"act": "sleep", "seconds": 60, "say": "late"}))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reply = await workers.run({"act": "echo", "say": "mine"})
        assert reply.body["said"] == "mine"
        assert reply.body["pid"] != before


async def test_waiting_jobs_can_be_cancelled_without_harm():
    async with aclosing(pool()) as workers:
        running = asyncio.create_task(workers.run({"act": "sleep", "seconds": 0.5, "say": "first"}))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(workers.run({"act": "echo"}))
        await asyncio.sleep(0.05)
        waiting.cancel()
        assert (await running).body["said"] == "first"
        assert (await workers.run({"act": "echo", "say": 2})).body["said"] == 2


async def test_pool_size_is_respected_and_replies_reach_their_jobs():
    async with aclosing(pool(workers=2)) as workers:
        jobs = [workers.run({"act": "sleep", "seconds": 0.01, "say": number}) for number in range(20)]
        replies = await asyncio.gather(*jobs)
        assert [reply.body["said"] for reply in replies] == list(range(20))
        assert len({reply.body["pid"] for reply in replies}) == 2


async def test_process_killed_between_jobs_is_replaced():
    async with aclosing(pool()) as workers:
        before = await pid_of(workers)
        os.kill(before, signal.SIGKILL)
        await asyncio.sleep(0.3)
        assert await pid_of(workers) != before


async def test_output_of_a_worker_is_no_reply_and_its_input_is_empty():
    async with aclosing(pool()) as workers:
        assert (await workers.run({"act": "chatter"})).payloads == [b""]


async def test_worker_writes_no_files_and_sees_no_environment_of_its_parent(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_SECRET", "of the court")
    async with aclosing(pool()) as workers:
        with pytest.raises(JobFailed):
            await workers.run({"act": "write_file", "path": str(tmp_path / "written")})
        around = (await workers.run({"act": "surroundings"})).body
        # A shell adds some variables of its own; none of ours may be among them.
        assert set(around["environ"]) <= {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
        assert around["cwd"] == "/"
        assert "" not in around["path"]
        assert around["sid"] != os.getsid(0)
    written = tmp_path / "written"
    assert not written.exists() or written.stat().st_size == 0


async def test_closing_the_pool_ends_running_and_waiting_jobs():
    workers = pool()
    before = await pid_of(workers)
    jobs = [asyncio.create_task(workers.run({"act": "sleep", "seconds": 60})) for _ in range(3)]
    await asyncio.sleep(0.1)
    await workers.aclose()
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
    with pytest.raises(Unavailable):
        await workers.run({"act": "echo"})
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


async def test_failed_start_of_a_worker_is_unavailable(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_process.sys, "executable", str(tmp_path / "nothing here"))
    async with aclosing(pool()) as workers:
        with pytest.raises(Unavailable) as caught:
            await workers.run({"act": "echo"})
        assert str(tmp_path) not in caught.value.message
        monkeypatch.setattr(worker_process.sys, "executable", "/bin/false")
        with pytest.raises(Unavailable):
            await workers.run({"act": "echo"})


@pytest.mark.parametrize("act", ["echo", "sleep"])
def test_worker_does_not_outlive_its_parent(act):
    """Neither while idle nor in the middle of a job."""
    parent = (
        "import asyncio, os, sys\n"
        "from court.backends.sandbox.process import GuardedWorkers\n"
        "from court.backends.sandbox.process import Guard\n"
        "sys.executable = sys.argv[1]\n"
        "async def main():\n"
        "    workers = GuardedWorkers('any', Guard(cpu_s=5, wall_s=60, memory_bytes=None), name='odd worker')\n"
        "    print((await workers.run({'act': 'echo'})).body['pid'], flush=True)\n"
        "    job = asyncio.create_task(workers.run({'act': sys.argv[2], 'seconds': 0.5}))\n"
        "    await asyncio.sleep(0.1)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    interpreter = (Path(worker_process.sys.executable).read_text().split()[2]).strip()
    done = subprocess.run(
        [interpreter, "-c", parent, worker_process.sys.executable, act],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pid = int(done.stdout)
    wait_until(lambda: not alive(pid))


async def test_closing_the_pool_ends_a_process_that_is_still_starting(monkeypatch):
    started, spawned, start = [], asyncio.Event(), worker_process.WorkerProcess.start

    async def start_slowly(*arguments):
        started.append(await start(*arguments))
        spawned.set()
        await asyncio.sleep(0.1)  # the process exists, but the pool does not know it yet
        return started[-1]

    monkeypatch.setattr(worker_process.WorkerProcess, "start", start_slowly)

    workers = pool()
    job = asyncio.create_task(workers.run({"act": "echo"}))
    await spawned.wait()
    await workers.aclose()
    assert started[0]._process.returncode is not None, "a process is left after the pool was closed"
    with pytest.raises(Unavailable, match="is being closed"):
        await job
