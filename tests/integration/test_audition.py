"""The command ``memecourt-eval audition`` over a real socket, with a stand-in whose odds carry planted information."""

import asyncio
import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from court.audition import Audition
from court.errors import BadRequest
from court.events import Procedure
from court.meme import Meme
from court.trial import TrialCase
from eval.cli import cli
from eval.standin.replies import scripted_reply
from eval.synthetic.oracle import Oracle
from serving.settings import ModelSettings, Settings
from serving.wiring import open_court
from tests.support.fakes import RecordingSink
from tests.support.playing import wait_until
from tests.support.stand_ins import served

WORDS = (
    "amber", "bakery", "candle", "dune", "engine", "fountain", "garden", "harbour", "island", "jacket", "kettle",
    "lantern", "meadow", "needle", "orchard", "paper", "quarry", "ribbon", "saddle", "tunnel", "umbrella", "valley",
)  # fmt: skip
SHORT = ("rounds_min=1", "rounds_max=1", "captioner=false", "overlap=false")
TRIED = 64


def chance(*parts):
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big") / 2**48


class Planted:
    """A stand-in whose odds know a label before or after the sides were heard, and are chance otherwise."""

    def __init__(self, knowing):
        self.knowing, self.asked = knowing, []

    def answer(self, payload):
        self.asked.append(json.dumps(payload["messages"], sort_keys=True))
        reply = scripted_reply(payload)
        if reply is None or "harmful_strength" not in reply:
            return reply
        number = self.number(payload)
        harmful = (number % 2 == 1) == (chance("ruling", number) < 0.75)
        strong, weak = ("harmful", "harmless") if harmful else ("harmless", "harmful")
        label = {f"{strong}_strength": "strong", f"{weak}_strength": "weak"}
        ruled = {**json.loads(reply), **label, "label": "harmful" if harmful else "not harmful"}
        ruled["rationale"] = "It is weighed by what the meme says."
        return json.dumps(ruled if harmful else {**ruled, "category": "none", "clause": "none", "target": "none"})

    def odds(self, payload):
        text = self.words(payload)
        number, argued = self.number(payload), "The side that says" in text
        self.asked.append(json.dumps(payload["messages"], sort_keys=True))
        knows = self.knowing == ("after" if argued else "before")
        noise = math.sqrt(-2 * math.log(chance(argued, number) or 0.5)) * math.cos(
            6.28 * chance("angle", argued, number)
        )
        odds = 1 / (1 + math.exp(-0.1 * (noise + knows * (3.0 if number % 2 else -3.0))))
        # The same in either order, as without a bias for a letter.
        first = "A) harmful" in text.rpartition("Answer with the letter")[0][-400:]
        return {"A": odds, "B": 1 - odds} if first else {"A": 1 - odds, "B": odds}

    def words(self, payload):
        content = payload["messages"][-1]["content"]
        return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)

    def number(self, payload):
        # Of the meme that is judged, not of a precedent.
        words = self.words(payload)
        found = re.search(r"meme(\d+)", words.rpartition("Text of the meme that is judged:")[2])
        return int(found[1]) if found else 0

    @property
    def about_memes(self):
        """Requests about a meme; those by which a start probes the server are left out."""
        return [each for each in self.asked if re.search(r"meme\d+", each)]


def write_table(path):
    """Labelled texts of drawn words, which say nothing about the label: the vote is without information."""
    rng, lines = random.Random(1), ["id,text,label,split"]
    for number in range(1, TRIED + 41):
        words = " ".join(rng.sample(WORDS, 9))
        label, split = "bad" if number % 2 else "fine", "test" if number <= TRIED else "train"
        lines.append(f"m{number},meme{number:04} {words},{label},{split}")
    path.write_text("\n".join(lines) + "\n")
    return path


def arguments(tmp_path, url, *more):
    sets = [word for one in (*SHORT, 'input="texts"') for word in ("--set", one)]
    table = ["--data", str(tmp_path / "memes.csv"), "--harmful", "bad", "--calibrate", str(tmp_path / "audition.json")]
    served_by = [f"--out={tmp_path / 'out'}", f"--llm-url={url}", "--model=planted", "--text-only"]
    return ["audition", *table, *served_by, *sets, *more]


def environment(tmp_path):
    return {**os.environ, "MEMECOURT_HOME": str(tmp_path / "home")}


def invoke(tmp_path, *words):
    result = CliRunner(env={"MEMECOURT_HOME": str(tmp_path / "home")}).invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("knowing", ["before", "after"])
