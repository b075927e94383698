"""The throughput of our CLIP encoder over that of the bare model; decoding, scaling and collecting cost the rest.

Pictures per second of :class:`retrieval.embed.clip.OpenClipEncoder`, from PNG to unit vector, over those of the bare
model on batches that are ready in memory. Both use the same model (ViT-B-32 with random weights, as values do not
affect the time), the same batches and threads, in turns of alternating order; the ratio is computed for each turn, so
that a slowdown affects both. On a shared machine, more threads get more of it; CPU time, which is not affected by
that, is reported as well.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from eval.perf.bench import Result, in_turns, medians
from eval.synthetic.scenes import SCENES, draw_meme
from retrieval.embed.clip import BATCH, OpenClipEncoder
from retrieval.embed.clip_names import ClipSource
from retrieval.embed.clip_weights import LoadedClip, preprocessing_of

_MODEL = "ViT-B-32"


def clip_encode(*, batches: int = 2, turns: int = 6) -> Result:
    """Runs the benchmark."""
    import torch

    # No sentence encoder is needed, and the model's own text half is loaded with it anyway.
    encoder = OpenClipEncoder(_random(), texts="clip")
    count = batches * BATCH
    pictures = [[_png(number)] for number in range(count)]
    prepared = encoder.prepare([frames[0] for frames in pictures])
    # Decoded and scaled before the clock starts, in the same batches as ours: only the model remains.
    ready = [prepared[start : start + BATCH] for start in range(0, count, BATCH)]

    def ours(_: int) -> _Taken:
        return _timed(lambda: encoder.embed_pictures(pictures))

    def bare(_: int) -> _Taken:
        return _timed(lambda: [encoder.forward(batch) for batch in ready])

    return Result(
        figures={
            **medians(
                in_turns([ours, bare], range(turns)),
                ours_over_bare=lambda ours, bare: bare.wall_s / ours.wall_s,
                ours_over_bare_cpu=lambda ours, bare: bare.cpu_s / ours.cpu_s,
                ours_pictures_s=lambda ours, _: count / ours.wall_s,
                bare_pictures_s=lambda _, bare: count / bare.wall_s,
            ),
            "on_gpu": int(torch.cuda.is_available()),
        },
        goals={"ours_over_bare": ">= 0.9"},
    )


class _Taken(NamedTuple):
    wall_s: float
    cpu_s: float


def _timed(work: Callable[[], object]) -> _Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return _Taken(time.perf_counter() - wall, time.process_time() - cpu)


def _random() -> LoadedClip:
    open_clip: Any = import_module("open_clip")
    logging.disable(logging.WARNING)  # open_clip warns that the weights are random, which is intended
    try:
        model = open_clip.create_model(_MODEL).eval().requires_grad_(False)
    finally:
        logging.disable(logging.NOTSET)
    config = open_clip.get_model_config(_MODEL)
    return LoadedClip(
        name=ClipSource(_MODEL, "random").name,
        model=model,
        known_as=_MODEL,
        config=config,
        preprocessing=preprocessing_of(model.visual.preprocess_cfg),
    )


def _png(number: int) -> bytes:
    """Returns a unique generated meme of 640 x 480 pixels."""
    png = io.BytesIO()
    scene = sorted(SCENES)[number % len(SCENES)]
    draw_meme(scene, f"Number {number}\nis like no other", seed=number).save(png, "PNG")
    return png.getvalue()
