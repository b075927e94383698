"""Reads text with an installed Tesseract.

The parent queries its version and languages; the worker process, which runs this module as a program, calls it once per
frame.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from court.backends.ocr.worker_reader import WorkerTextReader
from court.backends.sandbox import child
from court.errors import NotLoaded, Unavailable

_SPARSE = "11"
"""Page segmentation mode for sparse text in any order, as on memes; the default expects columns of a page."""
_LEAST = 0.3
"""Minimum confidence of a word: Tesseract finds words in leaves and bricks."""
_ASK_S = 20.0
_DATA = "TESSDATA_PREFIX"
"""Environment variable with the folder of Tesseract's languages, if not the default."""


def tesseract_reader(languages: str = "eng", *, workers: int = 1) -> WorkerTextReader:
    """Creates a reader that runs Tesseract in sandboxed workers.

    Args:
        languages: Tesseract's names with plus signs between them, such as ``ara`` or ``eng+rus``.
        workers: Maximum number of processes.

    Raises:
        NotLoaded: Tesseract is not installed, or lacks a language.
        Unavailable: Tesseract can't be run.
    """
    program = shutil.which("tesseract")
    if program is None:
        raise NotLoaded(
            "Tesseract is not installed here, or not on the PATH: on Debian, `apt-get install tesseract-ocr`.",
            reason="TEXT_READER_NOT_INSTALLED",
        )
    installed = _output_of(program, "--list-langs").splitlines()[1:]
    if missing := [one for one in languages.split("+") if one not in installed]:
        raise NotLoaded(
            f"Tesseract has no language {', '.join(missing)} here; it has {', '.join(installed)}. On Debian, `apt-get "
            f"install tesseract-ocr-{missing[0].replace('_', '-')}`.",
            reason="TEXT_READER_NOT_INSTALLED",
        )
    version = re.search(r"\d+(\.\d+)+", _output_of(program, "--version"))
    return WorkerTextReader(
        f"tesseract/{version.group() if version else 'unknown'} {languages}, sparse text",
        module=__name__,
        settings={"program": program, "languages": languages, "data": os.environ.get(_DATA)},
        # Models for other languages don't read Latin letters reliably.
        reads_latin="eng" in languages.split("+"),
        workers=workers,
    )


def _output_of(program: str, option: str) -> str:
    try:
        return subprocess.run([program, option], capture_output=True, text=True, timeout=_ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        raise Unavailable(
            f"Tesseract is installed but can't be run: `tesseract {option}` fails.", reason="TEXT_READER_FAILED"
        ) from None


def lines_of(table: str, scale: float) -> list[dict[str, Any]]:
    """Parses Tesseract's table of words (TSV) into lines with mean confidence and upright boxes.

    Args:
        table: Table with a header; words of a line share block, paragraph and line numbers.
        scale: Pixels of the frame per pixel of the picture that was read.
    """
    lines: dict[tuple[str, ...], list[dict[str, str]]] = {}
    # No quoting: a quotation mark is part of a word, and would otherwise swallow following rows.
    for row in csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE):
        # Rows without text are blocks and lines; their confidence is -1.
        if row["text"].strip() and float(row["conf"]) >= 100 * _LEAST:
            lines.setdefault((row["block_num"], row["par_num"], row["line_num"]), []).append(row)
    found = []
    for words in lines.values():
        left, top = (min(int(word[side]) for word in words) * scale for side in ("left", "top"))
        right = max(int(word["left"]) + int(word["width"]) for word in words) * scale
        bottom = max(int(word["top"]) + int(word["height"]) for word in words) * scale
        found.append(
            {
                "text": " ".join(word["text"] for word in words),
                "confidence": sum(float(word["conf"]) for word in words) / len(words) / 100,
                "box": [[left, top], [right, top], [right, bottom], [left, bottom]],
            }
        )
    return found


def prepare(program: str, languages: str, data: str | None) -> child.Handler:
    """Returns a job handler that calls Tesseract.

    Args:
        languages: Names of the languages, with plus signs between them.
        data: Folder of the languages; None for Tesseract's own.
    """
    command = [program, "stdin", "stdout", "-l", languages, "--psm", _SPARSE, "-c", "tessedit_create_tsv=1"]
    # One thread, as there may be as many workers as processors.
    environment = {"OMP_THREAD_LIMIT": "1"} | ({} if data is None else {_DATA: data})

    def answer(job: Mapping[str, Any], payloads: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        done = subprocess.run(command, input=payloads[0], capture_output=True, check=True, env=environment)
        # The first row is the page, with the size of the picture that was read, which may be larger than the frame.
        table = done.stdout.decode("utf-8", "replace")
        page = next(csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE))
        return {"lines": lines_of(table, job["size"][0] / int(page["width"]))}, []

    return answer


def main() -> None:
    """Serves jobs until the parent process exits."""
    settings = json.loads(sys.argv[1])
    child.serve(prepare(settings["program"], settings["languages"], settings["data"]))


if __name__ == "__main__":
    main()
