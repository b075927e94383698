"""Features of vLLM that the court relies on, and starting, watching and stopping it."""

import asyncio
import base64
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from eval.perf.vllm.prefix_cache import ENVIRONMENT, FLAGS
from serving.models.vllm import VllmFailed, VllmServer
from tests.support.pictures import captioned, encode, quarters
from tests.support.playing import wait_until


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    state: str
    args: str


def processes():
    """Returns all processes that exist at the moment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, args = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended in the meantime
        state, parent, group = stat.rpartition(")")[2].split()[:3]  # a name may hold spaces and brackets
        found.append(Process(int(folder.name), int(parent), int(group), state, args.replace(b"\0", b" ").decode()))
    return found


def group(leader):
    """Returns the process ids of a process group, without zombies."""
    return {process.pid for process in processes() if process.group == leader and process.state != "Z"}


RULING = {
    "type": "object",
    "properties": {
        "label": {"enum": ["HARMFUL", "NOT_HARMFUL"]},
        "evidence": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 30}},
        "rationale": {"type": "string", "maxLength": 80},
    },
    "required": ["label", "evidence", "rationale"],
    "additionalProperties": False,
}


def picture(shown=None):
    data = base64.b64encode(encode(shown or quarters(), "PNG")).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def words(text="What is in the picture?"):
    return {"type": "text", "text": text}


def request(vllm, *content, **options):
    messages = [{"role": "system", "content": "You describe. " * 20}, {"role": "user", "content": list(content)}]
    return {"model": vllm.model, "messages": messages, "max_tokens": 8, "temperature": 0, **options}


def ask(vllm, *content, **options):
    with vllm.client() as client:
        return client.post("/v1/chat/completions", json=request(vllm, *content, **options))


def shared_memory(leader):
    """Returns the shared memory files that a process group has open."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in group(leader))
    return {Path(found) for found in re.findall(r"/dev/shm/psm_\w+", maps)}


@pytest.mark.parametrize("count", [1, 4, 7])
def test_vllm_accepts_pictures_and_distinguishes_them(vllm, count):
    shown = [picture(quarters((64 + 28 * number, 48))) for number in range(count)]
    answer = ask(vllm, *shown, words())
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == 8 and usage["prompt_tokens_details"]["multimodal_tokens"]["image"] >= 4 * count
    other = ask(vllm, *shown[:-1], picture(captioned("other")), words())
    assert other.json()["choices"][0]["message"]["content"] != answer.json()["choices"][0]["message"]["content"]


def test_too_many_pictures_are_refused(vllm):
    answer = ask(vllm, *[picture()] * 8, words())
    assert answer.status_code == 400 and "At most 7 image(s)" in answer.text


def test_large_picture_is_scaled_down(vllm):
    details = ask(vllm, picture(quarters((3000, 3000))), words()).json()["usage"]["prompt_tokens_details"]
    assert 1000 < details["multimodal_tokens"]["image"] <= 1280


def test_replies_always_follow_the_schema(vllm):
    response_format = {"type": "json_schema", "json_schema": {"name": "ruling", "strict": True, "schema": RULING}}
    for seed in range(8):
        choice = ask(
            vllm, picture(), words("Judge."), temperature=1, seed=seed, max_tokens=600, response_format=response_format
        ).json()["choices"][0]
        content = choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        ruling = json.loads(content)  # strict: raw control characters in a string are an error
        assert list(ruling) == RULING["required"] and ruling["label"] in RULING["properties"]["label"]["enum"]
        assert len(ruling["rationale"]) <= 80 and all(len(item) <= 30 for item in ruling["evidence"])
        assert (
            '": ' not in content and "\n" not in content
        )  # no whitespace padding, which a model might continue forever


def test_token_probabilities_can_be_read(vllm):
    choice = ask(vllm, words("A or B?"), max_tokens=1, logprobs=True, top_logprobs=20).json()["choices"][0]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 20
    with vllm.client() as client:
        tokenized_words = [
            client.post("/tokenize", json={"model": vllm.model, "prompt": text, "add_special_tokens": False}).json()
            for text in ("A", "B", " A", " B", " HARMFUL")
        ]
    assert [tokenized["count"] for tokenized in tokenized_words] == [1] * 5


def test_repeated_prefix_is_taken_from_the_cache(vllm):
    shown = picture(captioned("seen before", size=(420, 280)))
    hits, queries = (vllm.metric(f"vllm:prefix_cache_{kind}_total") for kind in ("hits", "queries"))
    first = ask(vllm, shown, words("One question? " * 10)).json()["usage"]
    again = ask(vllm, shown, words("One question? " * 10 + "Another?")).json()["usage"]
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert first["prompt_tokens"] - 64 <= cached <= first["prompt_tokens"]
    assert vllm.metric("vllm:prefix_cache_hits_total") - hits >= cached
    assert vllm.metric("vllm:prefix_cache_queries_total") > queries


def test_restricted_tokens_keep_their_probability_mass(vllm):
    """The reply is limited to two words, and their probabilities are relative to the whole vocabulary."""
    with vllm.client() as client:
        tokenized_words = [
            client.post("/tokenize", json={"model": vllm.model, "prompt": text, "add_special_tokens": False}).json()
            for text in ("A", "B")
        ]
    token_ids = [entry["tokens"][0] for entry in tokenized_words]
    options = {"max_tokens": 1, "logprobs": True, "allowed_token_ids": token_ids, "logprob_token_ids": token_ids}
    choice = ask(vllm, words("A or B?"), **options).json()["choices"][0]
    masses = {entry["token"]: math.exp(entry["logprob"]) for entry in choice["logprobs"]["content"][0]["top_logprobs"]}
    assert set(masses) == {"A", "B"} and 0 < sum(masses.values()) < 0.5
    assert choice["message"]["content"] == max(masses, key=masses.get)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/cat.png", "https://example.com/cat.png"])
