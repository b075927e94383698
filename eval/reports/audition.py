"""The page of an audition: what models did in full trials, what they are fit for, and which procedure pays."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import nnls

from court.audition import INPUTS, Audition, Bound
from court.display import word
from court.errors import BadRequest
from court.events import CheckFailed, JudgeRuled, ModelCall, OddsGiven, Role, Side, SideRested
from court.judgment import score_of
from court.record import TrialRecord
from court.verdict import Label
from court.verdict import ReviewReason as Check
from eval.datasets.items import Protocol
from eval.reports.records import read_records
from eval.reports.sections import Rows, Section
from eval.runs.results import Judged, Results, RunFolder, read_results
from eval.scores.means import mean_of, share_of
from eval.scores.measure import Figure, TaskArrays, figure, listed, measure, paired_differences
from eval.scores.metrics import harm_arrays, task_card
from eval.scores.weighing import Evidence, Weighing, weigh
from eval.studies.audition import AGAIN, ALONE, COMPUTE

_AUROC = "auroc:harmful"
_STILL = 0.1
"""Range of the middle nine tenths of the odds below which they do not move between memes."""
_FEW = 40
"""Memes from which on all evidence is weighed together."""
_USABLE = 0.9
_FAILING = 0.1
"""Share of trials that may fail, or have a check of a role failed, before models are unfit."""
_OF_ROLE: Mapping[Role, frozenset[Check]] = {
    Role.PROPOSER: frozenset({Check.DESCRIPTION_MISSING}),
    Role.ACCUSER: frozenset({Check.SIDE_CHANGED}),
    Role.DEFENDER: frozenset({Check.SIDE_CHANGED}),
    Role.JUDGE: frozenset({Check.RATIONALE_COPIED, Check.RATIONALE_UNGROUNDED}),
}
"""Checks that show that a role is not played."""
_JUDGES: Mapping[str, tuple[str, str]] = {
    "vote": ("the vote of the precedents", "summary"),
    ALONE: ("one call with the meme alone", "full, with --dull-judge"),
    "before": ("one call with the precedents, before the debate", "full, with --without advocates"),
    "after": ("the debate", "full"),
}
"""Ways to judge, the cheapest first: their words, and the procedure."""


@dataclass(frozen=True)
class AuditionResult:
    """Trials of an audition: predictions of each arm, and the records of the full trials."""

    full: Results
    protocol: Protocol
    records: Mapping[str, TrialRecord]
    """Records of the full trials by meme."""
    others: Mapping[str, Results] = field(default_factory=dict)

    @cached_property
    def judged(self) -> dict[str, tuple[bool, Judged]]:
        """Gold and prediction of each meme of the full trials."""
        return {one.meme.id: (gold, one) for gold, one in self.full.under(self.protocol)}

    @cached_property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of each full trial: none where a trial ended before it had a record."""
        return tuple(
            _evidence(meme, gold, self.records[meme]) if meme in self.records else Evidence(meme, gold, None)
            for meme, (gold, _) in self.judged.items()
        )

    @cached_property
    def _together(self) -> Weighing | None:
        try:
            # So few drawn memes show a figure, and calibrate nothing.
            return weigh(self.evidence, fewest=_FEW)
        except BadRequest:
            return None

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """Probability of harm of each meme, by the way to judge."""
        found: dict[str, dict[str, float]] = {
            name: {each.meme: score for each in self.evidence if (score := getattr(each, name)) is not None}
            for name in INPUTS
        }
        for name in (ALONE, COMPUTE):
            if name in self.others:
                pairs = ((one.meme.id, one.prediction.score) for one in self.others[name].judged)
                found[name] = {meme: score for meme, score in pairs if score is not None}
        if self._together:
            found["all"] = dict(zip(self._together.memes, self._together.probabilities.tolist(), strict=True))
        return {name: scores for name, scores in found.items() if scores}

    def _arrays(self, name: str, memes: Sequence[str]) -> TaskArrays:
        scores = np.array([self.scores[name].get(meme, np.nan) for meme in memes])
        arrays = harm_arrays([self.judged[meme][0] for meme in memes], [bool(score > 0.5) for score in scores])
        return replace(arrays, scores=np.stack([1 - scores, scores], axis=1))

    @cached_property
    def aurocs(self) -> dict[str, Figure | None]:
        """AUROC of each way to judge, over the memes that it scored."""
        return {
            name: measure(self._arrays(name, list(scores)), (_AUROC,), None)[_AUROC]
            for name, scores in self.scores.items()
        }

    def gain(self, one: str, other: str) -> Figure | None:
        """Returns the AUROC of one way to judge minus another's, on the memes that both scored, paired."""
        memes = [meme for meme in self.scores.get(one, {}) if meme in self.scores.get(other, {})]
        # With one class there is nothing to rank.
        if len({self.judged[meme][0] for meme in memes}) < 2:
            return None
        systems = self._arrays(one, memes), self._arrays(other, memes)
        return paired_differences((_AUROC,), systems, None).get(_AUROC)

    @cached_property
    def best(self) -> str:
        """Cheapest way to judge, with roles that are played, that no dearer one beats by more than chance."""
        # Where a side is not played there is no debate to recommend.
        debates = not any(why for role, why in self.fit.items() if role is not Role.JUDGE)
        ways = [name for name in _JUDGES if name in self.aurocs and (debates or name != "after")]
        best = ways[0] if ways else "vote"
        for name in ways[1:]:
            gain = self.gain(name, best)
            best = name if gain is not None and gain.low > 0 else best
        return best

    @cached_property
    def replies(self) -> list[ModelCall]:
        """Calls of the full trials that have a reply, each once."""
        return [call.call for record in self.records.values() for call in record.calls if call.call.replies]

    def usable(self, role: Role | None = None) -> Figure | None:
        """Returns the share of replies that could be used at the first try."""
        pairs = [
            (meme, float(not call.call.fault))
            for meme, record in self.records.items()
            for call in record.calls
            if call.call.replies and role in (None, call.call.role)
        ]
        lost = [
            (meme, 0.0)
            for meme, record in self.records.items()
            if (end := record.failure) is not None and end.unusable is not None and role in (None, end.unusable.role)
        ]
        return share_of([*pairs, *lost])

    def failing(self, checks: frozenset[Check], side: Side | None = None) -> Figure | None:
        """Returns the share of trials in which one of these checks failed."""
        return share_of(
            [
                (meme, float(any(one.check in checks and side in (None, one.side) for one in _failed(record))))
                for meme, record in self.records.items()
                if record.verdict is not None
            ]
        )

    @cached_property
    def fit(self) -> dict[Role, str]:
        """Why models are unfit for each role that spoke; empty for those that they are fit for."""
        found = {}
        for role, checks in _OF_ROLE.items():
            side = {Role.ACCUSER: Side.ACCUSER, Role.DEFENDER: Side.DEFENDER}.get(role)
            usable, failed = self.usable(role), self.failing(checks, side)
            # A role that never spoke, such as the sides of a dull Judge, is neither fit nor unfit.
            if usable is None:
                continue
            why = []
            if usable.value < _USABLE:
                why.append(f"{1 - usable.value:.0%} of its replies can't be used at the first try")
            if failed is not None and failed.value > _FAILING:
                seen = [one for one in sorted(checks) if (each := self.failing(frozenset({one}), side)) and each.value]
                why.append(f"{listed(map(word, seen))} in {failed.value:.0%} of the trials")
            if role is Role.JUDGE and not self._judge_knows:
                why.append("neither its odds nor its rulings tell harmful memes from others by more than chance")
            found[role] = "; ".join(why)
        return found

    @property
    def _judge_knows(self) -> bool:
        aurocs = [self.aurocs.get(name) for name in ("before", "after")]
        card = task_card(self.full, self.protocol)
        # Saying the more frequent class always is knowing nothing.
        return card.known("accuracy").low > (card.baseline["accuracy"] or 0) or any(
            one and one.low > 0.5 for one in aurocs
        )

    @property
    def span(self) -> float | None:
        """Range of the Judge's odds over the middle nine tenths of the memes."""
        scores = list(self.scores.get("after", {}).values())
        # Percentiles, so that one odd meme does not count as moving.
        return float(np.subtract(*np.percentile(scores, [95, 5]))) if len(scores) > 1 else None

    @property
    def unmoved(self) -> bool:
        """True if the odds of the Judge hardly differ between memes."""
        return self.span is not None and self.span < _STILL

    @cached_property
    def judgement(self) -> tuple[str, tuple[str, ...]]:
        """The judgement in a word, and its reasons."""
        failed = 1 - len([one for one in self.records.values() if one.verdict]) / max(1, len(self.judged))
        unfit = {role: why for role, why in self.fit.items() if why}
        reasons = [f"{role.capitalize()}: {why}." for role, why in unfit.items()]
        if failed > _FAILING:
            reasons.insert(0, f"{failed:.0%} of the trials ended without a verdict.")
        if failed > _FAILING or len(unfit) == len(self.fit):
            verdict = "unfit"
        elif unfit:
            verdict = f"fit for these roles: {listed(role.lower() for role, why in self.fit.items() if not why)}"
        else:
            verdict = "fit"
        if self.unmoved:
            reasons.append("The odds after the debate hardly move between memes (SCORE_UNINFORMATIVE).")
        if (gain := self.gain("after", "before")) is not None:
            words = (
                f"costs {-gain.value:.2f} of AUROC"
                if gain.high < 0
                else f"gains {gain.value:.2f} of AUROC"
                if gain.low > 0
                else "changes the AUROC within noise"
            )
            reasons.append(f"For this model the debate {words} ({figure(gain, '.2f')}).")
        asks_none = verdict == "unfit" or bool(self.fit.get(Role.JUDGE))
        name, procedure = _JUDGES["vote" if asks_none else self.best]
        why = "it asks no model" if asks_none else "nothing dearer is better by more than chance"
        reasons.append(f"Run: {procedure} ({name}); {why}.")
        return verdict, tuple(reasons)

    @property
    def speed(self) -> tuple[float | None, float | None]:
        """Tokens read and written a second, by the time of the calls; None where the calls can't tell."""
        calls = [call for call in self.replies if not call.fault and call.latency_s > 0]
        if len(calls) < 3:
            return None, None
        # Cached tokens cost no reading.
        tokens = [[call.tokens_in - call.tokens_cached, call.tokens_out] for call in calls]
        # Seconds a token are never negative, which least squares alone would allow.
        read, written = nnls(np.array(tokens, dtype=float), np.array([call.latency_s for call in calls]))[0]
        return (1 / read if read > 0 else None), (1 / written if written > 0 else None)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Features that the servers lack, as the trials met it."""
        openings = [record.opened for record in self.records.values()]
        found = {
            "log-probabilities: the odds of the Judge are not known": bool(self.replies)
            and not any(map(_odds, self.records.values())),
            "replies that keep to a JSON schema": any(call.schema_in_words for call in self.replies),
            "a prefix cache that finds a prompt again": any(False in one.prefix_cache.values() for one in openings),
            "a listing of its weights: their change under the same name goes unnoticed": not any(
                one.weights for one in openings
            ),
        }
        unknown = sorted({name for call in self.replies for name in call.unknown})
        return tuple(name for name, lacking in found.items() if lacking) + tuple(f"the figure {one}" for one in unknown)

    def position_bias(self) -> Figure | None:
        """Returns the mean change of the odds of harm when harmful is offered second instead of first."""
        values = []
        for meme, record in self.records.items():
            for odds in _odds(record):
                shares = [h / (h + n) for h, n in zip(odds.harmful, odds.not_harmful, strict=True) if h + n > 0]
                if len(shares) == 2:  # one for each order
                    values.append((meme, shares[1] - shares[0]))
        return mean_of(values)

    def flips(self) -> Figure | None:
        """Returns the share of memes whose outcome differs when replies are drawn."""
        if AGAIN not in self.others:
            return None
        repeated = {one.meme.id: one.prediction.outcome for one in self.others[AGAIN].judged}
        return share_of(
            [(meme, float(one.prediction.outcome != repeated[meme])) for meme, (_, one) in self.judged.items()]
        )

    def calibration(self) -> Audition:
        """Returns the file that serving reads.

        Raises BadRequest: There are too few memes, or the trials differ in what they were held with.
        """
        weighing, found = weigh(self.evidence), dict[str, Bound]()
        for one in (record.opened for record in self.records.values()):
            bound = Bound.to(
                models=one.versions.models,
                weights=one.weights,
                prompts=one.versions.prompts,
                library=one.versions.library,
                policy=one.policy.digest,
                procedure=one.procedure,
                settings=one.settings,
            )
            found[bound.model_dump_json()] = bound
        if len(found) != 1:
            raise BadRequest(
                "The trials were held with different models, servers or settings, as when a model was replaced in "
                "between: begin another audition in another folder.",
                reason="RUN_DIFFERS",
            )
        aurocs = {f"auroc {name}": one.value if one else None for name, one in self.aurocs.items()}
        return Audition(
            bound=next(iter(found.values())),
            intercept=weighing.intercept,
            weights=weighing.weights,
            doubt=weighing.doubt,
            risk=weighing.risk,
            figures={"memes": float(len(weighing.memes)), "log-likelihood": weighing.likelihood, **aurocs},
        )

    def measures(self) -> Iterator[tuple[str, Figure | float | None]]:
        """Yields name and value of each figure of the trials."""
        card = task_card(self.full, self.protocol)
        costs = [one.prediction.cost for _, one in self.judged.values()]
        n = max(1, len(costs))
        read, written = self.speed
        yield "memes", float(card.n)
        yield "seconds a trial", sum(record.seconds for record in self.records.values()) / max(1, len(self.records))
        yield "tokens that each call reads a second", read
        yield "tokens that each call writes a second", written
        yield "calls a trial", sum(cost.calls for cost in costs) / n
        yield "tokens read a trial", sum(cost.tokens_in for cost in costs) / n
        yield "tokens written a trial", sum(cost.tokens_out for cost in costs) / n
        for reason, count in Counter(one.failure.reason for one in self.records.values() if one.failure).most_common():
            yield f"ended without a verdict: {word(reason)}", count / n
        yield "usable at the first try", self.usable()
        for fault, count in Counter(call.fault.partition(";")[0] for call in self.replies if call.fault).most_common():
            yield f"asked again: {fault}", count / len(self.replies)
        for side in Side:
            rested = [
                (meme, float(one.rounds))
                for meme, record in self.records.items()
                for one in record.all(SideRested)
                if one.side is side
            ]
            yield f"rounds, {word(side)}", mean_of(rested)
        yield "accuracy, strict", card.known("accuracy")
        yield "majority", card.baseline["accuracy"]
        yield "odds after the debate, range of the middle nine tenths", self.span
        yield "odds of harm offered second, minus offered first", self.position_bias()
        yield "outcomes that flip with drawn replies", self.flips()
        kinds = Counter(each.check for record in self.records.values() for each in _failed(record))
        for check in sorted(kinds):
            yield f"failed: {word(check)}", self.failing(frozenset({check}))

    def as_json(self) -> dict[str, Any]:
        """Returns all figures by name."""
        verdict, reasons = self.judgement
        together = self._together
        return {
            "judgement": verdict,
            "reasons": list(reasons),
            "unfit": {str(role): why for role, why in self.fit.items() if why},
            "lacks": list(self.lacks),
            "measures": dict(self.measures()),
            "auroc": self.aurocs,
            "weights": None if together is None else {**together.weights, "checks": together.doubt},
            "unmoved": self.unmoved,
        }


def _failed(record: TrialRecord) -> tuple[CheckFailed, ...]:
    return record.checked.failed if record.checked else ()


def _odds(record: TrialRecord) -> tuple[OddsGiven, ...]:
    """Returns the odds of the Judge, or of each judge, after the sides were heard."""
    ruled = record.verdict_event
    odds = [ruled.odds if ruled else None, *(each.odds for each in record.all(JudgeRuled))]
    return tuple(each for each in odds if each is not None)


def _evidence(meme: str, gold: bool, record: TrialRecord) -> Evidence:
    """Returns the evidence of a trial, as a calibration weighs it in the court."""
    least = record.opened.settings.get("least_label_mass")
    mass = float(least) if isinstance(least, int | float) else 0.0
    checked, verdict, cited = record.checked, record.verdict, record.precedents
    after = [score for odds in _odds(record) if (score := score_of(odds, mass)) is not None]
    labelled = verdict is not None and verdict.label is not Label.UNDECIDED
    return Evidence(
        meme=meme,
        harmful=gold,
        ruled=verdict.label is Label.HARMFUL if verdict is not None and labelled else None,
        before=score_of(checked.unheard, mass) if checked else None,
        after=sum(after) / len(after) if after else None,
        vote=cited.vote.probability if cited and cited.vote else None,
        failed=len({each.check for each in _failed(record)}),
    )


async def gather_audition(runs: Sequence[RunFolder]) -> AuditionResult:
    """Reads the runs of an audition, the full trials first, with the records of these."""
    full, *others = (read_results(folder.root) for folder in runs)
    found = await read_records(
        runs[0].root, [one.prediction.trial for one in full.judged if one.prediction.trial], pictures=False
    )
    by_meme = {one.meme.id: found.records.get(one.prediction.trial) for one in full.judged}
    records = {meme: record for meme, record in by_meme.items() if record is not None}
    return AuditionResult(full, full.scorable[0], records, {one.name: one for one in others})


def audition_sections(found: AuditionResult) -> tuple[list[str], list[Section]]:
    """Returns the sentences at the head of the page, and its sections."""
    verdict, reasons = found.judgement
    models = sorted(set((found.full.manifest.models if found.full.manifest else {}).values()))
    lead = [f"{', '.join(models)}: {verdict}.", *reasons]
    ways = {name: words for name, (words, _) in _JUDGES.items()}
    ways |= {COMPUTE: "as many single calls as the debate costs, majority", "all": "all together, cross-validated"}
    auroc = [("what tells harmful memes apart", "AUROC", "minus the debate")]
    for name, words in ways.items():
        if name in found.aurocs:
            gain = "" if name == "after" else figure(found.gain(name, "after"), ".2f")
            auroc.append((words, figure(found.aurocs[name], ".2f"), gain))
    notes = () if found._together is None else (_in_words(found._together),)
    measured: Rows = (("figure", "value"), *((name, figure(value, _form(value))) for name, value in found.measures()))
    roles: Rows = (("role", "judgement"), *((word(role), why or "fit") for role, why in found.fit.items()))
    lacks = found.lacks or ("nothing that a trial uses",)
    return lead, [
        Section("ways", "What the debate is worth", tuple(auroc), notes=notes),
        Section("measures", "Trials", measured),
        Section("roles", "Roles", roles, words=True),
        Section("lacks", "What the server lacks", lead=tuple(f"{one.capitalize()}." for one in lacks)),
    ]


def _form(value: Figure | float | None) -> str:
    return ",.0f" if isinstance(value, float) and value >= 10 else ".2f"


def _in_words(weighing: Weighing) -> str:
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in weighing.weights.items()) or "nothing has any"
    return f"Weights on {len(weighing.memes)} memes, of log-odds: {weights}; a failed check costs {weighing.doubt:.2f}."
