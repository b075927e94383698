"""Why battles were lost: planted faults come out, verdicts tell what they can, and nobody explains its own battle."""

import asyncio
import copy
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest, ModelRefused
from eval.arena.events import Judged, LossExplained, LossNotExplained
from eval.arena.folder import ArenaFolder
from eval.arena.leaderboard import leaderboard
from eval.arena.losses import explain_losses, loss_report, losses_of
from eval.arena.words import LossError, Verdict
from eval.cli import cli
from eval.datasets.known import DATASETS
from eval.models.metered import MeteredModel
from eval.models.samples import one_set, read_memes
from eval.synthetic.make import Layout, make
from tests.support.arena_world import DIMENSIONS, STRENGTHS, Arena, Memory, Voice
from tests.unit.test_arena import on_disk
from tests.unit.test_arena_judges import judged

ASPECTS = DIMENSIONS[:-1]
FAULTS = {"ash": "none", "beech": "knowledge", "cedar": "perception", "elm": "text", "fir": "reasoning"}


class Faulty(Voice):
    """A model whose answers say what is wrong with them."""

    def _quality(self, meme):
        return f"fault={FAULTS[self.name]} {super()._quality(meme)}"


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    arena = Arena(
        tmp_path_factory.mktemp("lost"),
        memes=10,
        voices={name: Faulty(name, STRENGTHS) for name in STRENGTHS},
    )
    arena.hold()
    return arena


def reader(says=lambda request, usual: usual):
    """An explainer that reads off the worse answer what is wrong with it."""

    def reply(request):
        words = "\n".join(part for part in request.parts if isinstance(part, str))
        worse = words.split("The worse answer.")[1]
        asked = request.reply_schema["properties"]
        usual = {"why": "it overlooks something", "error": re.search(r"fault=(\w+)", worse)[1]}
        if "aspect" in asked:
            usual["aspect"] = asked["aspect"]["enum"][0]
        return says(request, usual)

    return reply


def explained(arena, losses, *, name="owl", second=None, says=lambda request, usual: usual, memes=None):
    """Calls that were made, and the events."""
    scripted = {one: ScriptedModel(reader(says), name=one) for one in filter(None, (name, second))}
    store = Memory()
    chairs = {one: MeteredModel(one, model, store=store) for one, model in scripted.items()}
    known = {meme.id: meme for meme in (arena.memes if memes is None else memes)}
    asked = explain_losses(
        arena.folder, losses, known, explainer=chairs[name], second=chairs[second] if second else None, seed=0
    )
    asyncio.run(asked)
    return scripted


def test_planted_faults_are_found_and_rows_add_up(held):
    losses = losses_of(held.manifest(), held.folder.events(), most=12, seed=0)
    assert max(Counter(loss.loser for loss in losses).values()) <= 12
    models = explained(held, losses, second="lark")
    report = loss_report(held.manifest(), held.folder.events(), resamples=300)
    assert {one.model for one in report.models} == {loss.loser for loss in losses} >= {"cedar", "elm", "fir"}
    for one in report.models:
        always = one.errors[FAULTS[one.model]]
        # All alike in every resample, which few memes would be by chance too: the exact interval of that many memes.
        memes = len({loss.meme for loss in losses if loss.loser == one.model})
        assert (always.value, always.high) == (1, 1) and always.low == pytest.approx(0.025 ** (1 / memes))
        for shares in (one.aspects, one.errors):
            assert sum(figure.value for figure in shares.values()) == pytest.approx(1)
        assert set(one.errors) == set(map(str, LossError)) and set(one.aspects) == set(ASPECTS)
    # A tenth is heard twice, by two who agree.
    again = [e for e in held.folder.events() if isinstance(e, LossExplained) and e.second]
    assert len(again) == len(models["lark"].asked) == round(0.1 * len(losses))
    assert report.errors.n == len(again) and report.errors.observed == 1 and report.unexplained == 0
    # Called again, nobody is asked; what the leaderboard says is as before.
    assert not any(model.asked for model in explained(held, losses, second="lark").values())
    assert leaderboard(held.root).board("overall").battles == 10 * 3 * 3


