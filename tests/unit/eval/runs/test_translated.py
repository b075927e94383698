"""Tests of the arm ``translate``: texts in a language that the model can't judge are judged by their translations."""

import asyncio
import codecs
import json

import pytest

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest
from court.events import Procedure
from eval.datasets.items import Outcome
from eval.runs.controls import Control
from eval.runs.results import read_results
from eval.session.engine import Progress
from eval.studies.arms import ARMS, arms_named, run_study
from eval.synthetic.make import Layout, make
from eval.synthetic.messages import fenced
from eval.synthetic.oracle import Ability, Oracle
from tests.support.arms import play_all_roles, study
from tests.support.oracles import plain
from tests.support.run import docket_of

pytestmark = pytest.mark.slow


def rot13(text):
    """A text in an invented language; applied twice, it restores the text."""
    return codecs.encode(text, "rot13")


class Translator:
    """Judges like the oracle, which knows only English, and translates the invented language."""

    def __init__(self, reply=lambda text: {"translation": rot13(text)}):
        self.translated = []
        speaker = Oracle(Ability(eyes=1.0, harmful=1.0, benign=1.0))

        def reply_to(request):
            properties = (request.reply_schema or {}).get("properties", {})
            if "translation" in properties:
                # A repeated request also contains the unusable reply; the text comes first.
                text, *_ = fenced(part for part in request.parts if isinstance(part, str))
                self.translated.append(text)
                return reply(text)
            return speaker.reply(request.system, plain(request.parts), properties)

        def odds(request, options):
            masses = speaker.masses(plain(request.parts))
            return [masses[option] for option in options]

        self.model = ScriptedModel(reply_to, odds=odds, name="oracle")


@pytest.fixture
def translator(monkeypatch):
    played = Translator()
    play_all_roles(monkeypatch, played.model)
    return played


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A benchmark whose test split is written in the invented language."""
    root = make(tmp_path_factory.mktemp("spoken") / "data", Layout.HARMEME, train=24, val=4, test=8, seed=1).root
    test = root / "test.jsonl"
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    test.write_text("".join(json.dumps({**row, "text": rot13(row["text"])}) + "\n" for row in rows))
    return root


def test_translated_text_is_judged_by_its_translation(tmp_path, data, translator):
    arms = arms_named(["full", "translate"], (), Procedure.FULL)
    full, translate = (
        read_results(folder.root) for folder in asyncio.run(run_study(study(tmp_path, data, arms=arms), Progress()))
    )
    # In an unknown language, the model gives every meme the same answer; with translations, it is right about all.
    assert len({judged.prediction.outcome for judged in full.judged}) == 1
    assert all(judged.prediction.outcome.harmful is judged.meme.harmful for judged in translate.judged)
    texts = {judged.meme.id: judged.meme.text for judged in translate.judged}
    assert sorted(translator.translated) == sorted(texts.values())
    assert translate.manifest.control == Control.TRANSLATED

    async def records(docket):
        return [(judged.meme.id, await docket.trials.record(judged.prediction.trial)) for judged in translate.judged]

    class Folder:
        root = translate.root

    for id_, record in docket_of(Folder, records):
        assert record.text.text == rot13(texts[id_])
    # One call more than the trial itself, whose calls are equal in both arms.
    for judged in translate.judged:
        assert judged.prediction.cost.calls > 1
    # A resumed study translates nothing again.
    asyncio.run(run_study(study(tmp_path, data, arms=arms), Progress()))
    assert len(translator.translated) == len(texts)


def test_english_texts_are_not_translated(tmp_path, data, translator):
    arms = arms_named(["translate"], (), Procedure.FULL)[1:]
    (folder,) = asyncio.run(run_study(study(tmp_path, data, arms=arms, language="en"), Progress()))
    assert not translator.translated and len(folder.predictions()) == 8


def test_unusable_translation_fails_the_meme(tmp_path, data, monkeypatch):
    broken = Translator(lambda text: {"translation": ""})

    play_all_roles(monkeypatch, broken.model)
    arms = arms_named(["translate"], (), Procedure.FULL)[1:]
    (folder,) = asyncio.run(run_study(study(tmp_path, data, arms=arms, limit=2), Progress()))
    assert {prediction.outcome for prediction in folder.predictions()} == {Outcome.FAILED}
    assert all(prediction.reason for prediction in folder.predictions())


def test_translate_arm_runs_only_when_named_and_needs_models(tmp_path):
    assert "translate" not in {arm.name for arm in arms_named((), (), Procedure.FULL)} and "translate" in ARMS
    with pytest.raises(BadRequest, match="alters nothing where no model is asked"):
        arms_named(["translate"], (), Procedure.SUMMARY)


def test_stand_in_leaves_english_unchanged():
    translation = Oracle(Ability()).reply(
        "", ["Text of the meme:\n[begin m]\nsoup for all\n[end m]"], {"translation": {}}
    )
    assert translation == {"translation": "soup for all"}
