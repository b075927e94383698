"""User-supplied ONNX sentence encoders: tiny ones, built here with onnx and tokenizers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from court.errors import BadLibrary, BadRequest
from retrieval.embed.onnx_texts import NAME, OnnxTextEncoder
from retrieval.library.library import Library
from retrieval.open import load_encoder, load_encoder_for, name_of
from serving.cli.main import cli
from tests.support.encoders import png_of

LATIN, CYRILLIC = ("people", "from", "blueland", "should", "not", "come", "here"), ("кот", "спит", "на", "окне")
WORDS = ["[UNK]", "[CLS]", "[SEP]", *LATIN, *CYRILLIC]
DIM = 8


def write_model(
    folder,
    *,
    output="last_hidden_state",
    pooling="pooling_mode_mean_tokens",
    inputs=("input_ids", "attention_mask"),
    seed=0,
):
    """Writes a model that looks words up in a table; with ``sentence_embedding`` it does the mean pooling itself."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.random.default_rng(seed).normal(size=(len(WORDS), DIM)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["tokens"])]
    if output == "sentence_embedding":
        nodes.append(helper.make_node("ReduceMean", ["tokens"], [output], axes=[1], keepdims=0))
    else:
        nodes.append(helper.make_node("Identity", ["tokens"], [output]))
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "table")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({pooling: True, "word_embedding_dimension": DIM}))
    return folder


def table_of(seed=0):
    return np.random.default_rng(seed).normal(size=(len(WORDS), DIM)).astype(np.float32)


@pytest.mark.parametrize(
    ("output", "pooling"),
    [
        ("last_hidden_state", "pooling_mode_mean_tokens"),
        ("token_embeddings", "pooling_mode_mean_tokens"),
        ("sentence_embedding", None),
        ("last_hidden_state", "pooling_mode_cls_token"),
    ],
)
def test_text_is_pooled_as_the_folder_configures(tmp_path, output, pooling):
    encoder = OnnxTextEncoder(write_model(tmp_path, output=output, pooling=pooling))
    found = encoder.embed_texts(["People from BLUELAND", "", "people from blueland"]).vectors
    tokens = table_of()[[1, 3, 4, 5, 2]]
    wanted = tokens[0] if pooling == "pooling_mode_cls_token" else tokens.mean(axis=0)
    assert found[0] == pytest.approx(wanted / np.linalg.norm(wanted), abs=1e-6)
    assert not found[1].any() and np.array_equal(found[0], found[2])


def test_script_missing_from_the_vocabulary_counts_as_no_text(tmp_path):
    encoder = OnnxTextEncoder(write_model(tmp_path, inputs=("input_ids", "attention_mask", "token_type_ids")))
    found = encoder.embed_texts(["Кот спит", "ሰዎች ከሰማያዊ", "😂😂😂", "people ሰዎች", "\u200b\u2060"]).vectors.any(axis=1)
    assert found.tolist() == [True, False, False, True, False]


def test_text_is_truncated_at_the_folder_s_limit_rather_than_the_tokenizer_s(tmp_path):
    encoder = OnnxTextEncoder(write_model(tmp_path))
    assert encoder.identity.text_tokens == 12
    found = encoder.embed_texts(["here " * 10, "here " * 11, "here " * 30])
    assert found.cut == (False, True, True)
    assert np.array_equal(found.vectors[1], found.vectors[2])


def test_identity_depends_on_the_files_and_not_on_their_path(tmp_path):
    first = OnnxTextEncoder(write_model(tmp_path / "one")).identity
    assert first.name == NAME == name_of(f"onnx:{tmp_path / 'one'}") and first.text_dim == DIM
    assert OnnxTextEncoder(Path(shutil.copytree(tmp_path / "one", tmp_path / "moved"))).identity == first
    others = {
        OnnxTextEncoder(write_model(tmp_path / "weights", seed=1)).identity.digest,
        OnnxTextEncoder(write_model(tmp_path / "pooling", pooling="pooling_mode_cls_token")).identity.digest,
        first.digest,
    }
    assert len(others) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no folder", "is no folder"),
        ("no tokenizer", "lacks one"),
        ("damaged model", "files are damaged"),
        ("damaged tokenizer", "files are damaged"),
        ("no pooling", "1_Pooling/config.json"),
        ("other pooling", "pools by pooling_mode_max_tokens"),
        ("other output", "it gives logits"),
        ("other input", "it takes"),
    ],
)
def test_unusable_encoders_are_refused_with_the_fault(tmp_path, fault, message):
    folder = tmp_path / "model"
    if fault != "no folder":
        write_model(
            folder,
            output="logits" if fault == "other output" else "last_hidden_state",
            pooling={"no pooling": None, "other pooling": "pooling_mode_max_tokens"}.get(
                fault, "pooling_mode_mean_tokens"
            ),
            inputs=("input_ids", "pixel_values") if fault == "other input" else ("input_ids",),
        )
    if fault == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    if fault.startswith("damaged"):
        (folder / ("model.onnx" if fault == "damaged model" else "tokenizer.json")).write_bytes(b"\x00{" * 9)
    with pytest.raises(BadRequest, match=message) as caught:
        load_encoder(f"onnx:{folder}")
    assert caught.value.reason == "ENCODER_DAMAGED"


def test_library_in_two_scripts_is_built_searched_and_used_by_a_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    folder, library = write_model(tmp_path / "model"), tmp_path / "library"
    rng, rows = np.random.default_rng(1), []
    for number in range(140):
        label, words = ("very harmful", LATIN) if number % 2 else ("not harmful", CYRILLIC)
        rows.append({"id": f"m{number}", "image": "", "labels": [label], "text": " ".join(rng.choice(words, 4))})
    source = tmp_path / "memes.jsonl"
    source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")

    def call(*arguments):
        done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    built = call("precedents", "build", library, source, "--encoder", f"onnx:{folder}")
    assert len(built.splitlines()) == 6, "rows, and five lines of summary"
    tuning = Library.open(library, None).manifest.tuning
    assert set(tuning.text_floors) == {"LATIN", "CYRILLIC"}, "measured for each script"
    assert tuning.floors_of("CYRILLIC").text == tuning.text_floors["CYRILLIC"] != tuning.floors_of("THAI").text
    with pytest.raises(BadLibrary, match="name them with --encoder"):
        load_encoder_for(library)
    options = ("--text", "кот спит на окне", "--library", library)
    found = call("precedents", "search", *options, "--encoder", f"onnx:{folder}")
    assert "not harmful" in found.splitlines()[0]
    shown = tmp_path / "meme.png"
    shown.write_bytes(png_of((200, 0, 0)))
    monkeypatch.setenv("MEMECOURT_ENCODER", f"onnx:{folder}")
    judged = call("judge", shown, *options, "--json", "--exit-zero")
    assert json.loads(judged)["verdict"]["label"] == "LABEL_NOT_HARMFUL" and "TEXT_NOT_UNDERSTOOD" not in judged
