from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from court.backends.sandbox.pool import worker_deaths
from court.errors import BadLibrary, Unavailable
from retrieval.embed.encoder import Encoder, TextEmbeddings
from retrieval.embed.process import EncoderProcess
from tests.support.encoders import WordEncoder, png_of
from tests.support.leftovers import alive
from tests.support.playing import wait_until


class Odd(WordEncoder):
    """Does what it is told by a text."""

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        match texts:
            case ["wait", seconds]:
                time.sleep(float(seconds))
            case ["until", path]:
                wait_until(Path(path).exists)
            case ["spin"]:
                while True:
                    pass
            case ["die"]:
                os._exit(3)
            case ["fail"]:
                raise ValueError("it was told to")
            case ["fail", "oddly"]:
                raise Unsendable(threading.Lock())
            case ["answer", "oddly"]:
                return threading.Lock()  # type: ignore[return-value]
            case ["answer", "unreadably"]:
                return Refusing(_refuse)  # type: ignore[return-value]
            case ["pid"]:
                return TextEmbeddings(np.array([[os.getpid()]], dtype=np.float32), (False,))
        return super().embed_texts(texts)

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        if not all(pictures):
            raise ValueError("picture 0 has no frame")
        return super().embed_pictures(pictures)


class Unsendable(Exception):
    """Holds what can't go to another process."""


class Refusing:
    """Fails where it is sent to."""

    def __init__(self, how: Callable[[], object]) -> None:
        self.how = how

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return self.how, ()


def _die() -> object:
    os._exit(4)


def _refuse() -> object:
    raise KeyError("it is not taken")


def _slowly(told: Path) -> Encoder:
    told.write_text(str(os.getpid()))
    time.sleep(60)
    return Odd()


def _with_a_thread(told: Path) -> Encoder:
    told.write_text(str(niceness(Path("/proc/thread-self"))))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return Odd()


def niceness(task: Path) -> int:
    return int((task / "stat").read_text().rpartition(")")[2].split()[16])


def _no_library() -> Encoder:
    raise BadLibrary("There is no library here.", reason="LIBRARY_MISSING")


def _counting(folder: Path) -> Encoder:
    """Each start is counted; one fails where the folder says so."""
    with (folder / "starts").open("a") as starts:
        starts.write("s")
    match (folder / "how").read_text():
        case "die":
            os._exit(4)
        case "fail":
            raise OSError("/a/path")
        case "no library":
            return _no_library()
    return Odd()


def _named_by(file: Path) -> Encoder:
    return Odd(file.read_text())


@pytest.fixture(scope="module")
def shared() -> Iterator[EncoderProcess]:
    encoder = EncoderProcess(Odd)
    yield encoder
    encoder.close()


@pytest.fixture
def encoder() -> Iterator[EncoderProcess]:
    encoder = EncoderProcess(Odd)
    yield encoder
    encoder.close()


def pid_of(encoder: EncoderProcess) -> int:
    return int(encoder.embed_texts(["pid"]).vectors[0, 0])


def test_it_gives_what_the_encoder_gives_from_a_process_of_its_own(shared: EncoderProcess) -> None:
    here = Odd()
    assert shared.identity == here.identity and shared.floors == here.floors
    texts = ["a cat on a mat", "", "a dog " * 40]
    found, own = shared.embed_texts(texts), here.embed_texts(texts)
    assert np.array_equal(found.vectors, own.vectors) and found.cut == own.cut == (False, False, True)
    pictures = [[png_of((200, 0, 0))], [png_of((0, 200, 0)), png_of((0, 0, 200))]]
    assert np.array_equal(shared.embed_pictures(pictures), here.embed_pictures(pictures))
    for text, frames in zip(texts, [*pictures, []], strict=True):
        (found, looks), (own, own_looks) = shared.embed_meme(text, frames), here.embed_meme(text, frames)
        assert np.array_equal(found.vectors, own.vectors) and found.cut == own.cut
        assert np.array_equal(looks, own_looks) if frames else looks is own_looks is None
    assert pid_of(shared) != os.getpid()


