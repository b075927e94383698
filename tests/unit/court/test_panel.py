"""A panel of judges: median strengths, disagreement, resuming, and the calls each judge gets."""

import itertools
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest
from court.events import JudgeRuled, ModelCall, OddsGiven, Procedure, VerdictGiven
from court.judgment import Opinion, disagreement, joined_odds, mean_score, median_strengths, spokesman_of
from court.precedents import SureRange
from court.record import TrialAborted
from court.replies import RulingReply
from court.roles import RoleModel
from court.settings import TrialSettings
from court.verdict import Label, ReviewReason, ScoreMeaning, Strength, Strengths, rule
from eval.models.call_cache import key_of
from serving.cli.records import render
from serving.export.source import ExportSource, Pictures
from serving.export.trial_file import TrialForm, write_trial
from serving.models.connect import connect_models
from serving.settings import ModelSettings, RoleSettings, Settings
from serving.views.trial_view import view_of
from tests.support.cast import ACQUITTAL, RULING, Cast, task_of, try_meme
from tests.support.evidence import assert_reproducible
from tests.support.fakes import H, N, findings

W, M, S = Strength.WEAK, Strength.MODERATE, Strength.STRONG
DOUBT = {**RULING, "harmful_strength": "moderate", "harmless_strength": "strong", "label": "not harmful"}
DOUBT |= {"category": "none", "clause": "none", "target": "none"}


def opinion(harmful, benign, label=None, odds=None):
    return Opinion(
        RulingReply(
            harmful_evidence=(),
            harmless_evidence=(),
            precedents={},
            harmful_strength=harmful,
            harmless_strength=benign,
            label=label or rule(harmful, benign),
            category="none",
            clause="none",
            target="none",
            rationale=f"harmful {harmful}, benign {benign}",
        ),
        odds,
    )


def odds_of(harmful, benign):
    call = ModelCall(
        role="JUDGE", model="m", prompt_id="judge/1/odds", prompt_digest="d", tokens_in=1, tokens_out=1, latency_s=0
    )
    return OddsGiven(harmful=harmful, not_harmful=benign, call=call)


@pytest.mark.parametrize(
    ("pairs", "median"),
    [
        ([(S, W)], (S, W)),
        ([(S, W), (W, S), (W, S)], (W, S)),
        ([(S, S), (W, S), (W, W)], (W, S)),
        # With an even number, the middle value that is worse for the meme: more harm, less benign evidence.
        ([(W, S), (M, S)], (M, S)),
        ([(W, S), (W, W)], (W, W)),
        ([(W, W), (M, M), (S, S), (S, S)], (S, M)),
    ],
)
def test_median_is_taken_for_each_side_separately(pairs, median):
    opinions = [opinion(*pair) for pair in pairs]
    assert median_strengths(opinions) == Strengths(harmful=median[0], benign=median[1])


def test_some_judge_always_found_the_panel_s_label():
    """Checks every panel of up to four judges."""
    pairs = list(itertools.product((W, M, S), repeat=2))
    for size in range(1, 5):
        for panel in itertools.combinations_with_replacement(pairs, size):
            opinions = [opinion(*pair) for pair in panel]
            median = median_strengths(opinions)
            label = rule(median.harmful, median.benign)
            assert opinions[spokesman_of(opinions)].label is label
            if not disagreement(opinions):
                assert all(one.label is label for one in opinions)


def test_panel_s_label_does_not_depend_on_the_order_of_judges():
    panel = [opinion(S, W), opinion(W, S), opinion(M, S)]
    found = {median_strengths(order).model_dump_json() for order in itertools.permutations(panel)}
    assert len(found) == 1


def test_odds_are_averaged_over_judges_that_have_them():
    panel = [
        opinion(S, W, odds=odds_of((0.6, 0.6), (0.2, 0.2))),
        opinion(S, W, odds=odds_of((0.2, 0.2), (0.6, 0.6))),
        opinion(S, W, odds=odds_of((1e-9, 1e-9), (1e-11, 1e-11))),
        opinion(S, W),
    ]
    assert mean_score(panel, 0.05) == pytest.approx((0.75 + 0.25) / 2)
    assert mean_score(panel[2:], 0.05) is None


