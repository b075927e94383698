"""Explanations of lost battles: planted faults are found, verdicts are used first, no model explains its own battle."""

import asyncio
import copy
import json
import re
import shutil
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest, ModelRefused
from eval.arena.events import Judged, LossExplained, NoReply
from eval.arena.folder import ArenaFolder
from eval.arena.leaderboard import leaderboard
from eval.arena.losses import loss_questions, loss_sections, losses_of
from eval.arena.words import LOSS_ERRORS, Verdict
from eval.datasets.known import find_card
from eval.models.metered import MeteredModel
from eval.models.samples import one_set, read_memes
from eval.synthetic.make import Layout, make
from tests.support.arena_world import (
    DIMENSIONS,
    STRENGTHS,
    Arena,
    ArenaModel,
    MemoryCallCache,
    ask_after,
    judged,
    on_disk,
    output_of,
)

ASPECTS = DIMENSIONS[:-1]
FAULTS = {"ash": "none", "beech": "knowledge", "cedar": "perception", "elm": "text", "fir": "reasoning"}


class Faulty(ArenaModel):
    """A model whose answers name their own fault."""

    def _quality(self, meme):
        return f"fault={FAULTS[self.name]} {super()._quality(meme)}"


@pytest.fixture(scope="module")
def finished_arena(tmp_path_factory):
    arena = Arena(
        tmp_path_factory.mktemp("lost"), memes=10, voices={name: Faulty(name, STRENGTHS) for name in STRENGTHS}
    )
    arena.hold()
    return arena


def reader(says=lambda request, usual: usual):
    """An explainer that reads the fault from the worse answer."""

    def reply(request):
        words = "\n".join(part for part in request.parts if isinstance(part, str))
        worse = words.split("The worse answer.")[1]
        requested = request.reply_schema["properties"]
        usual = {"why": "it overlooks something", "error": re.search(r"fault=(\w+)", worse)[1]}
        if "aspect" in requested:
            usual["aspect"] = requested["aspect"]["enum"][0]
        return says(request, usual)

    return reply


def explain(arena, losses, *, name="owl", second=None, says=lambda request, usual: usual, memes=None):
    """Has lost battles explained; returns the scripted models with the calls made."""
    questions = loss_questions(arena.folder.events(), losses, explainer=name, second=second, seed=0)
    return ask_after(arena, questions, {one: reader(says) for one in filter(None, (name, second))}, memes)


def figures_of_losses(arena, **options):
    return loss_sections(arena.manifest(), arena.folder.events(), **options)[1]


def test_planted_faults_are_found_and_shares_add_up(finished_arena):
    losses = losses_of(finished_arena.manifest(), finished_arena.folder.events(), most=12, seed=0)
    assert max(Counter(loss.loser for loss in losses).values()) <= 12
    models = explain(finished_arena, losses, second="lark")
    report = figures_of_losses(finished_arena, resamples=300)
    assert {one["model"] for one in report["models"]} == {loss.loser for loss in losses} >= {"cedar", "elm", "fir"}
    for one in report["models"]:
        always = one["errors"][FAULTS[one["model"]]]
        # Every resample is the same, as may happen by chance with few memes: hence the exact interval for that number.
        memes = len({loss.meme for loss in losses if loss.loser == one["model"]})
        assert (always.value, always.high) == (1, 1) and always.low == pytest.approx(0.025 ** (1 / memes))
        for shares in (one["aspects"], one["errors"]):
            assert sum(figure.value for figure in shares.values()) == pytest.approx(1)
        assert set(one["errors"]) == set(LOSS_ERRORS) and set(one["aspects"]) == set(ASPECTS)
    # A tenth is explained twice, by two models that agree.
    again = [e for e in finished_arena.folder.events() if isinstance(e, LossExplained) and e.second]
    assert len(again) == len(models["lark"].asked) == round(0.1 * len(losses))
    assert report["errors"].n == len(again) and report["errors"].observed == 1 and report["unexplained"] == 0
    # A second run makes no calls, and the leaderboard is unchanged.
    assert not any(model.asked for model in explain(finished_arena, losses, second="lark").values())
    assert leaderboard(finished_arena.root).overall.battles == 10 * 3 * 3


