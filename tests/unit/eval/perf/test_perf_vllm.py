"""Arithmetic of the benchmarks on a real vLLM, and its setup; their results are tested in ``tests/live``."""

import json
from pathlib import Path

import pytest

from court.backends.chat import wire
from court.errors import NotLoaded
from court.meme import Frame
from court.ports import ChatRequest
from eval.perf.vllm import prefix_cache as server
from eval.perf.vllm.prefix_cache import Prompt, placed, share, tokenize_body
from eval.perf.vllm.tiny_model import make_tiny_model
from scripts import vllm_cpu
from tests.support.pictures import encode, quarters

# The prefix cache

CAT, DOG = (Frame(encode(quarters((28, 28 + 28 * n)), "PNG"), 28, 28 + 28 * n) for n in range(2))
PICTURE = 9


def words(*tokens, cached=0):
    return Prompt([str(token) for token in tokens], cached)


def test_picture_tokens_are_tagged_with_the_digest_of_their_picture():
    request = ChatRequest("s", (CAT, "one", DOG, "other"), None, 1)
    cat, dog = wire.digest(CAT), wire.digest(DOG)
    shown = placed([1, PICTURE, PICTURE, 2, PICTURE, 3], request, PICTURE)
    assert shown == ["1", f"9 {cat}", f"9 {cat}", "2", f"9 {dog}", "3"]


@pytest.mark.parametrize(("tokens", "what"), [([1, PICTURE, 2, PICTURE], "more"), ([1, 2], "fewer")])
def test_prompt_with_more_or_fewer_pictures_than_sent_is_an_error(tokens, what):
    with pytest.raises(ValueError, match=what):
        placed(tokens, ChatRequest("s", (CAT, "one"), None, 1), PICTURE)


def test_pictures_are_tokenized_in_full_even_if_sent_by_reference():
    (_, user) = tokenize_body("m", ChatRequest("s", (CAT, "one"), None, 1))["messages"]
    assert user["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")


def test_cacheable_tokens_are_whole_blocks_of_earlier_prompts():
    past = [words(*range(9))]
    prompts = [
        words(*range(6), cached=4),  # 6 in common, of which 5 may be reused: one block of 4
        words(*range(9), 50, 51, 52, 53, cached=8),  # 9 in common: two blocks
        # 13 in common with the one before; 9 with the past.
        words(*range(9), 50, 51, 52, 53, 54, cached=8),
        words(70, 71, 72, 73, 74, cached=0),
    ]
    found = share(prompts, past, 4)
    assert (found.prompts, found.reached) == (6 + 13 + 14 + 5, 20)
    assert found.possible == 4 + 8 + 12 + 0
    assert share(prompts[3:], [], 4).possible == 0


def test_last_token_is_always_computed():
    assert share([words(*range(8))], [words(*range(8))], 4).possible == 4
    assert share([words(*range(9))], [words(*range(9))], 4).possible == 8


# The vLLM server


METRICS = """\
# HELP vllm:steps_total Steps.
vllm:steps_total{engine="0",reason="stop"} 3.0
vllm:steps_total{engine="0",reason="length"} 4.0
vllm:steps_total_count{engine="0"} 90.0
vllm:bare 1e3
"""


def test_metric_is_summed_over_all_series_with_matching_labels():
    assert server.figure(METRICS, "vllm:steps_total") == 7
    assert server.figure(METRICS, "vllm:steps_total", reason="stop", engine="0") == 3
    assert server.figure(METRICS, "vllm:bare") == 1000
    assert server.figure(METRICS, "vllm:steps") == server.figure(METRICS, "vllm:steps_total", reason="abort") == 0


def test_configured_python_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMECOURT_VLLM_PYTHON", str(tmp_path / "python"))
    assert server.vllm_python() == tmp_path / "python"


def test_python_is_the_one_that_the_script_installs(monkeypatch, tmp_path):
    monkeypatch.delenv("MEMECOURT_VLLM_PYTHON", raising=False)
    script = tmp_path / "script.py"
    monkeypatch.setattr(server, "_SCRIPT", script)
    with pytest.raises(NotLoaded, match="MEMECOURT_VLLM_PYTHON"):
        server.vllm_python()
    script.write_text("print('/made/bin/python')\n")
    assert str(server.vllm_python()) == "/made/bin/python"
    script.write_text("raise SystemExit('no room')\n")
    with pytest.raises(NotLoaded, match="could not be installed"):
        server.vllm_python()


def test_tiny_model_is_reproducible(tmp_path):
    one, other = (make_tiny_model(tmp_path / name) for name in ("one", "other"))
    files = sorted(file.name for file in one.iterdir())
    assert "model.safetensors" in files and files == sorted(file.name for file in other.iterdir())
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in files)


def test_sitecustomize_is_on_the_python_path_of_vllm():
    assert (Path(server.ENVIRONMENT["PYTHONPATH"]) / "sitecustomize.py").exists()


def test_missing_libnuma_is_reported_before_anything_is_installed(monkeypatch, tmp_path):
    def load(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(vllm_cpu.sys, "platform", "linux")
    monkeypatch.setattr(vllm_cpu.ctypes, "CDLL", load)
    monkeypatch.setattr(vllm_cpu.sys, "argv", ["vllm_cpu.py", "--folder", str(tmp_path / "vllm")])
    with pytest.raises(SystemExit, match="libnuma1 on Debian"):
        vllm_cpu.main()
    assert not any(tmp_path.iterdir())


def test_tiny_thinking_model_has_think_tokens_and_a_template(tmp_path):
    def written(name, *, thinks):
        return json.loads((make_tiny_model(tmp_path / str(thinks), thinks=thinks) / name).read_text())

    templates = [written("tokenizer_config.json", thinks=thinks)["chat_template"] for thinks in (False, True)]
    assert ["<think>" in template for template in templates] == [False, True]
    plain, thinking = (written("config.json", thinks=thinks)["text_config"]["vocab_size"] for thinks in (False, True))
    assert thinking == plain + 2