# In a trial


def run_panel(*rulings, samples=None, settings=None, further_models=(), **options):
    """Returns the record of a trial whose judges rule so in turn, and the cast."""
    replies = itertools.cycle(rulings)
    cast = Cast(rounds=2, judge_judge=lambda request: next(replies))
    role_models = replace(cast.role_models, judges=tuple(RoleModel(model) for model in further_models))
    settings = TrialSettings(judges=samples or len(rulings), **(settings or {}))
    return try_meme(cast, settings=settings, role_models=role_models, **options), cast


def test_panel_rules_by_the_median_and_reports_disagreement():
    record, cast = run_panel(RULING, ACQUITTAL, ACQUITTAL, settings={"overlap": False})
    ruled = record.all(JudgeRuled)
    assert sorted(one.judge for one in ruled) == [1, 2, 3]
    assert {one.ruling.label for one in ruled} == {Label.HARMFUL, Label.NOT_HARMFUL}
    verdict_event = record.last(VerdictGiven)
    assert verdict_event.verdict.label is Label.NOT_HARMFUL
    assert verdict_event.verdict.strengths == Strengths(harmful=W, benign=S)
    reasons = {review.reason: review.detail for review in verdict_event.verdict.review}
    assert "Of 3 judges 1 found the meme harmful and 2 did not." in reasons[ReviewReason.JUDGES_DISAGREE]
    assert verdict_event.call is None and verdict_event.odds is None
    spokesman = next(one for one in ruled if one.judge == verdict_event.judge)
    assert spokesman.ruling == verdict_event.ruling and spokesman.rationale == verdict_event.verdict.rationale
    assert spokesman.ruling.label is Label.NOT_HARMFUL
    # Three rulings, and three times odds in both orders: all are recorded, and none is counted twice.
    assert sum(task_of(request) == "judge" for request in cast.requests("judge")) == 3
    assert sum(call.requests for call in record.calls) == cast.calls()
    assert verdict_event.unused.calls == 0


def test_agreement_of_judges_requests_no_review():
    record, _ = run_panel(RULING, RULING)
    assert ReviewReason.JUDGES_DISAGREE not in {review.reason for review in record.verdict.review}
    assert record.verdict.finding.clause == "4"


def test_self_contradiction_of_a_judge_is_reported_on_a_panel_too():
    torn = {**RULING, "label": "not harmful"}
    record, _ = run_panel(RULING, torn, torn, torn, torn, samples=3)
    assert ReviewReason.JUDGE_CONTRADICTS_ITSELF in {review.reason for review in record.verdict.review}


def test_single_judge_is_recorded_without_a_panel():
    record, _ = run_panel(RULING)
    assert record.all(JudgeRuled) == ()
    verdict_event = record.last(VerdictGiven)
    assert verdict_event.call is not None and verdict_event.odds is not None and verdict_event.judge == 0


def test_panel_of_several_models_is_recorded_by_model():
    other = ScriptedModel(lambda request: ACQUITTAL, name="other-model", odds=lambda request, options: (0.5, 0.5))
    record, cast = run_panel(RULING, samples=1, further_models=(other,))
    assert record.opened.versions.models["JUDGE"] == "judge-model"
    assert record.opened.versions.models["JUDGE_2"] == "other-model"
    assert record.opened.settings["temperature"]["JUDGE_2"] == 0.0
    assert record.opened.settings["max_tokens"]["JUDGE_2"] == record.opened.settings["max_tokens"]["JUDGE"]
    assert {one.judge: one.call.model for one in record.all(JudgeRuled)} == {1: "judge-model", 2: "other-model"}
    # With two judges that disagree, the ruling worse for the meme counts.
    assert record.verdict.label is Label.HARMFUL
    assert [call.request.parts[:-1] for call in other.asked] == [call.parts[:-1] for call in cast.requests("judge")]