def test_vllm_fetches_no_picture_by_url(vllm, url):
    answer = ask(vllm, {"type": "image_url", "image_url": {"url": url}}, words())
    assert answer.status_code == 400 and "allowed domains" in answer.text


def test_vllm_refuses_file_urls_and_videos(vllm):
    # vLLM answers 500 here, not 400, like a fault of its own; so the court must never send such a URL.
    assert ask(vllm, {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}).status_code >= 400
    film = {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,AAAA"}}
    assert ask(vllm, film).status_code == 400


def test_vllm_requires_the_key_on_documented_paths(vllm):
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with vllm.client(headers=headers) as stranger:
            assert stranger.post("/v1/chat/completions", json=request(vllm, words())).status_code == 401
            assert stranger.get("/v1/models").status_code == 401
            # vLLM leaves /tokenize unprotected, which is why it may only listen on loopback.
            assert stranger.post("/tokenize", json={"model": vllm.model, "prompt": "x"}).status_code == 200
    with vllm.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [vllm.model]


def test_the_key_is_in_neither_log_nor_command_line(vllm):
    assert vllm.api_key not in "\n".join(vllm.server.log(1000))
    shown = "\n".join(process.args for process in processes())
    assert str(vllm.server.settings.model) in shown and vllm.api_key not in shown


async def test_disconnected_caller_frees_the_engine(vllm):
    tokens = 15_000
    body = request(vllm, words(), max_tokens=tokens, ignore_eos=True)
    before = vllm.metric("vllm:generation_tokens_total")
    headers = {"Authorization": f"Bearer {vllm.api_key}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=None) as client:
        asking = asyncio.create_task(client.post(f"{vllm.base_url}/chat/completions", json=body))
        await asyncio.to_thread(wait_until, lambda: vllm.metric("vllm:num_requests_running") >= 1, 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    wait_until(lambda: vllm.metric("vllm:num_requests_running") == 0, 200)
    assert vllm.metric("vllm:num_requests_waiting") == 0
    assert vllm.metric("vllm:generation_tokens_total") - before < tokens
    assert ask(vllm, words()).status_code == 200


def test_death_of_the_engine_is_noticed(vllm):
    leader = vllm.server.pid
    (pid,) = [each.pid for each in processes() if each.group == leader and "EngineCore" in each.args]
    os.kill(pid, signal.SIGKILL)
    vllm.ended(60)
    assert not vllm.running and not group(leader)


def test_killed_vllm_is_cleaned_up_and_restarts_at_the_same_address(vllm):
    leader, address = vllm.server.pid, vllm.base_url
    assert len(group(leader)) >= 3
    shared = shared_memory(leader)
    assert shared
    assert vllm.kill() == -signal.SIGKILL
    assert not vllm.running and not group(leader)  # without cleaning up, engine and workers would survive
    assert not any(file.exists() for file in shared)  # and shared memory would stay until a reboot
    with pytest.raises(httpx2.ConnectError):
        ask(vllm, words())
    vllm.restart()
    assert vllm.base_url == address and vllm.server.pid != leader
    assert ask(vllm, words()).status_code == 200


def test_missing_model_fails_with_the_end_of_the_log(vllm_settings):
    settings = vllm_settings.model_copy(update={"model": "nobody/nothing-of-the-kind"})

    async def start():
        async with VllmServer(settings):
            pass

    with pytest.raises(VllmFailed) as caught:
        asyncio.run(start())
    assert caught.value.reason == "VLLM_ENDED"
    assert "Error" in "\n".join(caught.value.log[-10:]) and len(caught.value.log) <= 40
    assert "nobody" not in caught.value.message


class Command:
    """``memecourt vllm`` as a subprocess."""

    def __init__(self, model, python):
        command = [sys.executable, "-m", "serving.cli", "vllm", "--model", str(model), "--port", "0", "--verbose"]
        inherited = {name: value for name, value in os.environ.items() if name != "MEMECOURT_LLM__API_KEY"}
        self.process = subprocess.Popen(
            [*command, "--context", "4096", "--", *FLAGS],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**inherited, **ENVIRONMENT, "MEMECOURT_VLLM_PYTHON": str(python)},
        )

    def child(self):
        """Returns the process id of vLLM; None before it is started."""
        children = (process for process in processes() if process.parent == self.process.pid)
        return next((process.pid for process in children if "vllm_child" in process.args), None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_command_can_be_interrupted_while_it_starts(tiny_model, vllm_python):
    with Command(tiny_model, vllm_python) as command:
        wait_until(command.child, 60)
        leader = command.child()
        time.sleep(3)
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(120) == 0
        assert not group(leader)


def test_command_prints_url_and_key_and_leaves_no_process_when_killed(tiny_model, vllm_python):
    with Command(tiny_model, vllm_python) as command:
        lines = [command.process.stdout.readline().strip() for _ in range(3)]
        url = lines[0].split()[3]
        headers = {"Authorization": f"Bearer {lines[1].removeprefix('key: ')}"}
        assert httpx2.get(f"{url}/models", headers=headers, trust_env=False).status_code == 200
        assert f"--llm-url {url} --model {tiny_model.name}" in lines[2]
        leader = command.child()
        command.process.kill()
        wait_until(lambda: not group(leader), 120)


def test_stopped_vllm_leaves_no_process(vllm):
    leader = vllm.server.pid
    vllm.stop()
    assert vllm.ended(1) == 0
    assert not group(leader) and not vllm.running
    vllm.stop()  # stopping again does nothing
