"""Tests of a policy: full trials of its clauses' examples, what they show of it, and an edit that a model proposes."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field

from court.errors import BadRequest
from court.events import Procedure
from court.policy import Clause, Policy
from court.replies import Reply, Words, object_schema, parse
from eval.datasets.items import JudgedMeme
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import Agent, CallBudget, load
from eval.runs.plan import require_models
from eval.scores.measure import mcnemar
from eval.session.directory import CALLS
from eval.session.engine import Later, Patience, Progress, Watch, patiently, run_items
from eval.solvers.calls import PROMPTS, DecodedMeme, MemeCalls, MemeItem, StoredCourt
from eval.solvers.trial import TrialSolver
from serving.policy_files import to_toml
from serving.settings import Settings
from serving.wiring import open_court

_LONGEST = 2000
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Example:
    """One test of a policy: the text of a meme that a clause forbids or allows, and the verdict on it."""

    clause: str
    text: str
    forbidden: bool
    harmful: bool | None = None
    """None without a label, or while it is not tried."""
    named: str = ""
    """Clause that the verdict names; empty if it names none."""

    @property
    def right(self) -> bool:
        """True if the label is what the example asks for, whichever clause is named."""
        return self.harmful is self.forbidden

    @property
    def found(self) -> str:
        """The verdict in words."""
        label = {None: "no label", True: "harmful", False: "not harmful"}[self.harmful]
        return f"{label}, clause {self.named}" if self.named else label


def examples_of(policy: Policy) -> tuple[Example, ...]:
    """Returns the examples of all clauses. Raises BadRequest if there are none."""
    found = tuple(
        Example(clause.number, text, forbidden)
        for clause in policy.clauses
        for texts, forbidden in ((clause.violates, True), (clause.allows, False))
        for text in texts
    )
    if not found:
        raise BadRequest(
            f"The policy {policy.id} has no examples. Give its clauses `violates` and `allows`, lists of texts.",
            reason="NO_EXAMPLES",
            field="policy",
        )
    return found


def contradictions(one: Policy, other: Policy) -> dict[str, bool]:
    """Returns the texts that exactly one of two policies forbids and the other allows; True if the first forbids it.

    Raises BadRequest: There is none.
    """
    sides = [{each.text.strip(): each.forbidden for each in examples_of(policy)} for policy in (one, other)]
    found = {text: side for text, side in sides[0].items() if sides[1].get(text) is (not side)}
    if not found:
        raise BadRequest(
            f"No example of {one.id} is one of {other.id} with the opposite label: nothing shows whether the policy is "
            "read. Give one of them the same text under `allows` that the other has under `violates`.",
            reason="NO_EXAMPLES",
            field="against",
        )
    return found


@dataclass(slots=True)
class PolicyTrials:
    """Full trials of examples by a policy alone: without precedents, and with each model call made only once.

    Attributes:
        out: Folder of the model calls, shared by all policies that are tried there.
        budget: Bound of the calls that are not stored there.
    """

    settings: Settings
    out: Path
    progress: Progress
    patience_s: float = 0.0
    budget: CallBudget = field(default_factory=CallBudget)

    def announce(self, trials: int, more: int = 0) -> None:
        """Says before the first of so many trials how many calls they and some more may take."""
        # Each round of two sides has a question, an answer and a summary. The ruling takes a call, with a score two
        # more; a text has no description.
        trial = self.settings.trial
        of_each = {6 * rounds + (3 if trial.score else 1) for rounds in (trial.rounds_min, trial.rounds_max)}
        numbers = sorted(trials * each + more for each in of_each)
        self.progress.tell(
            f"{trials:,} trials take {' to '.join(map('{:,}'.format, numbers))} calls, less those that {self.out} has."
            f"{self.budget.in_words}"
        )

    @asynccontextmanager
    async def court(self, policy: Policy) -> AsyncIterator[StoredCourt]:
        """Opens a court with this policy, behind the store of calls."""
        require_models(Procedure.FULL, self.settings)
        self.out.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            # Trials of a test are no trials of the court: what remains of them is the store of calls.
            scratch = Path(stack.enter_context(TemporaryDirectory()))
            file = scratch / "policy.toml"
            file.write_text(to_toml(policy), encoding="utf-8")
            trial = self.settings.trial.model_copy(update={"precedents": False, "input": "texts"})
            own = {"docket": scratch / "docket.sqlite", "policy": file, "trial": trial, "binding": "off"}
            settings = self.settings.model_copy(update={**own, "procedure": Procedure.FULL, "docket_key": None})
            # Opened before the court, so closed after it: replies that arrive during shutdown are still stored.
            calls = SqliteCallCache(self.out / CALLS)
            calls.before_call = self.budget.spend
            stack.push_async_callback(calls.close)
            executor = await stack.enter_async_context(
                open_court(settings, read_text=False, duplicates=False, search=False, tell=self.progress.tell)
            )
            yield StoredCourt(executor, calls)

    async def judge(self, policy: Policy, examples: Sequence[Example]) -> list[Example]:
        """Tries examples under a policy; returns them with their verdicts.

        Raises Unavailable: The budget is spent. Or as :func:`eval.session.engine.run_items`, and CourtError.
        """
        patience = Patience(self.patience_s)
        async with self.court(policy) as stored:
            solver = TrialSolver(stored, policy.id, Procedure.FULL, text_only=True)

            async def step(numbered: tuple[int, Example]) -> Example:
                number, example = numbered
                meme = JudgedMeme(id=str(number), split="examples", line=number, text=example.text)
                prediction = await patiently(partial(solver.solve, MemeItem(meme, _no_picture)), patience)
                if self.budget.spent:
                    # A trial that lacks calls has failed for want of them, and says nothing of the policy.
                    raise Later("BUDGET_SPENT", "The calls of --most-calls are made.")
                record = await stored.executor.docket.trials.record(prediction.trial) if prediction.trial else None
                finding = record.verdict.finding if record and record.verdict else None
                return replace(example, harmful=prediction.outcome.harmful, named=finding.clause if finding else "")

            return await run_items(
                list(enumerate(examples, 1)),
                step,
                concurrency=_AT_ONCE,
                watch=Watch(_AT_ONCE, "examples"),
                progress=partial(self.progress.step, "examples"),
            )


async def _no_picture() -> bytes | None:
    return None


class _Edit(Reply):
    text: Words = Field(min_length=1, max_length=_LONGEST)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A wording of a clause that a model proposed, and what it is worth on examples that the model was not shown."""

    policy: Policy
    """The policy with the new wording."""
    old: str
    new: str
    gained: int
    """Held-out examples of the clause that only the new wording gets right."""
    lost: int
    """Held-out examples of the clause that only the old wording gets right."""
    lost_elsewhere: int
    """Examples of other clauses that only the old wording gets right."""
    p: float
    """Of the exact McNemar test on the held-out examples."""

    @property
    def accepted(self) -> bool:
        """True if something is gained on held-out examples, more than is lost, and nothing is lost elsewhere."""
        return self.gained > self.lost and not self.lost_elsewhere