def test_aspects_that_verdicts_reveal_need_no_model_call(finished_arena):
    def verdicts(**worse):
        event = judged("m", "a", "b", "j", Verdict.A)
        by_dimension = {**dict.fromkeys(DIMENSIONS, Verdict.BOTH_GOOD), "overall": Verdict.A, **worse}
        return event.model_copy(update={"verdicts": by_dimension})

    manifest = finished_arena.manifest().model_copy(
        update={"settings": finished_arena.settings.model_copy(update={"targets": ("a", "b")})}
    )
    for event, aspects in (
        (verdicts(relevance=Verdict.A), ("relevance",)),
        (verdicts(relevance=Verdict.A, accuracy=Verdict.A), ("relevance", "accuracy")),
        (verdicts(relevance=Verdict.B), ASPECTS),
        (verdicts(), ASPECTS),
    ):
        (loss,) = losses_of(manifest, [event], most=5, seed=0)
        assert (loss.winner, loss.loser, loss.aspects, loss.why) == ("a", "b", aspects, "because")
    # Only judges that agree with the majority count.
    against = verdicts(correctness=Verdict.B, overall=Verdict.B).model_copy(update={"judge": "k"})
    both = [verdicts(relevance=Verdict.A), verdicts(relevance=Verdict.A).model_copy(update={"judge": "l"}), against]
    (loss,) = losses_of(manifest, both, most=5, seed=0)
    assert loss.aspects == ("relevance",)
    assert losses_of(manifest, [verdicts(), against], most=5, seed=0) == (), "a tie has no loser"


def test_explainer_prompts_are_fenced_and_anonymous(finished_arena):
    losses = losses_of(finished_arena.manifest(), finished_arena.folder.events(), most=50, seed=1)
    assert len({loss.aspects for loss in losses}) > 3
    losses = [loss for loss in losses if len(loss.aspects) == 1][:3] + [x for x in losses if len(x.aspects) > 1][:3]
    requests = []

    def says(request, usual):
        requests.append(request)
        return usual

    explain(finished_arena, losses, name="finch", says=says)
    aspects = {tuple(request.reply_schema["properties"].get("aspect", {}).get("enum", ())) for request in requests}
    assert () in aspects and any(len(one) > 1 for one in aspects)
    for request in requests:
        words = "\n".join(part for part in request.parts if isinstance(part, str))
        (mark,) = set(re.findall(r"\[begin (\w+)\]", words))
        bare = re.sub(rf"\[begin {mark}\].*?\[end {mark}\]", "", words, flags=re.DOTALL)
        assert not re.search(rf"\b({'|'.join(STRENGTHS)})\b|quality=|Blueland|compared them", bare)
    # After a second explanation each battle still counts by the first one.
    explainers = [e.explainer for e in finished_arena.folder.events() if isinstance(e, LossExplained)]
    assert "finch" in explainers
    report = figures_of_losses(finished_arena, resamples=100)
    assert sum(one["n"] for one in report["models"]) == len(
        {(e.meme, e.task, e.winner, e.loser) for e in finished_arena.folder.events() if isinstance(e, LossExplained)}
    )


def test_no_model_explains_its_own_battle_and_unusable_replies_are_counted(tmp_path):
    arena = Arena(tmp_path, memes=4, voices={name: Faulty(name, STRENGTHS) for name in STRENGTHS})
    arena.hold()
    losses = losses_of(arena.manifest(), arena.folder.events(), most=50, seed=0)

    def mute(request, usual):
        return "?" if "fault=text" in "".join(part for part in request.parts if isinstance(part, str)) else usual

    explain(arena, losses, name="ash", second="owl", says=mute)
    events = arena.folder.events()
    first = [e for e in events if isinstance(e, LossExplained) and not e.second]
    assert all(e.explainer not in (e.winner, e.loser) for e in first) and {e.explainer for e in first} == {"ash", "owl"}
    silent = [e for e in events if isinstance(e, NoReply)]
    unexplained = figures_of_losses(arena, resamples=100)["unexplained"]
    assert silent and unexplained == sum(e.to == "explanation" for e in silent)
    with pytest.raises(BadRequest, match="memes of the arena"):
        explain(arena, losses, name="owl", memes=())
    with pytest.raises(ModelRefused):
        explain(arena, losses, name="wren", says=lambda request, usual: ModelRefused("no such model", status=404))


