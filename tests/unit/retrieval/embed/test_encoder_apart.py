import functools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from court.backends.sandbox.process import worker_deaths
from court.errors import BadLibrary, Unavailable
from retrieval.embed.process import EncoderProcess
from tests.support.encoder_apart import ControllableEncoder, FailsOnUnpickling, pid_of
from tests.support.encoder_apart import encoder as encoder
from tests.support.encoders import WordEncoder, png_of
from tests.support.leftovers import alive
from tests.support.playing import wait_until


def _die():
    os._exit(4)


def _load_with_a_thread(niceness_file):
    niceness_file.write_text(str(niceness(Path("/proc/thread-self"))))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return ControllableEncoder()


def niceness(task):
    return int((task / "stat").read_text().rpartition(")")[2].split()[16])


def _load_without_library():
    raise BadLibrary("There is no library here.", reason="LIBRARY_MISSING")


def _load_counting(folder):
    """Counts each start, and fails in the way that the folder's file ``how`` names."""
    with (folder / "starts").open("a") as starts:
        starts.write("s")
    match (folder / "how").read_text():
        case "die":
            os._exit(4)
        case "fail":
            raise OSError("/a/path")
        case "no library":
            return _load_without_library()
    return ControllableEncoder()


def _load_named_by(file):
    return ControllableEncoder(file.read_text())


@pytest.fixture(scope="module")
def shared():
    encoder = EncoderProcess(ControllableEncoder)
    yield encoder
    encoder.close()


def test_encoder_process_returns_the_same_embeddings_as_the_encoder_itself(shared):
    local = ControllableEncoder()
    assert shared.identity == local.identity and shared.floors == local.floors
    texts = ["a cat on a mat", "", "a dog " * 40]
    found, own = shared.embed_texts(texts), local.embed_texts(texts)
    assert np.array_equal(found.vectors, own.vectors) and found.cut == own.cut == (False, False, True)
    pictures = [[png_of((200, 0, 0))], [png_of((0, 200, 0)), png_of((0, 0, 200))]]
    assert np.array_equal(shared.embed_pictures(pictures), local.embed_pictures(pictures))
    for text, frames in zip(texts, [*pictures, []], strict=True):
        (found, seen), (own, own_seen) = shared.embed_meme(text, frames), local.embed_meme(text, frames)
        assert np.array_equal(found.vectors, own.vectors) and found.cut == own.cut
        assert np.array_equal(seen, own_seen) if frames else seen is own_seen is None
    assert pid_of(shared) != os.getpid()


def test_encoder_threads_have_a_lower_priority_than_the_server(tmp_path):
    """Except while it loads: on a busy machine the server would otherwise take minutes to become ready."""
    load = functools.partial(_load_with_a_thread, tmp_path / "nice")
    with closing(EncoderProcess(load)) as encoder, ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(encoder.embed_texts, ["until", str(tmp_path / "go on")]) for _ in range(4)]
        tasks = Path(f"/proc/{pid_of(encoder)}/task")
        wait_until(lambda: len(list(tasks.iterdir())) >= 6)
        found = {niceness(task) for task in tasks.iterdir()}
        (tmp_path / "go on").touch()
        assert all(waited.result() for waited in waiting)
    assert found == {min(19, niceness(Path("/proc/self")) + 10)}
    assert int((tmp_path / "nice").read_text()) == niceness(Path("/proc/self"))


def test_concurrent_callers_each_get_their_own_result(shared):
    local = ControllableEncoder()
    with ThreadPoolExecutor(24) as threads:
        texts = [f"word{number} and {number % 7} more" for number in range(300)]
        for text, found in zip(texts, threads.map(lambda one: shared.embed_texts([one]), texts), strict=True):
            assert np.array_equal(found.vectors, local.embed_texts([text]).vectors)