def test_panel_s_score_is_the_mean_of_its_judges():
    other = ScriptedModel(lambda request: RULING, name="other", odds=lambda request, options: (0.5, 0.5))
    record, _ = run_panel(RULING, samples=1, further_models=(other,))
    assert record.verdict.harm_score == pytest.approx((0.8 / 0.9 + 0.5) / 2)
    assert record.verdict.harm_score_meaning is ScoreMeaning.LABEL_PROBABILITY


def test_failing_judge_fails_the_trial_instead_of_leaving_the_label_to_the_others():
    replies = itertools.chain([RULING], itertools.repeat("no JSON"))
    cast = Cast(rounds=2, judge_judge=lambda request: next(replies))
    with pytest.raises(TrialAborted, match="could not be used") as aborted:
        try_meme(cast, settings=TrialSettings(judges=3))
    record = aborted.value.record
    assert record.verdict is None and record.events[-1].unusable.judge > 1
    assert_reproducible(record)


def test_panel_is_shown_and_its_calls_counted():
    record, cast = run_panel(RULING, ACQUITTAL, ACQUITTAL, settings={"overlap": False})
    words = render(record)
    assert "JudgeRuled" in words and "3 of the panel" in words
    view = view_of(record)
    assert {f"Judge {number} rules" for number in (1, 2, 3)} <= {step.name for step in view.steps}
    assert view.costs.calls == cast.calls()


# Settings


async def models_of(**settings):
    async with AsyncExitStack() as stack:
        return await connect_models(Settings(**settings), stack, lambda _: None)


@pytest.fixture
def probed(monkeypatch):
    """Fake model servers that are reachable and support everything."""

    async def probe(models, **_):
        return models[0]

    monkeypatch.setattr("court.backends.chat.capabilities.probe_replicas", probe)


async def test_further_judges_inherit_the_judge_s_settings(probed):
    llm = ModelSettings(
        url=("http://a/v1",),
        model="m",
        api_key="secret",
        roles={"judge": RoleSettings(temperature=0.7, max_tokens=9000)},
        judges=(RoleSettings(model="n"), RoleSettings(model="o", url=("http://b/v1",), temperature=0.2)),
    )
    same_server, other_server = llm.further_judges.values()
    assert (same_server.model, same_server.url) == ("n", ("http://a/v1",))
    assert (same_server.temperature, same_server.max_tokens) == (0.7, 9000)
    assert same_server.api_key.get_secret_value() == "secret"
    assert (other_server.model, other_server.url, other_server.temperature) == ("o", ("http://b/v1",), 0.2)
    assert other_server.api_key is None, "a key is sent only to the server it was given for"
    role_models = await models_of(llm=llm)
    assert [model.model.name for model in role_models.panel(1)] == ["m", "n", "o"]
    assert [model.model.name for model in role_models.panel(2)] == ["m", "m", "n", "n", "o", "o"]


async def test_several_samples_at_temperature_0_are_refused(probed):
    llm = ModelSettings(url=("http://a/v1",), model="m")
    with pytest.raises(BadRequest, match="At temperature 0 a model gives 3 times the same"):
        await models_of(llm=llm, trial=TrialSettings(judges=3))
    assert await models_of(llm=llm.model_copy(update={"temperature": 0.5}), trial=TrialSettings(judges=3))


def test_token_limit_is_checked_for_each_judge():
    with pytest.raises(ValueError, match="max_tokens of the judge 2 is 10"):
        Settings(llm=ModelSettings(url=("http://a/v1",), model="m", judges=(RoleSettings(max_tokens=10),)))


def test_samples_have_separate_keys_in_the_call_cache():
    _, cast = run_panel(RULING, ACQUITTAL)
    rulings = [request for request in cast.requests("judge") if task_of(request) == "judge"]
    keys = {key_of("m", {}, request) for request in rulings}
    assert len(rulings) == len(keys) == 2
    alone = next(request for request in run_panel(RULING)[1].requests("judge"))
    plain = replace(alone, call_id=None)
    assert key_of("m", {}, alone) == key_of("m", {}, plain)  # who sits alone is the first judge