def test_where_verdicts_tell_the_aspect_nobody_is_asked(held):
    def verdicts(**worse):
        event = judged("m", "a", "b", "j", Verdict.A)
        said = {**dict.fromkeys(DIMENSIONS, Verdict.BOTH_GOOD), "overall": Verdict.A, **worse}
        return event.model_copy(update={"verdicts": said})

    manifest = held.manifest().model_copy(update={"settings": held.settings.model_copy(update={"targets": ("a", "b")})})
    for event, aspects in (
        (verdicts(relevance=Verdict.A), ("relevance",)),
        (verdicts(relevance=Verdict.A, accuracy=Verdict.A), ("relevance", "accuracy")),
        (verdicts(relevance=Verdict.B), ASPECTS),
        (verdicts(), ASPECTS),
    ):
        (loss,) = losses_of(manifest, [event], most=5, seed=0)
        assert (loss.winner, loss.loser, loss.aspects, loss.why) == ("a", "b", aspects, "because")
    # Of several judges those count who agree with the vote.
    against = verdicts(correctness=Verdict.B, overall=Verdict.B).model_copy(update={"judge": "k"})
    both = [verdicts(relevance=Verdict.A), verdicts(relevance=Verdict.A).model_copy(update={"judge": "l"}), against]
    (loss,) = losses_of(manifest, both, most=5, seed=0)
    assert loss.aspects == ("relevance",)
    assert losses_of(manifest, [verdicts(), against], most=5, seed=0) == (), "even votes have no loser"


def test_what_an_explainer_is_shown_stands_in_fences_and_names_nobody(held):
    losses = losses_of(held.manifest(), held.folder.events(), most=50, seed=1)
    assert len({loss.aspects for loss in losses}) > 3
    losses = [loss for loss in losses if len(loss.aspects) == 1][:3] + [x for x in losses if len(x.aspects) > 1][:3]
    seen = []

    def says(request, usual):
        seen.append(request)
        return usual

    explained(held, losses, name="finch", says=says)
    aspects = {tuple(request.reply_schema["properties"].get("aspect", {}).get("enum", ())) for request in seen}
    assert () in aspects and any(len(one) > 1 for one in aspects)
    for request in seen:
        words = "\n".join(part for part in request.parts if isinstance(part, str))
        (mark,) = set(re.findall(r"\[begin (\w+)\]", words))
        bare = re.sub(rf"\[begin {mark}\].*?\[end {mark}\]", "", words, flags=re.DOTALL)
        assert not re.search(rf"\b({'|'.join(STRENGTHS)})\b|quality=|Blueland|compared them", bare)
    # Explained by another one, each battle counts as before: by whoever was asked first.
    explainers = [e.explainer for e in held.folder.events() if isinstance(e, LossExplained)]
    assert "finch" in explainers
    told = loss_report(held.manifest(), held.folder.events(), resamples=100)
    assert sum(one.n for one in told.models) == len(
        {(e.meme, e.task, e.winner, e.loser) for e in held.folder.events() if isinstance(e, LossExplained)}
    )


def test_no_model_explains_its_own_battle_and_what_is_no_explanation_is_counted(tmp_path):
    arena = Arena(tmp_path, memes=4, voices={name: Faulty(name, STRENGTHS) for name in STRENGTHS})
    arena.hold()
    losses = losses_of(arena.manifest(), arena.folder.events(), most=50, seed=0)

    def mute(request, usual):
        return "?" if "fault=text" in "".join(part for part in request.parts if isinstance(part, str)) else usual

    explained(arena, losses, name="ash", second="owl", says=mute)
    events = arena.folder.events()
    first = [e for e in events if isinstance(e, LossExplained) and not e.second]
    assert all(e.explainer not in (e.winner, e.loser) for e in first) and {e.explainer for e in first} == {"ash", "owl"}
    silent = [e for e in events if isinstance(e, LossNotExplained)]
    report = loss_report(arena.manifest(), events, resamples=100)
    assert silent and report.unexplained == sum(not e.second for e in silent)
    with pytest.raises(BadRequest, match="memes of the lost battles"):
        explained(arena, losses, name="owl", memes=())
    with pytest.raises(ModelRefused):
        explained(arena, losses, name="wren", says=lambda request, usual: ModelRefused("no such model", status=404))


def test_a_tenth_is_heard_twice_though_both_explainers_fought_in_most_battles(held, tmp_path):
    arena = copy.copy(held)
    arena.folder = ArenaFolder(Path(shutil.copytree(held.root, tmp_path / "arena")))
    losses = losses_of(arena.manifest(), arena.folder.events(), most=12, seed=0)
    own = [loss for loss in losses if {loss.winner, loss.loser} & {"ash", "beech"}]
    # Two of twenty are heard twice: the two that both may explain, and not two by chance that neither may.
    explained(arena, [*own[:18], *[loss for loss in losses if loss not in own][:2]], name="ash", second="beech")
    by = [e for e in arena.folder.events() if isinstance(e, LossExplained) and e.explainer in ("ash", "beech")]
    assert all(e.explainer not in (e.winner, e.loser) for e in by) and sum(e.second for e in by) == 2


