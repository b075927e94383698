"""Errors and time of reading generated memes, compared with RapidOCR's own pipeline with its defaults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rapidocr
from numpy.typing import NDArray
from PIL import Image
from rapidfuzz.distance import Levenshtein
from rapidocr.utils.output import RapidOCROutput

from court.backends.ocr.reader import rapidocr_reader
from court.backends.ocr.reading_order import in_reading_order
from court.backends.onnx import import_onnxruntime
from court.backends.pictures.reader import GuardedPictureReader
from court.events import TextLine
from court.ports import Reading
from eval.perf.bench import Result, in_turns, medians
from eval.perf.reading.drawn import GROUPS, DrawnMeme, draw

_UNUSUAL = ("turned", "tall", "wide")
"""Groups on which speed is not measured: all others are upright and have 480 to 1,280 pixels a side."""
_CORES = 2
"""Processors that either may use: RapidOCR as threads of one process, the court's reader as two processes."""


class _Read(NamedTuple):
    """Texts of memes by group and number, and the seconds that reading took."""

    texts: Mapping[DrawnMeme, str]
    seconds: float


def reading(*, a_group: int = 24, turns: int = 4) -> Result:
    """Runs the benchmark.

    Args:
        a_group: Memes of each of the groups of :mod:`eval.perf.reading.drawn`.
        turns: Turns of each way, each with other memes.
    """
    memes = [draw(group, number) for group in GROUPS for number in range(a_group)]
    usual = [meme for meme in memes if meme.group not in _UNUSUAL]
    unusual = [meme for meme in memes if meme.group in _UNUSUAL]
    bare = _bare()
    with _ours() as ours:
        # Strided, not contiguous: each turn has some memes of every group.
        taken = in_turns([ours, bare], [usual[turn::turns] for turn in range(turns)])
        for_errors = [*taken, (ours(unusual), bare(unusual))]
    texts = [{meme: text for turn in for_errors for meme, text in turn[way].texts.items()} for way in (0, 1)]
    return Result(
        figures={
            **{
                f"{name}_{group}": _error_rate({meme: text for meme, text in texts[way].items() if meme.group == group})
                for group in GROUPS
                for way, name in enumerate(("ours", "bare"))
            },
            "errors_over_bare": _errors(texts[0], usual) / _errors(texts[1], usual),
            **medians(
                taken,
                ours_over_bare=lambda ours, bare: bare.seconds / ours.seconds,
                ours_memes_s=lambda ours, _: len(ours.texts) / ours.seconds,
                bare_memes_s=lambda _, bare: len(bare.texts) / bare.seconds,
            ),
        },
        goals={
            **{f"ours_{group}": "<= 0.02" for group in GROUPS if group != "wordless"},
            "errors_over_bare": "<= 1",
            "ours_over_bare": ">= 3",
        },
    )


@contextmanager
def _ours() -> Iterator[Callable[[Sequence[DrawnMeme]], _Read]]:
    """Yields a reader made of the court's readers of files and of text, in their processes."""
    pictures, reader = GuardedPictureReader(workers=_CORES), rapidocr_reader(workers=_CORES, threads=1)

    async def one(meme: DrawnMeme) -> str:
        return (await reader.read(await pictures.read(meme.file))).text

    async def every(memes: Sequence[DrawnMeme]) -> list[str]:
        return await asyncio.gather(*map(one, memes))

    async def close() -> None:
        await asyncio.gather(pictures.aclose(), reader.aclose())

    with asyncio.Runner() as runner:

        def read(memes: Sequence[DrawnMeme]) -> _Read:
            begin = time.perf_counter()
            texts = runner.run(every(memes))
            return _Read(dict(zip(memes, texts, strict=True)), time.perf_counter() - begin)

        try:
            yield read
        finally:
            # Closed in the loop that they were used in.
            runner.run(close())


def _bare() -> Callable[[Sequence[DrawnMeme]], _Read]:
    """Returns RapidOCR with its defaults in this process; its lines are put into reading order as ours are."""
    models = Path(rapidocr.__file__).parent / "models"
    # Imported before RapidOCR does it, with the settings that keep the runtime from reporting to its makers.
    import_onnxruntime()
    engine = rapidocr.RapidOCR(
        params={
            "Global.log_level": "critical",
            # Its default models, which it would otherwise download.
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
            "Cls.model_path": str(models / "ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            "EngineConfig.onnxruntime.intra_op_num_threads": _CORES,
        }
    )

    def one(meme: DrawnMeme) -> str:
        # On a white background, as in the court.
        with Image.open(BytesIO(meme.file)) as opened:
            picture = Image.new("RGBA", opened.size, (255, 255, 255, 255))
            picture.alpha_composite(opened.convert("RGBA"))
        # RapidOCR takes arrays in OpenCV's channel order, BGR; a reversed view is not contiguous.
        found = engine(np.ascontiguousarray(np.asarray(picture.convert("RGB"))[:, :, ::-1]))
        assert isinstance(found, RapidOCROutput)
        lines = [
            TextLine(text=text, confidence=min(1.0, float(score)), box=box.tolist(), frame=0)
            for text, score, box in zip(found.txts or (), found.scores or (), _rows(found.boxes), strict=True)
        ]
        return Reading(tuple(in_reading_order(lines))).text

    def read(memes: Sequence[DrawnMeme]) -> _Read:
        begin = time.perf_counter()
        texts = {meme: one(meme) for meme in memes}
        return _Read(texts, time.perf_counter() - begin)

    return read


def _rows(boxes: NDArray[np.float32] | None) -> Sequence[NDArray[np.float32]]:
    return () if boxes is None else [*boxes]


def _error_rate(texts: Mapping[DrawnMeme, str]) -> float:
    """Letters to be changed over letters present; for memes without text, letters read per meme."""
    return _errors(texts, texts) / (sum(len(meme.text) for meme in texts) or len(texts))


def _errors(texts: Mapping[DrawnMeme, str], memes: Iterable[DrawnMeme]) -> int:
    # Line breaks are not reading errors: any white space counts as one space.
    return sum(Levenshtein.distance(" ".join(texts[meme].split()), meme.text) for meme in memes)