# The vote as a prior in a cascade

_UNSURE = SureRange(error=0.1, below=0.01, above=0.99, share=0.0, n=9)


def cascade(weight, ruling=RULING, odds=(0.6, 0.2), labels=(H, N, H, N, N)):
    cast = Cast(rounds=2, judge_judge=ruling, odds=odds)
    settings = TrialSettings(vote_weight=weight)
    found = findings(list(labels), settles=_UNSURE)
    return try_meme(cast, procedure=Procedure.CASCADE, found=found, settings=settings)


def test_full_trial_of_a_cascade_is_scored_by_the_judge_alone_by_default():
    verdict = cascade(0.0).verdict
    assert verdict.harm_score == pytest.approx(0.75)
    assert verdict.harm_score_meaning is ScoreMeaning.LABEL_PROBABILITY and verdict.risk is None


def test_vote_is_combined_as_log_odds_and_gives_a_risk():
    record = cascade(0.5)
    vote = record.precedents.vote.probability
    assert vote != pytest.approx(0.75)
    verdict = record.verdict
    assert verdict.harm_score == pytest.approx(joined_odds(0.75, vote, 0.5))
    assert min(vote, 0.75) < verdict.harm_score < max(vote, 0.75)
    assert verdict.harm_score_meaning is ScoreMeaning.JUDGE_AND_VOTE
    assert verdict.risk == pytest.approx(1 - verdict.harm_score)
    assert cascade(1.0).verdict.harm_score == pytest.approx(vote)
    assert cascade(0.0).verdict.label is verdict.label
    assert_reproducible(record)


def test_label_is_the_judge_s_for_any_vote():
    against = cascade(1.0, ruling=ACQUITTAL, odds=(0.1, 0.8), labels=(H, H, H, H, N))
    assert against.verdict.label is Label.NOT_HARMFUL
    assert against.verdict.risk == pytest.approx(against.precedents.vote.probability)


def test_vote_alone_gives_the_score_if_the_judge_has_no_probability():
    verdict = cascade(0.3, odds=None).verdict
    assert verdict.harm_score_meaning is ScoreMeaning.PRECEDENT_VOTE and verdict.harm_score is not None


def test_full_trial_without_a_preceding_summary_has_no_prior():
    cast = Cast(rounds=2, odds=(0.6, 0.2))
    record = try_meme(cast, settings=TrialSettings(vote_weight=0.5), found=findings([H, N, H, N, N]))
    assert record.verdict.harm_score == pytest.approx(0.75)
    assert record.verdict.harm_score_meaning is ScoreMeaning.LABEL_PROBABILITY


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_certain_judge_does_not_silence_the_vote(score):
    assert 0 < joined_odds(score, 0.5, 0.5) < 1


def test_panel_works_in_a_cascade():
    replies = itertools.cycle([RULING, ACQUITTAL, ACQUITTAL])
    cast = Cast(rounds=2, judge_judge=lambda request: next(replies))
    record = try_meme(
        cast,
        procedure=Procedure.CASCADE,
        found=findings([H, N, H, N, N], settles=_UNSURE),
        settings=TrialSettings(judges=3, vote_weight=0.5),
    )
    assert len(record.all(JudgeRuled)) == 3
    assert record.verdict.harm_score_meaning is ScoreMeaning.JUDGE_AND_VOTE


def test_pages_and_exports_show_every_judge_of_a_panel():
    replies = iter(
        [{**ruling, "rationale": f"Reasons number {n}."} for n, ruling in enumerate((RULING, ACQUITTAL, DOUBT))]
    )
    cast = Cast(rounds=2, judge_judge=lambda request: next(replies))
    record = try_meme(cast, settings=TrialSettings(judges=3))
    page = write_trial(ExportSource(record), TrialForm.HTML, pictures=Pictures.NONE, messages=False).decode()
    for number in range(3):
        assert f"Judge {number + 1}: evidence of harm" in page and f"Reasons number {number}." in page
