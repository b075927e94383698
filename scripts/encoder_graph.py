"""Writes retrieval/embed/minilm.onnx, the built-in encoder's graph without weights; --check says whether it is current.

The weights are handed to onnxruntime when the graph is loaded (retrieval/embed/builtin.py), under the names that they
have here. The graph is written in onnxruntime's own fused operators: from the plain ones it would have to find them
again at each start, and it finds them only in some of the ways in which the same arithmetic can be written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, helper

from retrieval.embed.builtin import GRAPH, HEADS, HIDDEN, INNER, LAYERS, POSITIONS, WORDS

FUSED = "com.microsoft"
"""The domain of onnxruntime's own operators."""
EPSILON = 1e-12  # as the model's config.json has it


class _Graph:
    """Nodes and the weights that they need, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, name: str, *shape: int) -> str:
        """Declares a weight that is somewhere else; its name."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="model.safetensors")
        self.weights.append(tensor)
        return name

    def add(self, operator: str, inputs: list[str], output: str, *, domain: str = FUSED, **attributes: object) -> str:
        """Adds a node with one output; its name."""
        self.nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def norm(self, output: str, under: str, inputs: list[str], *, bias: str) -> str:
        """Adds the sum of two inputs and a bias, normalised; its name."""
        scale = [self.weight(f"{under}.weight", HIDDEN), self.weight(f"{under}.bias", HIDDEN)]
        inputs = [*inputs, *scale, self.weight(bias, HIDDEN)]
        return self.add("SkipLayerNormalization", inputs, output, epsilon=EPSILON)

    def product(self, output: str, of: str, under: str, shape: tuple[int, int]) -> str:
        """Adds the product of an input and a matrix of weights; its name."""
        return self.add("MatMul", [of, self.weight(f"{under}.weight", *shape)], output, domain="")


def graph() -> ModelProto:
    """The tokens of one text, shape (1, n), to the mean of what the last layer makes of them, shape (1, HIDDEN)."""
    made = _Graph()
    # No segments: the first row of their table is added to that of the positions where weights are loaded.
    tables = [
        made.weight("embeddings.word_embeddings.weight", WORDS, HIDDEN),
        made.weight("embeddings.position_embeddings.weight", POSITIONS, HIDDEN),
    ]
    scale = [made.weight(f"embeddings.LayerNorm.{part}", HIDDEN) for part in ("weight", "bias")]
    made.nodes.append(
        helper.make_node(
            "EmbedLayerNormalization",
            ["ids", "", *tables, "", *scale],
            ["embedded", "lengths"],
            domain=FUSED,
            epsilon=EPSILON,
        )
    )
    hidden = "embedded"
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        attention = [
            made.weight(f"{layer}.attention.self.weight", HIDDEN, 3 * HIDDEN),
            made.weight(f"{layer}.attention.self.bias", 3 * HIDDEN),
        ]
        seen = made.add("Attention", [hidden, *attention], f"attention.{number}", num_heads=HEADS)
        under = f"{layer}.attention.output"
        seen = made.product(f"attended.{number}", seen, f"{under}.dense", (HIDDEN, HIDDEN))
        hidden = made.norm(f"context.{number}", f"{under}.LayerNorm", [seen, hidden], bias=f"{under}.dense.bias")
        under = f"{layer}.intermediate.dense"
        wide = made.product(f"widened.{number}", hidden, under, (HIDDEN, INNER))
        wide = made.add("BiasGelu", [wide, made.weight(f"{under}.bias", INNER)], f"inner.{number}")
        under = f"{layer}.output"
        narrow = made.product(f"narrowed.{number}", wide, f"{under}.dense", (INNER, HIDDEN))
        hidden = made.norm(f"layer.{number}", f"{under}.LayerNorm", [narrow, hidden], bias=f"{under}.dense.bias")
    made.add("ReduceMean", [hidden], "mean", domain="", axes=[1], keepdims=0)
    return helper.make_model(
        helper.make_graph(
            made.nodes,
            name="all-MiniLM-L6-v2",
            inputs=[helper.make_tensor_value_info("ids", TensorProto.INT32, [1, "tokens"])],
            outputs=[helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, HIDDEN])],
            initializer=made.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)],
        ir_version=8,
        producer_name="memecourt",
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    # Deterministic, so that --check can compare bytes.
    made = graph().SerializeToString(deterministic=True)
    if not parser.parse_args().check:
        Path(GRAPH).write_bytes(made)
    elif made != Path(GRAPH).read_bytes():
        sys.exit("Out of date: retrieval/embed/minilm.onnx. Run scripts/encoder_graph.py and commit the result.")


if __name__ == "__main__":
    main()