def test_calls_run_concurrently(shared, tmp_path):
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(shared.embed_texts, ["until", str(tmp_path / "go on")])
        for _ in range(20):
            shared.embed_texts(["a cat"])
        assert not slow.done()
        (tmp_path / "go on").touch()
        slow.result()


def test_encoder_exceptions_reach_the_caller(shared):
    with pytest.raises(ValueError, match="requested failure"):
        shared.embed_texts(["fail"])
    with pytest.raises(ValueError, match="picture 0 has no frame"):
        shared.embed_pictures([[]])
    with pytest.raises(RuntimeError, match="the encoder failed by UnpicklableError"):
        shared.embed_texts(["fail", "oddly"])


def test_loading_errors_reach_the_caller():
    with pytest.raises(BadLibrary, match="no library here") as caught:
        EncoderProcess(_load_without_library)
    assert caught.value.reason == "LIBRARY_MISSING"
    with pytest.raises(Unavailable, match="exit status 4") as died:
        EncoderProcess(functools.partial(WordEncoder, FailsOnUnpickling(_die)))  # type: ignore[arg-type]
    assert died.value.reason == "ENCODER_ENDED"


def test_modules_in_the_working_directory_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("import os; os._exit(5)")
    monkeypatch.chdir(tmp_path)
    with closing(EncoderProcess(ControllableEncoder)) as encoder:
        assert pid_of(encoder)


def test_process_that_died_while_idle_is_restarted_by_the_next_call(encoder, caplog):
    first = pid_of(encoder)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first))
    assert np.array_equal(encoder.embed_texts(["a cat"]).vectors, ControllableEncoder().embed_texts(["a cat"]).vectors)
    assert pid_of(encoder) != first
    assert "signal SIGKILL" in caplog.text


def test_calls_in_flight_are_retried_once_when_the_process_dies(encoder):
    first = pid_of(encoder)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(encoder.embed_texts, ["wait", "2"]) for _ in range(4)]
        time.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        for each in waiting:
            assert each.result(timeout=60).vectors.shape == (2, 16)
    assert pid_of(encoder) != first and not alive(first)


def test_call_that_kills_the_process_twice_fails_and_the_next_succeeds(encoder):
    first = pid_of(encoder)
    with pytest.raises(Unavailable, match=r"exit status 3.*Try again") as caught:
        encoder.embed_texts(["die"])
    assert caught.value.reason == "ENCODER_ENDED"
    assert encoder.embed_texts(["a cat"]).vectors.any()
    assert pid_of(encoder) != first


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["oddly", "unreadably"])
def test_result_that_cannot_be_pickled_fails_the_call_at_once(encoder, how):
    with ThreadPoolExecutor(1) as threads:
        failed = threads.submit(encoder.embed_texts, ["answer", how]).exception(timeout=60)
    assert isinstance(failed, Unavailable) and failed.reason == "ENCODER_ENDED"
    assert encoder.embed_texts(["a cat"]).vectors.any()