def test_calibration_finds_the_odds_that_know_and_serving_uses_it(tmp_path, knowing, monkeypatch):
    monkeypatch.setattr("eval.scores.weighing.FEWEST", 60)
    write_table(tmp_path / "memes.csv")
    stand_in = Planted(knowing)
    with served(stand_in) as url:
        killed = subprocess.Popen(
            [sys.executable, "-m", "eval", *arguments(tmp_path, url)],
            env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda: len(stand_in.about_memes) > 200 or killed.poll() is not None)
        killed.kill()
        killed.wait()
        invoke(tmp_path, *arguments(tmp_path, url))
        # Calls that were in flight when it was killed are the only ones made twice.
        assert len(stand_in.about_memes) - len(set(stand_in.about_memes)) <= 16 * 8
        made = len(stand_in.about_memes)
        page = json.loads(invoke(tmp_path, *arguments(tmp_path, url, "--json")).stdout)
        assert len(stand_in.about_memes) == made
        audition = Audition.load(tmp_path / "audition.json")
        assert set(audition.weights) == {knowing} and audition.weights[knowing] > 1
        assert page["auroc"][knowing]["low"] > 0.8 and page["auroc"]["vote"]["low"] < 0.6
        asyncio.run(check_serving(tmp_path, url, audition))


async def check_serving(tmp_path, url, audition):
    settings = Settings(
        home=tmp_path / "home",
        docket=tmp_path / "docket.sqlite",
        library=tmp_path / "out" / "study" / "library",
        audition=tmp_path / "audition.json",
        procedure=Procedure.FULL,
        binding="off",
        reader="none",
        llm=ModelSettings(url=(url,), model="planted"),
        trial={"rounds_min": 1, "rounds_max": 1, "captioner": False, "overlap": False, "input": "texts"},
    )

    async def tried(changed):
        sentences = []
        async with open_court(changed, tell=sentences.append) as executor:
            case = TrialCase("t", Meme(None, text="meme0001 amber ribbon valley"), Procedure.FULL)
            record = await executor.court.run(case, RecordingSink())
        return record, [each for each in sentences if "audition" in each]

    record, sentences = await tried(settings)
    assert sentences == [] and record.verdict_event.weighed.calibration == audition.digest
    # Another number of rounds is another procedure: said once, and the verdict is as without a file.
    trial = settings.trial.model_copy(update={"rounds_max": 2})
    record, sentences = await tried(settings.model_copy(update={"trial": trial}))
    assert record.verdict_event.weighed is None
    assert len(sentences) == 1 and "does not count: it was of other settings." in sentences[0]
    (tmp_path / "damaged.json").write_text("{}")
    with pytest.raises(BadRequest, match=r"The audition damaged\.json can't be used"):
        await tried(settings.model_copy(update={"audition": tmp_path / "damaged.json"}))


@pytest.mark.parametrize("alone", [(), ("--text-only", "--set", 'input="texts"')], ids=["memes", "texts"])
def test_drawn_memes_give_a_page_and_a_judgement(tmp_path, alone):
    oracle = Oracle()
    with served(oracle, model="oracle", play="synthetic") as url:
        words = ["audition", f"--out={tmp_path / 'out'}", "--memes=8", f"--llm-url={url}", "--model=oracle", *alone]
        page = tmp_path / "page.html"
        shown = invoke(tmp_path, *words, "--html", str(page)).stdout
        figures = json.loads(invoke(tmp_path, *words, "--json").stdout)
    assert "the debate" in shown and "Run: " in shown and "What the debate is worth" in page.read_text()
    assert figures["measures"]["memes"] == 8 and figures["measures"]["usable at the first try"]["value"] == 1
    assert figures["measures"]["outcomes that flip with drawn replies"]["value"] == 0
    assert figures["unmoved"] == (figures["measures"]["odds after the debate, range of the middle nine tenths"] < 0.1)
    assert set(figures["auroc"]) == {"before", "after", "vote", "dull-judge", "equal-compute"}
    # The stand-in's odds know nothing of an argument, so that some sides seem to argue for the other.
    assert "PROPOSER" not in figures["unfit"] and figures["weights"] is None
    assert figures["lacks"] == ["a listing of its weights: their change under the same name goes unnoticed"]


def test_too_few_labelled_memes_are_refused_before_anything_is_tried(tmp_path):
    write_table(tmp_path / "memes.csv")
    stand_in = Planted("after")
    with served(stand_in) as url:
        result = CliRunner(env={"MEMECOURT_HOME": str(tmp_path / "home")}).invoke(cli, arguments(tmp_path, url))
    assert result.exit_code == 1 and "A calibration takes 200 labelled memes" in result.output
    assert not stand_in.about_memes and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--calibrate", "x.json"], "--calibrate needs labelled memes"),
        (["--split", "test"], "--split goes with --data"),
        (["--column", "text=words"], "--column goes with --data"),
        (["--memes", "61"], "61 is not in the range"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(tmp_path, words, message):
    result = CliRunner().invoke(cli, ["audition", "--out", str(tmp_path / "out"), *words])
    assert result.exit_code == 2 and message in result.output
