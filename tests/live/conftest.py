"""A real vLLM on the CPU with a tiny model, shared by all tests here and restarted after a test that ended it."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import httpx2
import pytest

from eval.perf.vllm import prefix_cache as vllm_cpu
from eval.perf.vllm.tiny_model import NAME, make_tiny_model
from serving.models.vllm import VllmServer, VllmSettings, free_port


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.live)


class LiveVllm:
    """A vLLM watched from an event loop in another thread, so that tests can run loops of their own.

    Address, key and model name stay the same when it is restarted.
    """

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="live-vllm", daemon=True)
        self._thread.start()
        self.server = VllmServer(settings)
        self.starts = 0

    def _do(self, work, seconds: float = 600):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    @property
    def base_url(self) -> str:
        return self.server.base_url

    @property
    def root_url(self) -> str:
        return self.server.root_url

    @property
    def api_key(self) -> str:
        return self.server.api_key

    @property
    def model(self) -> str:
        return self.server.model

    @property
    def running(self) -> bool:
        return self.server.running

    def start(self) -> None:
        """Starts vLLM and returns once it answers; does nothing if it is running."""
        if not self.running:
            self.server = VllmServer(self._settings)
            self._do(self.server.__aenter__())
            self.starts += 1

    def stop(self) -> None:
        """Stops vLLM in an orderly way."""
        self._do(self.server.stop())

    def kill(self) -> int:
        """Kills vLLM as the kernel does when memory runs out, waits for its end and returns the exit code."""
        os.kill(self.server.pid, signal.SIGKILL)
        return self.ended(60)

    def restart(self) -> None:
        """Restarts vLLM at the same address, with the same key."""
        self.stop()
        self.start()

    def ended(self, seconds: float) -> int:
        """Waits until the end of vLLM is noticed; returns the exit code."""
        return self._do(self.server.ended(), seconds)

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric over all series with these labels; 0 if there is none."""
        text = httpx2.get(f"{self.root_url}/metrics", trust_env=False, timeout=30).text
        return vllm_cpu.figure(text, name, **labels)

    def client(self, **options) -> httpx2.Client:
        """Returns an HTTP client that sends the key; paths are relative to ``root_url``."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        return httpx2.Client(
            **{"base_url": self.root_url, "headers": headers, "trust_env": False, "timeout": 120, **options}
        )

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="session")
def vllm_python():
    return vllm_cpu.vllm_python()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / NAME)


@pytest.fixture(scope="session")
def vllm_settings(vllm_python, tiny_model):
    return vllm_cpu.settings(vllm_python, tiny_model)


@pytest.fixture(scope="session")
def vllm(vllm_settings):
    """The running vLLM."""
    live = LiveVllm(vllm_settings.model_copy(update={"port": free_port(vllm_settings.host)}))
    live.start()
    yield live
    live.close()


@pytest.fixture(autouse=True)
def _vllm_is_up(request):
    """Restarts vLLM for each test that uses it, in case the previous test ended it."""
    if "vllm" in request.fixturenames:
        request.getfixturevalue("vllm").start()