def test_second_explanations_avoid_battles_of_either_explainer(finished_arena, tmp_path):
    arena = copy.copy(finished_arena)
    arena.folder = ArenaFolder(Path(shutil.copytree(finished_arena.root, tmp_path / "arena")))
    losses = losses_of(arena.manifest(), arena.folder.events(), most=12, seed=0)
    own = [loss for loss in losses if {loss.winner, loss.loser} & {"ash", "beech"}]
    # Two of twenty are explained twice: the two that both explainers may explain.
    explain(arena, [*own[:18], *[loss for loss in losses if loss not in own][:2]], name="ash", second="beech")
    by = [e for e in arena.folder.events() if isinstance(e, LossExplained) and e.explainer in ("ash", "beech")]
    assert all(e.explainer not in (e.winner, e.loser) for e in by) and sum(e.second for e in by) == 2


def test_only_losses_to_the_anchor_are_explained_when_there_is_one(tmp_path):
    arena = Arena(tmp_path, memes=4, pairing="baseline", anchor="cedar")
    arena.hold()
    losses = losses_of(arena.manifest(), arena.folder.events(), most=50, seed=0)
    assert losses and {loss.winner for loss in losses} == {"cedar"}
    lost = [e for e in arena.folder.events() if isinstance(e, Judged) and e.verdicts["overall"].score != 0.5]
    assert len(losses) < len(lost)


def test_command_reports_explanations(finished_arena, tmp_path):
    command = ("arena", "explain", "--out", finished_arena.root)
    explain(
        finished_arena,
        losses_of(finished_arena.manifest(), finished_arena.folder.events(), most=12, seed=0),
        second="lark",
    )
    report = output_of(*command, "--report")
    assert "Why battles were lost: in what" in report and "Two explainers agree on the error" in report
    page = (finished_arena.root / "losses.html").read_text()
    assert "perception" in page and "quality=" not in page and "style=" not in page
    figures = json.loads(output_of(*command, "--report", "--json"))
    assert figures["errors"]["n"] > 0 and "overlooks" not in json.dumps(figures)
    assert "Missing option --explainer" in output_of(*command, code=2)
    models = tmp_path / "arena.toml"
    models.write_text('[models.owl]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    command += ("--models", models, "--explainer")
    assert "has no model wren. It has: owl" in output_of(*command, "wren", code=2)
    assert "Missing option --data" in output_of(*command, "owl", code=2)
    arena = Arena(tmp_path / "new", memes=1)
    none = output_of("arena", "explain", "--out", arena.hold(), "--report", code=1)
    assert "No loss has been explained yet" in none


def test_loss_explained_later_by_another_model_counts_as_explained(tmp_path):
    arena = Arena(tmp_path, memes=2, voices={name: Faulty(name, STRENGTHS) for name in STRENGTHS})
    arena.hold()
    losses = losses_of(arena.manifest(), arena.folder.events(), most=1, seed=0)
    explain(arena, losses[:1], name="owl", says=lambda request, usual: "?")
    with pytest.raises(BadRequest, match="No loss has been explained yet"):
        figures_of_losses(arena)
    explain(arena, losses[:1], name="finch")
    assert figures_of_losses(arena, resamples=10)["unexplained"] == 0


def test_memes_with_questions_are_found_despite_a_limited_sample(tmp_path, monkeypatch):
    data = tmp_path / "data"
    make(data, Layout.HARMEME, train=4, val=0, test=4)

    def ids(limit):
        shown = asyncio.run(read_memes(one_set(find_card("synthetic-harmeme"), data, "test", limit=limit), seed=0))
        return [meme.id for meme in shown.memes]

    meme = next(one for one in ids(None) if one not in ids(1))
    tasks, models, out = tmp_path / "tasks.jsonl", tmp_path / "arena.toml", tmp_path / "arena"
    tasks.write_text("".join(json.dumps({"meme": meme, "rounds": [f"Who is it about, {n}?"]}) + "\n" for n in range(3)))
    models.write_text('[models.owl]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    on_disk(out, data, samples=one_set(find_card("synthetic-harmeme"), data, "test", limit=1), tasks=tasks)
    scripted = ScriptedModel(lambda request: {"why": "it overlooks something", "error": "text", **aspect_of(request)})

    @asynccontextmanager
    async def opened(chosen, *_, **__):
        yield {name: MeteredModel(name, scripted, store=MemoryCallCache()) for name in chosen}

    monkeypatch.setattr("eval.commands.follow_ups.opened_models", opened)
    output_of("arena", "explain", "--out", out, "--models", models, "--data", data, "--explainer", "owl")
    assert scripted.asked


def aspect_of(request):
    requested = request.reply_schema["properties"]
    return {"aspect": requested["aspect"]["enum"][0]} if "aspect" in requested else {}