def test_restarted_encoder_with_another_identity_is_refused(tmp_path):
    file = tmp_path / "name"
    file.write_text("words")
    now = [0.0]
    encoder = EncoderProcess(functools.partial(_load_named_by, file), clock=lambda: now[0])
    file.write_text("other-words")
    first = pid_of(encoder)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first))
    for _ in range(2):
        with pytest.raises(Unavailable, match="other-words") as caught:
            encoder.embed_texts(["a cat"])
        assert caught.value.reason == "ENCODER_CHANGED"
    file.write_text("words")
    now[0] += 1
    assert encoder.embed_texts(["a cat"]).vectors.any()
    encoder.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason", "words"),
    [
        ("die", "ENCODER_ENDED", "exit status 4"),
        ("fail", "ENCODER_ENDED", "OSError"),
        ("no library", "LIBRARY_MISSING", "no library here"),
    ],
)
def test_failed_restart_is_shared_by_all_waiting_callers_and_retried_with_backoff(tmp_path, how, reason, words):
    how_file, starts, now = tmp_path / "how", tmp_path / "starts", [0.0]
    how_file.write_text("well")
    encoder = EncoderProcess(functools.partial(_load_counting, tmp_path), clock=lambda: now[0])

    def kill():
        number = pid_of(encoder)
        os.kill(number, signal.SIGKILL)
        wait_until(lambda: not alive(number))
        how_file.write_text(how)
        starts.write_text("")

    def refused(_=None):
        with pytest.raises(Unavailable, match=words) as caught:
            encoder.embed_texts(["a cat"])
        assert caught.value.reason == reason and "/" not in caught.value.message
        return caught.value.retry_after

    kill()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(refused, range(8))) == [1.0] * 8
    assert starts.read_text() == "s"
    pauses = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0) if how == "die" else (2.0,)
    for pause in pauses:
        now[0] += refused() or 0.0
        assert refused() == pause
        now[0] += 0.5
        assert refused() == pause - 0.5
    assert starts.read_text() == "s" * (1 + len(pauses))
    with pytest.raises(Unavailable):
        encoder.check()
    how_file.write_text("well")
    now[0] += 60
    encoder.check()  # starts the process without a request: callers wait for the health check to pass
    assert starts.read_text() == "s" * (2 + len(pauses))
    kill()
    assert refused() == 1.0
    encoder.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sigint_and_sigterm_do_not_end_the_process_before_its_parent(encoder, number):
    first = pid_of(encoder)
    os.kill(first, number)
    time.sleep(0.2)
    assert pid_of(encoder) == first


def test_closed_encoder_ends_its_process_and_refuses_calls(encoder):
    first = pid_of(encoder)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(encoder.embed_texts, ["wait", "60"])
        time.sleep(0.3)
        encoder.close()
        assert isinstance(waiting.exception(timeout=60), Unavailable)
    assert not alive(first)
    with pytest.raises(Unavailable):
        encoder.embed_texts(["a cat"])
    encoder.close()


@pytest.mark.parametrize(
    "code",
    [
        "encoder = EncoderProcess(ControllableEncoder); file.write_text(str(pid_of(encoder)));"
        "encoder.embed_texts(['wait', '60'])",
        "EncoderProcess(functools.partial(_load_slowly, file))",
    ],
    ids=["during a call", "while loading"],
)
def test_process_exits_when_its_parent_is_killed(tmp_path, code):
    pid_file = tmp_path / "pid"
    program = (
        "import functools, pathlib, sys; from retrieval.embed.process import EncoderProcess;"
        "from tests.support.encoder_apart import *; from tests.support.encoder_apart import _load_slowly;"
        f"file = pathlib.Path(sys.argv[1]); {code}"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(pid_file)])
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    child = int(pid_file.read_text())
    assert alive(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(child))


@pytest.mark.parametrize("how", [["spin"], ["wait", "3600"]])
def test_endless_call_fails_and_concurrent_calls_are_answered(how):
    limits = {"call_cpu_s": 1.0, "call_s": 3600 if how == ["spin"] else 3.0}
    with closing(EncoderProcess(ControllableEncoder, **limits)) as encoder:
        before, deaths = pid_of(encoder), worker_deaths["encoder"]
        with ThreadPoolExecutor() as pool:
            stuck = pool.submit(encoder.embed_texts, how)
            other = pool.submit(encoder.embed_texts, ["wait", "0.5"])
            with pytest.raises(Unavailable) as caught:
                stuck.result(60)
            other.result(60)
        assert caught.value.reason == "ENCODER_STUCK"
        assert pid_of(encoder) != before and not alive(before)
        assert worker_deaths["encoder"] == deaths + 1


def test_time_limit_grows_with_the_size_of_the_batch():
    with closing(EncoderProcess(ControllableEncoder, call_cpu_s=0.02, call_s=0.02)) as encoder:
        assert len(encoder.embed_texts(["a text"] * 3000).vectors) == 3000
