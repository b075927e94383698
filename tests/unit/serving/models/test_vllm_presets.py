"""Tests of presets for vLLM and the choice of the largest that fits, with a stand-in for nvidia-smi."""

import json

import pytest
from click.testing import CliRunner

from court.errors import BadRequest, NotLoaded
from serving.cli.main import cli
from serving.models.presets import PRESETS, Gpu, largest_that_fits, list_gpus, vllm_settings


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Installs an nvidia-smi that lists these GPUs: name, total memory and free memory in MiB."""

    def install(*listed, code=0):
        lines = [f"{n}, GPU-{n}aaa, {name}, {total}, {free}" for n, (name, total, free) in enumerate(listed)]
        script = tmp_path / "nvidia-smi"
        script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {code}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def gpu(gib, free=None, index=0):
    return Gpu(index, "NVIDIA", gib, gib if free is None else free)


def test_presets_are_ordered_by_size_and_need_more_than_their_weights():
    weights = [preset.weights for preset in PRESETS.values()]
    # Of the two largest the newer one comes last, though it is slightly smaller.
    assert weights[:-1] == sorted(weights[:-1])
    for preset in PRESETS.values():
        assert preset.memory_gib() * 2**30 > 2 * preset.weights
        assert preset.memory_gib(2) < preset.memory_gib() < 2 * preset.memory_gib(2)


@pytest.mark.parametrize(
    ("gib", "name"),
    [
        (15.9, "qwen2.5-vl-3b"),
        (23.9, "qwen2.5-vl-7b"),
        (47.5, "qwen3-vl-8b"),
        (79.6, "qwen3-vl-32b"),
        (139.8, "qwen3-vl-32b"),
    ],
)
def test_largest_preset_that_fits_one_gpu_is_chosen(gib, name):
    chosen = largest_that_fits([gpu(gib)])
    assert chosen.preset.name == name
    assert chosen.preset.memory_gib() <= gib
    larger = list(PRESETS.values())[list(PRESETS).index(name) + 1 :]
    assert all(preset.memory_gib() > gib for preset in larger)
    assert not larger or f"{larger[0].name} would need {larger[0].memory_gib():.1f} GiB" in chosen.why


def test_gpus_share_a_model_that_is_too_large_for_one_gpu():
    chosen = largest_that_fits([gpu(47.5, index=0), gpu(47.5, index=1)])
    assert (chosen.preset.name, len(chosen.gpus)) == ("qwen3-vl-32b", 2)
    assert chosen.settings()["tensor_parallel"] == 2
    # The layers can't be split in three, so two of three GPUs are used.
    assert len(largest_that_fits([gpu(47.5, index=n) for n in range(3)]).gpus) == 2
    assert len(largest_that_fits([gpu(24.0, index=n) for n in range(4)]).gpus) == 4


def test_gpu_in_use_by_something_else_is_skipped():
    chosen = largest_that_fits([gpu(79.6, free=40, index=0), gpu(24.0, index=1)])
    assert chosen.preset.name == "qwen2.5-vl-7b" and [used.index for used in chosen.gpus] == [1]
    assert chosen.settings()["environment"]["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(NotLoaded, match=r"40\.0 GiB of it free") as caught:
        largest_that_fits([gpu(79.6, free=40)])
    assert caught.value.reason == "GPU_TOO_SMALL"


def test_gpus_are_listed_as_visible_to_this_process(gpus, monkeypatch):
    gpus(("NVIDIA A", 81559, 81000), ("NVIDIA B", 24564, 24000))
    assert [str(listed) for listed in list_gpus()] == ["GPU 0 (NVIDIA A, 79.6 GiB)", "GPU 1 (NVIDIA B, 24.0 GiB)"]
    for visible, expected in (("1", [1]), ("GPU-0aaa", [0]), ("1,0", [0, 1])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [listed.index for listed in list_gpus()] == expected
    for visible in ("", "7"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(NotLoaded, match="CUDA_VISIBLE_DEVICES names none"):
            list_gpus()


def test_error_without_a_gpu_says_what_to_do(gpus, tmp_path, monkeypatch):
    gpus(("NVIDIA A", 81559, 81000), code=9)
    with pytest.raises(NotLoaded, match="nvidia-smi, which lists them, failed"):
        list_gpus()
    gpus(("NVIDIA A", "[N/A]", "[N/A]"))
    with pytest.raises(NotLoaded, match="can't be read"):
        list_gpus()
    (tmp_path / "nvidia-smi").unlink()
    outcome = CliRunner().invoke(cli, ["vllm", "--preset", "auto"])
    assert outcome.exit_code == 1
    assert "nvidia-smi, which lists them, is not installed. Name a preset or a model" in outcome.output


def test_settings_of_a_preset_can_be_overridden(gpus):
    preset = PRESETS["qwen3-vl-32b"]
    plain = vllm_settings("qwen3-vl-32b")
    assert (plain.model, plain.context, plain.flags) == (preset.model, preset.context, preset.flags)
    size = json.loads(plain.arguments(1)[plain.arguments(1).index("--mm-processor-kwargs") + 1])["size"]
    assert size == {"longest_edge": 1280 * 32 * 32, "shortest_edge": 64 * 32 * 32}
    other = vllm_settings("qwen3-vl-32b", context=8192, flags=("--seed", "1"))
    assert other.context == 8192 and other.flags == (*preset.flags, "--seed", "1")
    assert vllm_settings("some/model").model == "some/model"
    with pytest.raises(BadRequest, match=r"flags: --port is a setting of memecourt"):
        vllm_settings("some/model", flags=("--port", "1"))
    gpus(("NVIDIA A", 81559, 81000))
    messages = []
    chosen = vllm_settings("auto", tell=messages.append)
    assert chosen.model == "Qwen/Qwen3-VL-32B-Instruct" and chosen.tensor_parallel == 1
    needed = f"{preset.memory_gib():.1f}"
    assert messages == [f"qwen3-vl-32b needs {needed} GiB, and fits GPU 0 (NVIDIA A, 79.6 GiB)."]


def test_command_lists_presets_and_requires_exactly_one_name():
    listed = CliRunner().invoke(cli, ["vllm", "--preset", "list"])
    assert listed.exit_code == 0 and all(name in listed.output for name in PRESETS)
    for arguments in ([], ["--model", "m", "--preset", "qwen3-vl-4b"]):
        outcome = CliRunner().invoke(cli, ["vllm", *arguments])
        assert outcome.exit_code == 2 and "either --model NAME or --preset NAME" in outcome.output
    outcome = CliRunner().invoke(cli, ["vllm", "--preset", "qwen9"])
    assert outcome.exit_code == 2 and "There are: qwen2.5-vl-3b" in outcome.output
