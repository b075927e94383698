"""Tests of the weights of a full trial's evidence: planted information is found, noise gets no weight."""

import numpy as np
import pytest

from court.errors import BadRequest
from eval.scores.weighing import Evidence, weigh


def planted(n=240, *, seed=0, failing=0.0, **information):
    """Evidence whose inputs carry that much information: the difference of their log-odds between the labels.

    Args:
        failing: Probability that a check fails where the label is wrong.
    """
    rng = np.random.default_rng(seed)
    evidence = []
    for number in range(n):
        harmful = bool(number % 2)
        odds = {
            # Narrow, as small models' odds are: what counts is how they rank, not how far they spread.
            name: float(1 / (1 + np.exp(-0.1 * (gap * (harmful - 0.5) + rng.normal()))))
            for name, gap in {"before": 0.0, "after": 0.0, "vote": 0.0, **information}.items()
        }
        right = rng.random() < 0.7
        failed = int(not right and rng.random() < failing)
        evidence.append(Evidence(f"m{number}", harmful, harmful if right else not harmful, failed=failed, **odds))
    return evidence


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("knowing", [("before",), ("after",), ("vote",), ("before", "vote")])
def test_weight_goes_where_the_information_is(knowing, seed):
    found = weigh(planted(seed=seed, **dict.fromkeys(knowing, 2.5)))
    assert set(knowing) <= set(found.weights) and all(weight > 0 for weight in found.weights.values())
    noise = {name: weight for name, weight in found.weights.items() if name not in knowing}
    assert sum(noise.values()) < 0.2 * sum(found.weights.values())
    gold = np.arange(240) % 2 == 1
    assert ((found.probabilities > 0.5) == gold).mean() > 0.8


def test_judge_without_information_gets_no_weight():
    weights = [weigh(planted(seed=seed)).weights for seed in range(10)]
    assert sum(weight == {} for weight in weights) >= 9
    assert set(weigh(planted(vote=2.5)).weights) == {"vote"}
    # Nothing is sure enough to be decided.
    curve = weigh(planted()).risk
    assert curve.cutoff(risk=0.1, rate=None) < 0.5 and curve.cutoff(risk=0.01, rate=None) < 0.5


def test_evidence_against_the_labels_gets_no_weight_instead_of_a_negative_one():
    assert weigh(planted(before=-2.5)).weights == {}


def test_failed_checks_raise_the_risk_where_they_foretell_errors():
    assert weigh(planted(before=1.5, failing=0.6)).doubt > 0.3
    # Failing by chance, as often on right labels: no weight.
    rng = np.random.default_rng(1)
    by_chance = [
        Evidence(each.meme, each.harmful, each.ruled, each.before, each.after, each.vote, int(rng.random() < 0.3))
        for each in planted(before=1.5)
    ]
    assert weigh(by_chance).doubt < 0.2


def test_curve_is_that_of_the_labels_that_were_ruled():
    evidence = planted(before=4.0, vote=2.0)
    found = weigh(evidence)
    # A third of the labels is wrong; the sure half of them is not.
    assert found.risk.points[0].risk > 0.2 and found.risk.at_rate(0.5).error < 0.1
    assert found.risk.n == len(evidence) == len(found.memes)


def test_missing_inputs_are_left_out_and_few_memes_refused():
    evidence = planted(before=2.5, vote=2.5)
    no_odds = [Evidence(each.meme, each.harmful, each.ruled, None, None, each.vote) for each in evidence]
    assert set(weigh(no_odds).weights) == {"vote"}
    some = [*no_odds[:6], *evidence[6:]]
    assert len(weigh(some).memes) == 234 and "before" in weigh(some).weights
    with pytest.raises(BadRequest, match=r"200 labelled memes, .* there are 199") as caught:
        weigh(evidence[:199])
    assert caught.value.reason == "TOO_FEW_LABELLED"
    failed = [Evidence(each.meme, each.harmful, None) for each in evidence[180:200]]
    assert len(weigh([*evidence[:180], *failed]).memes) == 180  # some trials fail
    with pytest.raises(BadRequest, match=r"Of 200 trials 179 ended in a label with all evidence; .* takes 180"):
        weigh([*evidence[:179], Evidence("another", True, None), *failed])
    with pytest.raises(BadRequest, match="and 10 of the rarer label"):
        weigh([each for number, each in enumerate(planted(500)) if number % 2 or number < 20])