def test_with_an_anchor_losses_are_against_it(tmp_path):
    arena = Arena(tmp_path, memes=4, pairing="baseline", anchor="cedar")
    arena.hold()
    losses = losses_of(arena.manifest(), arena.folder.events(), most=50, seed=0)
    assert losses and {loss.winner for loss in losses} == {"cedar"}
    lost = [e for e in arena.folder.events() if isinstance(e, Judged) and e.verdicts["overall"].score != 0.5]
    assert len(losses) < len(lost)


def test_the_command_reports_on_what_was_said(held, tmp_path):
    def said(*options, code=0):
        ran = CliRunner().invoke(cli, ["arena", "explain", "--out", str(held.root), *options])
        assert ran.exit_code == code, ran.output
        return ran.output

    explained(held, losses_of(held.manifest(), held.folder.events(), most=12, seed=0), second="lark")
    told = said("--report")
    assert "Why battles were lost: in what" in told and "Two explainers agree on the error" in told
    page = (held.root / "losses.html").read_text()
    assert "perception" in page and "quality=" not in page and "style=" not in page
    figures = json.loads(said("--report", "--json"))
    assert figures["errors"]["n"] > 0 and "overlooks" not in json.dumps(figures)
    assert "Missing option --explainer" in said(code=2)
    models = tmp_path / "arena.toml"
    models.write_text('[models.owl]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    assert "has no model wren. It has: owl" in said("--models", str(models), "--explainer", "wren", code=2)
    assert "Missing option --data" in said("--models", str(models), "--explainer", "owl", code=2)
    arena = Arena(tmp_path / "new", memes=1)
    arena.root.mkdir()
    arena.hold()
    ran = CliRunner().invoke(cli, ["arena", "explain", "--out", str(arena.root), "--report"])
    assert ran.exit_code == 1 and "No loss has been explained yet" in ran.output


def test_a_line_that_a_crash_cut_spoils_no_later_one(tmp_path):
    arena = Arena(tmp_path, memes=2, voices={name: Faulty(name, STRENGTHS) for name in STRENGTHS})
    arena.hold()
    losses = losses_of(arena.manifest(), arena.folder.events(), most=1, seed=0)
    before = arena.folder.events()
    with (arena.root / "events.jsonl").open("a") as file:
        file.write('{"kind": "LossExpl')
    explained(arena, losses)
    events = arena.folder.events()
    assert events[: len(before)] == before and len(events) > len(before)


def test_a_loss_that_another_model_explained_later_is_no_unexplained_one(tmp_path):
    arena = Arena(tmp_path, memes=2, voices={name: Faulty(name, STRENGTHS) for name in STRENGTHS})
    arena.hold()
    losses = losses_of(arena.manifest(), arena.folder.events(), most=1, seed=0)
    explained(arena, losses[:1], name="owl", says=lambda request, usual: "?")
    assert loss_report(arena.manifest(), arena.folder.events()) is None
    explained(arena, losses[:1], name="finch")
    assert loss_report(arena.manifest(), arena.folder.events(), resamples=10).unexplained == 0


def test_memes_with_questions_are_found_again_though_the_sample_was_limited(tmp_path, monkeypatch):
    data = tmp_path / "data"
    make(data, Layout.HARMEME, train=4, val=0, test=4)

    def ids(limit):
        shown, _ = asyncio.run(read_memes(one_set(DATASETS["synthetic-harmeme"], data, "test", limit=limit), seed=0))
        return [meme.id for meme in shown.memes]

    meme = next(one for one in ids(None) if one not in ids(1))
    tasks, models, out = tmp_path / "tasks.jsonl", tmp_path / "arena.toml", tmp_path / "arena"
    tasks.write_text("".join(json.dumps({"meme": meme, "rounds": [f"Who is it about, {n}?"]}) + "\n" for n in range(3)))
    models.write_text('[models.owl]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    on_disk(out, data, samples=one_set(DATASETS["synthetic-harmeme"], data, "test", limit=1), tasks=tasks)
    scripted = ScriptedModel(lambda request: {"why": "it overlooks something", "error": "text", **aspect_of(request)})

    async def chairs(chosen, store, *_, **__):
        return {name: MeteredModel(name, scripted, store=store) for name in chosen}

    monkeypatch.setattr("eval.models.open.open_chairs", chairs)
    options = ["--out", str(out), "--models", str(models), "--data", str(data), "--explainer", "owl"]
    ran = CliRunner().invoke(cli, ["arena", "explain", *options])
    assert ran.exit_code == 0 and scripted.asked, ran.output


def aspect_of(request):
    asked = request.reply_schema["properties"]
    return {"aspect": asked["aspect"]["enum"][0]} if "aspect" in asked else {}
