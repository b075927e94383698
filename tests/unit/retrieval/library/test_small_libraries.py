"""Tests of tiny libraries, of one label or of copies: they are built, searched and described without any NaN."""

import asyncio
import json
import math

import pytest
from click.testing import CliRunner

from court.events import TextRead, TextSource
from court.policy import DEFAULT_POLICY
from court.settings import TrialSettings
from court.summary import vote_if_close, weigh
from court.verdict import Label
from retrieval.build import build_library
from retrieval.library.sources import Source
from retrieval.precedents.finder import LibraryFinder
from serving.cli.main import cli
from tests.support.encoders import WordEncoder

CASES = {
    "one": [(True, "people from Blueland lie")],
    "eight": [(n % 2 == 0, f"note {n} {'lies' if n % 2 == 0 else 'sings'}") for n in range(8)],
    "49 and 51": [(n < 49, f"note {n} {'lies' if n < 49 else 'sings'}") for n in range(100)],
    "51 and 51": [(n < 51, f"note {n} {'lies' if n < 51 else 'sings'}") for n in range(102)],
    "harmful only": [(True, f"note {n}") for n in range(120)],
    "benign only": [(False, f"note {n}") for n in range(120)],
    "all the same": [(n % 2 == 0, "the very same words") for n in range(140)],
    "all different": [(n % 2 == 0, f"{n}") for n in range(140)],
}


def build(folder, name):
    source = folder / "memes.jsonl"
    rows = [
        {"id": f"m{n}", "image": "", "labels": ["very harmful" if harmful else "not harmful"], "text": text}
        for n, (harmful, text) in enumerate(CASES[name])
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = build_library(folder / "library", [Source(source)], name=name, encoder=WordEncoder())
    return asyncio.run(work)[0]


def numbers(found):
    match found:
        case dict():
            return [number for value in found.values() for number in numbers(value)]
        case list():
            return [number for value in found for number in numbers(value)]
        case float() | int():
            return [float(found)]
    return []


@pytest.mark.parametrize("text", ["note 7 lies", "a", "", "words that nobody has used before"])
@pytest.mark.parametrize("name", CASES)
def test_every_library_gives_a_verdict_with_finite_figures(tmp_path, name, text):
    library = build(tmp_path, name)
    assert all(map(math.isfinite, numbers(library.manifest.model_dump(mode="json"))))
    assert (library.manifest.tuning.regression is not None) == (name in ("51 and 51", "all different"))
    finder = LibraryFinder(library, WordEncoder())
    search = finder.find(text=text, frames=(), pixels_sha256="", exhibits=3, tally=25, alpha=None)
    findings = asyncio.run(search)
    read = TextRead(trial_id="t", seq=1, at=library.manifest.created, text=text, source=TextSource.CALLER)
    verdict = weigh(findings, vote_if_close(findings), read, TrialSettings(), policy=DEFAULT_POLICY)
    assert all(map(math.isfinite, numbers(verdict.model_dump(mode="json"))))
    reasons = {review.reason for review in verdict.review}
    if not text:
        assert verdict.label is Label.UNDECIDED
    if verdict.label is Label.UNDECIDED or library.manifest.tuning.risk is None:
        assert reasons, "the library's risk was not measured: a person reviews"
    if name == "harmful only" and text:
        assert verdict.label is not Label.NOT_HARMFUL


@pytest.mark.parametrize("name", CASES)
def test_info_shows_finite_figures(tmp_path, name):
    build(tmp_path, name)
    shown = CliRunner().invoke(cli, ["precedents", "info", "--library", str(tmp_path / "library")])
    assert shown.exit_code == 0 and "nan" not in shown.stdout.replace("dominant", "")


def test_empty_library_is_refused(tmp_path):
    source = tmp_path / "memes.jsonl"
    source.write_text("")
    done = CliRunner().invoke(cli, ["precedents", "build", str(tmp_path / "library"), str(source)])
    assert done.exit_code == 1 and "Traceback" not in done.output and not (tmp_path / "library").exists()


def test_calibration_reports_the_share_of_copies(tmp_path):
    assert build(tmp_path / "", "all the same").manifest.tuning.calibration.repeated == 1