def test_all_of_its_threads_are_behind_what_needs_no_encoder(tmp_path: Path) -> None:
    """But not while it loads: on a busy machine a server would not be ready within minutes."""
    encoder = EncoderProcess(functools.partial(_with_a_thread, tmp_path / "nice"))
    try:
        with ThreadPoolExecutor(4) as threads:
            waiting = [threads.submit(encoder.embed_texts, ["until", str(tmp_path / "go on")]) for _ in range(4)]
            tasks = Path(f"/proc/{pid_of(encoder)}/task")
            wait_until(lambda: len(list(tasks.iterdir())) >= 6)
            found = {niceness(task) for task in tasks.iterdir()}
            (tmp_path / "go on").touch()
            assert all(waited.result() for waited in waiting)
        assert found == {min(19, niceness(Path("/proc/self")) + 10)}
    finally:
        encoder.close()
    assert int((tmp_path / "nice").read_text()) == niceness(Path("/proc/self"))


def test_callers_of_many_threads_get_their_own(shared: EncoderProcess) -> None:
    here = Odd()
    with ThreadPoolExecutor(24) as threads:
        texts = [f"word{number} and {number % 7} more" for number in range(300)]
        for text, found in zip(texts, threads.map(lambda one: shared.embed_texts([one]), texts), strict=True):
            assert np.array_equal(found.vectors, here.embed_texts([text]).vectors)


def test_a_call_does_not_wait_for_another(shared: EncoderProcess, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(shared.embed_texts, ["until", str(tmp_path / "go on")])
        for _ in range(20):
            shared.embed_texts(["a cat"])
        assert not slow.done()
        (tmp_path / "go on").touch()
        slow.result()


def test_what_the_encoder_raises_is_raised(shared: EncoderProcess) -> None:
    with pytest.raises(ValueError, match="it was told to"):
        shared.embed_texts(["fail"])
    with pytest.raises(ValueError, match="picture 0 has no frame"):
        shared.embed_pictures([[]])
    with pytest.raises(RuntimeError, match="the encoder failed by Unsendable"):
        shared.embed_texts(["fail", "oddly"])


def test_why_it_can_not_be_loaded_is_told() -> None:
    with pytest.raises(BadLibrary, match="no library here") as caught:
        EncoderProcess(_no_library)
    assert caught.value.reason == "LIBRARY_MISSING"
    with pytest.raises(Unavailable, match="exit status 4") as died:
        EncoderProcess(functools.partial(WordEncoder, Refusing(_die)))  # type: ignore[arg-type]
    assert died.value.reason == "ENCODER_ENDED"


def test_what_lies_in_the_working_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("import os; os._exit(5)")
    monkeypatch.chdir(tmp_path)
    encoder = EncoderProcess(Odd)
    assert pid_of(encoder)
    encoder.close()


def test_when_its_process_ends_while_nobody_asks_the_next_call_starts_it_again(
    encoder: EncoderProcess, caplog: pytest.LogCaptureFixture
) -> None:
    first = pid_of(encoder)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first))
    assert np.array_equal(encoder.embed_texts(["a cat"]).vectors, Odd().embed_texts(["a cat"]).vectors)
    assert pid_of(encoder) != first
    assert "signal SIGKILL" in caplog.text


def test_calls_under_way_when_it_ends_are_made_once_more(encoder: EncoderProcess) -> None:
    first = pid_of(encoder)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(encoder.embed_texts, ["wait", "2"]) for _ in range(4)]
        time.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        for each in waiting:
            assert each.result(timeout=60).vectors.shape == (2, 16)
    assert pid_of(encoder) != first and not alive(first)


