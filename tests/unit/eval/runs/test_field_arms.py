"""Arms after other publications, on an oracle: each wins where its worth is planted, and changes nothing elsewhere."""

import asyncio
from dataclasses import replace

import pytest

from eval.datasets.items import Protocol
from eval.runs.results import read_results
from eval.scores.compare import compare
from eval.session.engine import Progress
from eval.studies.arms import FROM_THE_FIELD, run_study
from eval.synthetic.make import Layout, make
from eval.synthetic.oracle import Ability
from tests.support.arms import play_all_roles, study
from tests.support.oracles import oracle

pytestmark = pytest.mark.slow
MEMES = 24
PLAIN = Ability(harmful=1, benign=1, unseen=0, eyes=0.3, description=0.1, arguments=0.05, answers=0.1, precedents=0)
WORTH = replace(PLAIN, reviewed=0.5, readings=0.5, fetched=0.5)
# Who asks as the defender alone learns of the badge, so that the accuser does only where it takes that part at first.
ONE_SIDED = replace(PLAIN, answers=0.5, asked_by="defender")
RIVALS = {
    "self-correct": "plain-judge",
    "paraphrase": "plain-judge",
    "role-switch": "full",
    "progressive-retrieval": "full",
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Memes whose library has near ones."""
    root = tmp_path_factory.mktemp("drawn") / "data"
    return make(root, Layout.HARMEME, train=2 * MEMES, val=0, test=MEMES, seed=1, near=True, size=(320, 240)).root


def judged(monkeypatch, tmp_path, data, ability, *arms):
    play_all_roles(monkeypatch, model := oracle(ability))
    planned = study(tmp_path, data, "plain-judge", *arms)
    return model, {run.root.name: read_results(run.root) for run in asyncio.run(run_study(planned, Progress()))}


def lead(results, arm):
    found = compare(results[arm], results[RIVALS[arm]], Protocol.MERGED, resamples=200)
    return found, found.only_a_right - found.only_b_right


@pytest.mark.parametrize(
    ("ability", "arms"),
    [(WORTH, [arm for arm in FROM_THE_FIELD if arm != "role-switch"]), (ONE_SIDED, ["role-switch"])],
    ids=["aids", "one-sided questions"],
)
def test_each_arm_wins_where_its_worth_is_planted(monkeypatch, tmp_path, drawn, ability, arms):
    _, results = judged(monkeypatch, tmp_path, drawn, ability, *arms)
    for arm in arms:
        found, ahead = lead(results, arm)
        assert found.sure and ahead > 0, (arm, found.only_a_right, found.only_b_right)


def test_without_planted_worth_no_arm_changes_a_verdict(monkeypatch, tmp_path, drawn):
    model, results = judged(monkeypatch, tmp_path, drawn, PLAIN, *FROM_THE_FIELD)
    for arm in FROM_THE_FIELD:
        found, _ = lead(results, arm)
        assert found.only_a_right == found.only_b_right == 0, arm
    costs = {
        arm: [(one.prediction.cost.tokens_in + one.prediction.cost.tokens_out) for one in results[arm].judged]
        for arm in results
    }
    # One model with the tokens of the full trial: at most those of each meme, and nearly all of them.
    assert all(own <= full for own, full in zip(costs["self-correct"], costs["full"], strict=True))
    assert sum(costs["self-correct"]) > 0.9 * sum(costs["full"])
    assert {one.prediction.cost.calls for one in results["paraphrase"].judged} == {3}
    assert not any(one.prediction.reason for arm in FROM_THE_FIELD for one in results[arm].judged)
    # The witness's answers come with precedents in that arm alone, and each meme's are near to it.
    answers = [text for call in model.asked for text in summing_up(call.request) if "On file:" in text]
    assert answers and all('a meme with the words "' in text and " was found " in text for text in answers)


def summing_up(request):
    wanted = (request.reply_schema or {}).get("properties", {})
    return [part for part in request.parts if isinstance(part, str)] if "summary" in wanted else []