async def suggest(trials: PolicyTrials, policy: Policy, number: str) -> Suggestion:
    """Lets the Judge's model reword a clause by half of its examples, and tries the wording on all others.

    Raises BadRequest: The policy has no such clause, or too few examples to hold any back.
    """
    clause = next((each for each in policy.clauses if each.number == number), None)
    if clause is None:
        names = ", ".join(each.number for each in policy.clauses)
        raise BadRequest(f"The policy has no clause {number}. It has: {names}.", field="clause")
    # Every second one of each kind, in the order of the file: the same halves whenever it is asked for.
    shown, rest = ({*clause.violates[first::2], *clause.allows[first::2]} for first in (0, 1))
    if not (held_out := rest - shown):
        raise BadRequest(
            f"Clause {number} has too few examples: give it two that it forbids, and two that it allows.",
            reason="NO_EXAMPLES",
            field="clause",
        )
    examples = examples_of(policy)
    trials.announce(2 * len(examples), 1)
    before = await trials.judge(policy, examples)
    own = [each for each in before if each.clause == number]
    new = await _reworded(trials, policy, clause, [each for each in own if each.text in shown])
    edited = clause.model_copy(update={"text": new})
    clauses = tuple(edited if each.number == number else each for each in policy.clauses)
    changed = policy.model_copy(update={"version": f"{policy.version}+"[:64], "clauses": clauses})
    after = await trials.judge(changed, examples)
    pairs = list(zip(before, after, strict=True))
    # Not by text alone: another clause may have the same example.
    unseen = [each for each in pairs if each[0].clause != number or each[0].text in held_out]
    moves = Counter((one.clause == number, one.right, other.right) for one, other in unseen)
    gained, lost = moves[True, False, True], moves[True, True, False]
    return Suggestion(
        policy=changed,
        old=clause.text,
        new=new,
        gained=gained,
        lost=lost,
        lost_elsewhere=moves[False, True, False],
        p=mcnemar(gained, lost),
    )


async def _reworded(trials: PolicyTrials, policy: Policy, clause: Clause, shown: Sequence[Example]) -> str:
    prompt = load(PROMPTS, "reword")
    words = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
    agent = Agent(prompt, "reword", partial(parse, _Edit), object_schema({"text": words}))
    async with trials.court(policy) as stored:
        calls = MemeCalls(stored, DecodedMeme(JudgedMeme(id=clause.number, split="reword", line=0)))

        def fenced(forbidden: bool) -> str:
            kind = [each for each in shown if each.forbidden is forbidden]
            lines = [f"- {'' if each.right else '(judged wrong) '}{each.text}" for each in kind]
            return calls.fence.around("\n".join(lines) or "-")

        texts = {"policy": policy.text, "clause": clause.text, "forbidden": fenced(True), "allowed": fenced(False)}
        return (await calls.ask(agent, [prompt.task("reword", number=clause.number, **texts)])).text
