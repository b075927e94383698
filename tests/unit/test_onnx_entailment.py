"""User-supplied ONNX models of natural-language inference: tiny ones, built here with onnx and tokenizers."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from court.errors import BadRequest, Unavailable
from court.ports import Entailed
from retrieval.embed.onnx_entailment import OnnxEntailment, open_entailment

WORDS = ["[UNK]", "[CLS]", "[SEP]", "tea", "cures", "colds", "yes", "no"]
LABELS = {"0": "contradiction", "1": "neutral", "2": "entailment"}


def write_model(
    folder: Path,
    *,
    labels=LABELS,
    inputs=("input_ids", "attention_mask"),
    output="logits",
    width=3,
    most=16,
    broken=None,
) -> Path:
    """Writes a model that sums a score per word: ``yes`` entails, ``no`` contradicts, other words are neutral."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.zeros((len(WORDS), width), dtype=np.float32)
    table[WORDS.index("yes"), width - 1] = table[WORDS.index("no"), 0] = 4.0
    if broken is not None:
        table[WORDS.index(broken), 0] = np.nan
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("ReduceSum", ["tokens", "axis"], [output], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    if labels is not None:
        (folder / "config.json").write_text(json.dumps({"id2label": labels, "max_position_embeddings": most}))
    return folder


def infer(model: OnnxEntailment, premise: str, hypothesis: str = "tea cures colds") -> Entailed:
    return asyncio.run(model.infer(premise, hypothesis))


@pytest.mark.parametrize("inputs", [("input_ids",), ("input_ids", "attention_mask", "token_type_ids")])
def test_pair_is_scored_by_the_model_with_the_folder_s_labels(tmp_path, inputs):
    model = OnnxEntailment(write_model(tmp_path, inputs=inputs))
    for premise, strongest in (("yes tea", "entailment"), ("no tea", "contradiction")):
        scores = infer(model, premise)
        assert getattr(scores, strongest) == pytest.approx(np.exp(4) / (np.exp(4) + 2), rel=1e-5)
        assert scores.entailment + scores.neutral + scores.contradiction == pytest.approx(1)
    neither = infer(model, "tea")
    assert neither.entailment == neither.neutral == neither.contradiction == pytest.approx(1 / 3)
    model.close()


def test_labels_are_mapped_by_name_in_any_order_and_case(tmp_path):
    other = {"0": "ENTAILMENT", "1": "NEUTRAL", "2": "CONTRADICTION"}
    model = OnnxEntailment(write_model(tmp_path, labels=other))
    assert infer(model, "yes tea").contradiction > 0.9 and infer(model, "no tea").entailment > 0.9


def test_long_premise_is_truncated_and_the_hypothesis_is_not(tmp_path):
    model = OnnxEntailment(write_model(tmp_path, most=16))  # 14 tokens, 6 of them for hypothesis and separators
    assert infer(model, "tea " * 7 + "yes " + "no " * 50).entailment > 0.9
    assert infer(model, "tea " * 8 + "yes").entailment == pytest.approx(1 / 3)
    assert infer(model, "tea " * 50, "no tea cures colds").contradiction > 0.9
    assert infer(model, "", "tea " * 100).neutral == pytest.approx(1 / 3)


def test_identity_depends_on_the_files_and_not_on_their_path(tmp_path):
    first = OnnxEntailment(write_model(tmp_path / "one")).identity
    assert open_entailment(f"onnx:{shutil.copytree(tmp_path / 'one', tmp_path / 'moved')}").identity == first
    other = {"0": "neutral", "1": "contradiction", "2": "entailment"}
    others = {
        OnnxEntailment(write_model(tmp_path / name, **how)).identity
        for name, how in (("labels", {"labels": other}), ("tokens", {"most": 32}))
    }
    assert len({first, *others}) == 3 and str(tmp_path) not in first


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no folder", "is no folder"),
        ("no tokenizer", "lacks one"),
        ("damaged model", "files are damaged"),
        ("no config", "config.json"),
        ("other labels", "its labels are bad, good, so"),
        ("two labels", "its labels are"),
        ("other output", "no logits"),
        ("other input", "it takes"),
        ("other width", "it gives 2 figures"),
    ],
)
def test_unusable_models_are_refused_with_the_fault(tmp_path, fault, message):
    folder = tmp_path / "model"
    labels = {
        "other labels": {"0": "good", "1": "bad", "2": "so"},
        "two labels": {"0": "entailment", "1": "not_entailment"},
        "no config": None,
    }
    if fault != "no folder":
        write_model(
            folder,
            labels=labels.get(fault, LABELS),
            inputs=("input_ids", "pixel_values") if fault == "other input" else ("input_ids",),
            output="scores" if fault == "other output" else "logits",
            width=2 if fault == "other width" else 3,
        )
    if fault == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    if fault == "damaged model":
        (folder / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(BadRequest, match=message) as caught:
        OnnxEntailment(folder)
    assert (caught.value.reason, caught.value.field) == ("ENTAILMENT_DAMAGED", "entailment")


def test_entailment_setting_must_name_a_folder():
    with pytest.raises(BadRequest, match="onnx:FOLDER"):
        open_entailment("roberta-large-mnli")


def test_non_finite_scores_are_a_failure_of_the_model(tmp_path):
    model = OnnxEntailment(write_model(tmp_path, broken="yes"))
    assert infer(model, "tea").neutral == pytest.approx(1 / 3)
    with pytest.raises(Unavailable) as caught:
        infer(model, "yes tea")
    assert caught.value.reason == "ENTAILMENT_FAILED"
    model.close()
