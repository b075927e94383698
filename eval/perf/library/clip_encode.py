"""How much of what a CLIP model could do is done: decoding, scaling and collecting cost the rest.

Pictures a second of :class:`retrieval.embed.clip.OpenClipEncoder`, from PNG to unit vector, over those of the
bare model on batches that are ready in memory. Both with the same model (ViT-B-32, random weights: values cost no
time), the same batches and threads, in turns, now the one first and now the other; the ratio is formed turn by turn, so
that a machine that slows down slows both. On a machine that does other work too, more threads win more of it: CPU time,
which knows nothing of that, stands beside.
"""

from __future__ import annotations

import io
import logging
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from eval.perf.bench import Result
from retrieval.embed.clip import BATCH, OpenClipEncoder
from retrieval.embed.clip_names import ClipSource
from retrieval.embed.clip_weights import LoadedClip, preprocessing_of
from retrieval.starter.draw import SCENES, draw_meme

_MODEL = "ViT-B-32"
_PICTURES = 2 * BATCH
_TURNS = 6


def measure() -> Result:
    """Runs the benchmark."""
    import torch

    # The sentence encoder has no part in it, and the model's own text half is loaded with it anyway.
    encoder = OpenClipEncoder(_random(), texts="clip")
    pictures = [[_png(number)] for number in range(_PICTURES)]
    prepared = encoder.prepare([frames[0] for frames in pictures])
    ready = [prepared[start : start + BATCH] for start in range(0, _PICTURES, BATCH)]

    def ours() -> None:
        encoder.embed_pictures(pictures)

    def bare() -> None:
        for batch in ready:
            encoder.forward(batch)

    _timed(ours), _timed(bare)  # the first of each warms up
    turns = []
    for turn in range(_TURNS):
        first, second = (ours, bare) if turn % 2 else (bare, ours)
        taken = {first: _timed(first), second: _timed(second)}
        turns.append((taken[ours], taken[bare]))
    return Result(
        name="clip-encode",
        figures={
            "ours_over_bare": round(statistics.median(b.wall_s / a.wall_s for a, b in turns), 3),
            "ours_over_bare_cpu": round(statistics.median(b.cpu_s / a.cpu_s for a, b in turns), 3),
            "ours_pictures_s": round(statistics.median(_PICTURES / a.wall_s for a, _ in turns), 1),
            "bare_pictures_s": round(statistics.median(_PICTURES / b.wall_s for _, b in turns), 1),
            "on_gpu": float(torch.cuda.is_available()),
        },
        goals={"ours_over_bare": ">= 0.9"},
    )


class _Taken(NamedTuple):
    wall_s: float
    cpu_s: float


def _timed(work: Callable[[], None]) -> _Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return _Taken(time.perf_counter() - wall, time.process_time() - cpu)


def _random() -> LoadedClip:
    open_clip: Any = import_module("open_clip")
    logging.disable(logging.WARNING)  # open_clip warns that the weights are random: so they are meant to be
    try:
        model = open_clip.create_model(_MODEL).eval().requires_grad_(False)
    finally:
        logging.disable(logging.NOTSET)
    config = open_clip.get_model_config(_MODEL)
    return LoadedClip(
        ClipSource(_MODEL, "random").name, model, _MODEL, config, preprocessing_of(model.visual.preprocess_cfg)
    )


def _png(number: int) -> bytes:
    """A drawn meme of 640 x 480 pixels, like no other."""
    png = io.BytesIO()
    scene = sorted(SCENES)[number % len(SCENES)]
    draw_meme(scene, f"Number {number}\nis like no other", seed=number).save(png, "PNG")
    return png.getvalue()
