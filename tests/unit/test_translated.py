"""The arm translate: texts in a language that the model can't judge in are judged as their translations are."""

import asyncio
import codecs
import json
from contextlib import AsyncExitStack

import pytest
from click.testing import CliRunner

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest
from court.events import Procedure
from court.roles import RoleModel, RoleModels
from eval.cli import cli
from eval.runs.controls import Control
from eval.runs.prediction import Outcome
from eval.runs.progress import Progress
from eval.runs.results import read_results
from eval.studies.arms import ARMS, arms_named, run_study
from eval.synthetic.make import Layout, make
from eval.synthetic.oracle import Ability, Oracle, _fenced, _plain
from tests.support.encoders import WordEncoder
from tests.unit.test_arms import study
from tests.unit.test_run import docket_of

pytestmark = pytest.mark.slow


def turned(text):
    """A text in an invented language, and back again."""
    return codecs.encode(text, "rot13")


class Translator:
    """Judges as the oracle, which knows English alone, and translates the invented language."""

    def __init__(self, reply=lambda text: {"translation": turned(text)}):
        self.translated = []
        speaker = Oracle(Ability(eyes=1.0, harmful=1.0, benign=1.0))

        def says(request):
            wanted = (request.reply_schema or {}).get("properties", {})
            if "translation" in wanted:
                # Asked again for what could not be used, it is shown that as well.
                text, *_ = _fenced(_plain(request.parts))
                self.translated.append(text)
                return reply(text)
            return speaker.reply(request.system, _plain(request.parts), wanted)

        def odds(request, options):
            masses = speaker.odds(_plain(request.parts))
            return [masses[option] for option in options]

        self.model = ScriptedModel(says, odds=odds, name="oracle")


@pytest.fixture
def translator(monkeypatch):
    played = Translator()

    async def bench(settings, stack: AsyncExitStack, tell, **_):
        if settings.llm.url is None:
            return None
        chair = RoleModel(played.model)
        return RoleModels(chair, chair, chair, chair)

    monkeypatch.setattr("serving.wiring.connect_models", bench)
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)
    return played


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A benchmark whose test split is written in the invented language."""
    root = make(tmp_path_factory.mktemp("spoken") / "data", Layout.HARMEME, train=24, val=4, test=8, seed=1).root
    test = root / "test.jsonl"
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    test.write_text("".join(json.dumps({**row, "text": turned(row["text"])}) + "\n" for row in rows))
    return root


def test_a_translated_text_is_judged_as_its_translation_is(tmp_path, data, translator):
    arms = arms_named(["full", "translate"], (), Procedure.FULL)
    full, translate = (
        read_results(folder.root) for folder in asyncio.run(run_study(study(tmp_path, data, arms=arms), Progress()))
    )
    # Of a language that it doesn't know, the model says the same of all; translated, it is right about everything.
    assert len({one.prediction.outcome for one in full.judged}) == 1
    assert all(one.prediction.outcome.harmful is one.meme.harmful for one in translate.judged)
    texts = {one.meme.id: one.meme.text for one in translate.judged}
    assert sorted(translator.translated) == sorted(texts.values())
    assert translate.manifest.control == Control.TRANSLATED

    async def records(docket):
        return [(one.meme.id, await docket.trials.record(one.prediction.trial)) for one in translate.judged]

    class Folder:
        root = translate.root

    for id_, record in docket_of(Folder, records):
        assert record.text.text == turned(texts[id_])
    # A call and a link of the chain more than the trial, whose own calls both arms have in the same number.
    for one in translate.judged:
        assert one.prediction.cost.calls > 1 and one.prediction.cost.chain > 1
    # Taken up again, nothing is asked for anew.
    asyncio.run(run_study(study(tmp_path, data, arms=arms), Progress()))
    assert len(translator.translated) == len(texts)


def test_what_is_known_to_be_english_is_not_translated(tmp_path, data, translator):
    arms = arms_named(["translate"], (), Procedure.FULL)[1:]
    (folder,) = asyncio.run(run_study(study(tmp_path, data, arms=arms, language="en"), Progress()))
    assert not translator.translated and len(folder.predictions()) == 8


def test_a_translation_that_can_t_be_used_fails_the_meme_and_no_other_label_is_given(tmp_path, data, monkeypatch):
    broken = Translator(lambda text: {"translation": ""})

    async def bench(settings, stack, tell, **_):
        chair = RoleModel(broken.model)
        return None if settings.llm.url is None else RoleModels(chair, chair, chair, chair)

    monkeypatch.setattr("serving.wiring.connect_models", bench)
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)
    arms = arms_named(["translate"], (), Procedure.FULL)[1:]
    (folder,) = asyncio.run(run_study(study(tmp_path, data, arms=arms, limit=2), Progress()))
    assert {one.outcome for one in folder.predictions()} == {Outcome.FAILED}
    assert all(one.reason for one in folder.predictions())


def test_it_is_held_where_it_is_named_and_needs_models(tmp_path):
    assert "translate" not in {arm.name for arm in arms_named((), (), Procedure.FULL)} and "translate" in ARMS
    with pytest.raises(BadRequest, match="alters nothing where no model is asked"):
        arms_named(["translate"], (), Procedure.SUMMARY)
    assert "translate " in CliRunner().invoke(cli, ["ablate", "--arms", "list"]).output


def test_the_stand_in_leaves_english_as_it_is():
    said = Oracle(Ability()).reply("", ["Text of the meme:\n[begin m]\nsoup for all\n[end m]"], {"translation": {}})
    assert said == {"translation": "soup for all"}