def test_a_call_that_ends_it_twice_is_told_and_the_next_is_answered(encoder: EncoderProcess) -> None:
    first = pid_of(encoder)
    with pytest.raises(Unavailable, match=r"exit status 3.*Try again") as caught:
        encoder.embed_texts(["die"])
    assert caught.value.reason == "ENCODER_ENDED"
    assert encoder.embed_texts(["a cat"]).vectors.any()
    assert pid_of(encoder) != first


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["oddly", "unreadably"])
def test_nobody_waits_for_an_answer_that_can_not_be_sent_or_read(encoder: EncoderProcess, how: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        failed = threads.submit(encoder.embed_texts, ["answer", how]).exception(timeout=60)
    assert isinstance(failed, Unavailable) and failed.reason == "ENCODER_ENDED"
    assert encoder.embed_texts(["a cat"]).vectors.any()


def test_one_that_comes_back_as_another_is_not_asked(tmp_path: Path) -> None:
    file = tmp_path / "name"
    file.write_text("words")
    now = [0.0]
    encoder = EncoderProcess(functools.partial(_named_by, file), clock=lambda: now[0])
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
def test_all_who_wait_share_a_start_that_fails_and_the_next_is_made_after_a_pause(
    tmp_path: Path, how: str, reason: str, words: str
) -> None:
    told, starts, now = tmp_path / "how", tmp_path / "starts", [0.0]
    told.write_text("well")
    encoder = EncoderProcess(functools.partial(_counting, tmp_path), clock=lambda: now[0])

    def kill() -> None:
        number = pid_of(encoder)
        os.kill(number, signal.SIGKILL)
        wait_until(lambda: not alive(number))
        told.write_text(how)
        starts.write_text("")

    def refused(_: object = None) -> float | None:
        with pytest.raises(Unavailable, match=words) as caught:
            encoder.embed_texts(["a cat"])
        assert caught.value.reason == reason and "/" not in caught.value.message
        return caught.value.retry_after

    kill()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(refused, range(8))) == [1.0] * 8
    assert starts.read_text() == "s"
    for pause in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        now[0] += refused() or 0.0
        assert refused() == pause
        now[0] += 0.5
        assert refused() == pause - 0.5
    assert starts.read_text() == "s" * 8
    with pytest.raises(Unavailable):
        encoder.check()
    told.write_text("well")
    now[0] += 60
    encoder.check()  # starts it, though nobody asks: who sends requests goes by health
    assert starts.read_text() == "s" * 9
    kill()
    assert refused() == 1.0
    encoder.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_parent_in_good_order_does_not_end_it_before(
    encoder: EncoderProcess, number: signal.Signals
) -> None:
    first = pid_of(encoder)
    os.kill(first, number)
    time.sleep(0.2)
    assert pid_of(encoder) == first


def test_once_closed_it_is_gone_and_says_so(encoder: EncoderProcess) -> None:
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


def test_it_ends_when_its_parent_is_killed() -> None:
    program = (
        "import time; from retrieval.embed.process import EncoderProcess; from tests.unit.test_encoder_apart import *;"
        "encoder = EncoderProcess(Odd); print(pid_of(encoder), flush=True); encoder.embed_texts(['wait', '60'])"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not alive(child))


def test_it_ends_when_its_parent_is_killed_while_it_loads(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    program = (
        "import functools, pathlib, sys; from retrieval.embed.process import EncoderProcess;"
        "from tests.unit.test_encoder_apart import _slowly;"
        "EncoderProcess(functools.partial(_slowly, pathlib.Path(sys.argv[1])))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(told)])
    wait_until(lambda: told.exists() and told.read_text() != "")
    child = int(told.read_text())
    assert alive(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(child))


@pytest.mark.parametrize("how", [["spin"], ["wait", "3600"]])
def test_a_call_without_end_is_ended_and_named_and_others_are_answered(how: list[str]) -> None:
    encoder = EncoderProcess(Odd, call_cpu_s=1.0, call_s=3600 if how == ["spin"] else 3.0)
    try:
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
    finally:
        encoder.close()


def test_a_large_batch_has_time_for_each_of_its_texts() -> None:
    encoder = EncoderProcess(Odd, call_cpu_s=0.02, call_s=0.02)
    try:
        assert len(encoder.embed_texts(["a text"] * 3000).vectors) == 3000
    finally:
        encoder.close()
