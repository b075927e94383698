"""The benchmark of long jobs, checked on a job that is known to lose and to repeat calls."""

import os
import sys

import pytest

from court.errors import BadRequest
from eval.perf.batch import Counting, Job, OutputLines, _memory_of, parsed_size

JOB = """
import json, sqlite3, sys, time, urllib.request
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
out = Path(options.get("--out") or options["--resume"])
repeats, url = options["--repeats"] == "yes", options["--llm-url"]
if options.get("--fails") == "yes":
    sys.exit("it can't be done")
out.mkdir(exist_ok=True)
store = sqlite3.connect(out / "calls.sqlite", isolation_level=None)
store.execute("CREATE TABLE IF NOT EXISTS calls (meme INTEGER PRIMARY KEY, body TEXT)")

def ask(meme):
    wanted = {"json_schema": {"schema": {"properties": {"description": {}}}}}
    body = {"model": "stand-in", "max_tokens": 400, "response_format": wanted,
            "messages": [{"role": "user", "content": f"meme {meme}"}]}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

with (out / "predictions.jsonl").open("a+") as lines:
    lines.seek(0)
    done = len(lines.readlines())
    if repeats and done:
        ask(0)
    for meme in range(done, 20):
        store.execute("INSERT OR IGNORE INTO calls VALUES (?, ?)", (meme, json.dumps({"text": ask(meme)})))
        lines.write("{}\\n")
        lines.flush()
        time.sleep(0.15)
"""


@pytest.fixture
def job(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    return Job(tmp_path / "out", 20, dict(os.environ), (sys.executable, str(script)))


@pytest.mark.slow
@pytest.mark.parametrize(("repeats", "repeated"), [("no", 0), ("yes", 2)])
def test_repeated_calls_despite_the_store_are_counted(job, repeats, repeated):
    counting = Counting()
    with counting.listening() as url:
        figures = job.finish(("--out", job.out), ("--llm-url", url, "--repeats", repeats), counting, (0.2, 0.5))
    assert figures.again == repeated
    assert 20 + repeated <= figures.asked <= 20 + repeated + figures.lost  # a call in flight is made once more
    assert 0 < figures.restart_s < figures.wall_s
    assert OutputLines(job.out / "predictions.jsonl").count() == 20
    assert figures.tenth > 0 and figures.end > 0


def test_failing_job_is_reported_with_its_output(job):
    with pytest.raises(RuntimeError, match="it can't be done"):
        job.finish(("--out", job.out), ("--fails", "yes", "--llm-url", "", "--repeats", "no"), None, ())
    # A job that ends before it can be killed is reported too.
    with pytest.raises(RuntimeError, match="exit code 1"):
        job.finish(("--out", job.out), ("--fails", "yes", "--llm-url", "", "--repeats", "no"), None, (0.5,))


def test_lines_of_a_replaced_file_are_counted_anew(tmp_path):
    file = tmp_path / "lines"
    lines = OutputLines(file)
    assert lines.count() == 0
    file.write_bytes(b"a\nb\nc")
    assert lines.count() == 2
    with file.open("ab") as more:
        more.write(b"\n")
    assert lines.count() == 3
    (tmp_path / "new").write_bytes(b"a\n")
    (tmp_path / "new").replace(file)
    assert lines.count() == 1


def test_size_of_the_benchmark_can_be_set():
    assert parsed_size("400,60") == (400, 60)
    for words in ("400", "a,b", "400,5", "1,2,3"):
        with pytest.raises(BadRequest, match="two numbers"):
            parsed_size(words)


def test_memory_covers_a_process_and_its_children():
    assert _memory_of(os.getpid()) > 5_000_000
    assert _memory_of(2**22 + 1) == 0
