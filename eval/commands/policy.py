"""``memecourt-eval policy``: policies tried by their examples, compared on recorded cases, and reworded."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from court.display import word
from court.events import Role
from court.policy import Policy
from court.record import TrialState
from eval.commands.options import CourtOptions, Shown, patience_option, run_watched, shows_sections
from eval.models.metered import CallBudget
from eval.replay.replay import UnderPolicy, under_policy
from eval.reports.sections import Section
from eval.runs.plan import parse_setting
from eval.scores.measure import figure, wilson
from eval.session.engine import Progress
from eval.session.spec import spec_options
from eval.studies.policies import Example, PolicyTrials, contradictions, examples_of
from eval.studies.policies import suggest as suggested
from retrieval.library.postgres.address import Address
from serving.cli.common import FILE, NEW_FOLDER, CheckingGroup, docket_in, docket_option, excerpt, run, tell
from serving.docket.store.listing import TrialFilter
from serving.export.tables import Selection
from serving.policy_files import to_toml
from serving.settings import Settings
from serving.wiring import open_court

EXIT_WRONG = 1
_SHOWN = 50  # changed cases that are listed; --json lists all
_file = click.argument("file", type=FILE)
_out = click.option(
    "--out",
    type=NEW_FOLDER,
    required=True,
    help="Folder of the model calls: a call that is stored there is not made again.",
)
_most_calls = click.option(
    "--most-calls", type=click.IntRange(0), metavar="N", help="Make at most so many calls that are not stored yet."
)
# The policy is an argument, and a handful of examples is not worth the start of a server.
_NOT_HERE = ("policy", "preset", "vllm", "vllm_flags")
_court = spec_options(CourtOptions, *(name for name in CourtOptions.__dataclass_fields__ if name not in _NOT_HERE))


@click.group(cls=CheckingGroup)
def policy() -> None:
    """Tests a policy by its examples, compares two policies on recorded cases, and rewords a clause."""


@policy.command()
@_file
@_out
@click.option("--against", type=FILE, help="Policy that contradicts it: is one meme judged by whichever is in force?")
@_court
@_most_calls
@patience_option
@shows_sections(page=False)
def test(file: Path, out: Path, against: Path | None, **options: Any) -> Shown:
    """Tries the examples of each clause by a full trial without precedents.

    A gap is a forbidden example that no clause catches. A clause is too wide if it catches what it allows, and dead if
    others catch all that it forbids. Two clauses clash if one catches what the other allows. With --against, examples
    that the two policies label oppositely are tried under both.

    Exit code: 0 if nothing is wrong, 1 if something is, 2 after an error, 3 if calls were not enough. The same command
    goes on from there.
    """
    own = Policy.load(file)
    examples = examples_of(own)
    other = Policy.load(against) if against else None
    opposite = contradictions(own, other) if other else {}

    async def work(progress: Progress) -> tuple[list[Example], int]:
        trials = _trials(out, options, progress)
        trials.announce(len(examples) + len(opposite))
        judged = await trials.judge(own, examples)
        if other is None:
            return judged, 0
        sides = {each.text.strip(): each.right for each in judged}
        pairs = [Example("", text, not forbidden) for text, forbidden in opposite.items()]
        both = [each.right and sides[each.text] for each in await trials.judge(other, pairs)]
        return judged, sum(both)

    judged, read = run_watched(work)
    figures, lead, sections = _findings(own, judged)
    if opposite:
        figures |= {"pairs": len(opposite), "pairs_right": read}
        share = figure(wilson(read, len(opposite)))
        lead.insert(1, f"{len(opposite):,} contradictory pairs, right under both policies: {share}.")
    code = 0 if figures["passed"] and read == len(opposite) else EXIT_WRONG
    return Shown(title=f"Policy {own.id}", lead=lead, sections=sections, figures=figures, exit_code=code)


def _findings(own: Policy, judged: Sequence[Example]) -> tuple[dict[str, Any], list[str], list[Section]]:
    """Figures, sentences and sections of what verdicts on the examples of a policy show of it."""
    rows, confusion = [], dict[str, dict[str, int]]()
    gaps, wide, dead, clashes = list[str](), list[str](), list[str](), list[tuple[str, str]]()
    for number in (clause.number for clause in own.clauses):
        forbidden = [each for each in judged if each.clause == number and each.forbidden]
        allowed = [each for each in judged if each.clause == number and not each.forbidden]
        named = Counter(each.named or "none" for each in forbidden if each.harmful)
        rows.append((number, len(forbidden), named.total(), named[number], len(allowed), sum(e.right for e in allowed)))
        confusion |= {number: dict(named)} if named else {}
        gaps += [number] if any(each.harmful is False for each in forbidden) else []
        dead += [number] if named and number not in named else []
        caught = dict.fromkeys(each.named for each in allowed if each.harmful)
        wide += [number] if caught.keys() & {"", number} else []
        clashes += [(number, name) for name in caught if name not in ("", number)]
    untested = [clause.number for clause in own.clauses if not (clause.violates and clause.allows)]
    wrong = [each for each in judged if not each.right]
    right = wilson(len(judged) - len(wrong), len(judged))
    fields = ("clause", "forbidden", "found", "named", "allowed", "passed")
    figures: dict[str, Any] = {
        "clauses": [dict(zip(fields, row, strict=True)) for row in rows],
        "right": asdict(right) if right else None,
        "confusion": confusion,
        **{"gaps": gaps, "too_wide": wide, "clashes": clashes, "dead": dead, "untested": untested},
        "wrong": [asdict(each) for each in wrong],
        # A trial without a label shows nothing of the policy; nor does a clause without examples.
        "passed": not (gaps or wide or clashes or dead or any(each.harmful is None for each in wrong)),
    }
    clashing = [f"{allows} with {forbids}" for allows, forbids in clashes]
    faults = {"Gaps in": gaps, "Too wide": wide, "Dead": dead, "Clashes of": clashing}
    faults["Without examples of both kinds"] = untested
    lead = [f"{len(judged):,} examples of {own.id}, version {own.version}. Right: {figure(right)}."]
    lead += [f"{words}: {', '.join(names)}." for words, names in faults.items() if names]
    head = ("clause", "forbidden", "caught", "under it", "allowed", "passed")
    sections = [Section("clauses", "Examples by clause", (head, *(tuple(map(str, row)) for row in rows)))]
    named_by = [(clause, *each) for clause, names in confusion.items() for each in names.items()]
    if elsewhere := [(clause, name, f"{count:,}") for clause, name, count in named_by if name != clause]:
        table = (("forbidden by", "caught by", "examples"), *elsewhere)
        sections.append(Section("confusion", "Caught by another clause", table))
    kinds = ("allowed", "forbidden")
    if lines := [(each.clause, kinds[each.forbidden], each.found, excerpt(each.text)) for each in wrong]:
        texts = (("clause", "example is", "found", "text"), *lines)
        sections.append(Section("wrong", "Decided otherwise", texts, words=True))
    return figures, lead, sections


@policy.command()
@click.argument("new", type=FILE)
@click.option("--namespace", help="Only trials of this namespace.")
@click.option("--ask", is_flag=True, help="Ask the models where the record has no reply to the request.")
@_most_calls
@_court
@docket_option
@shows_sections(page=False)
def diff(
    new: Path, namespace: str | None, ask: bool, most_calls: int | None, docket: Path | Address | None, **options: Any
) -> Shown:
    """Lists the recorded cases that another policy would decide otherwise, by clause; nothing is stored.

    Requests that stay the same get their recorded reply. The others need a model: their number is printed, and with
    --ask they are made. Texts and pictures are not shown; `memecourt records show ID` does.
    """
    settings = CourtOptions(**options).settings_with({})
    settings = settings.model_copy(update={"docket": docket}) if docket is not None else settings
    loaded, budget = Policy.load(new), CallBudget(most_calls)
    found, calls = run(_compared(settings, loaded, namespace, budget if ask else None))
    changed = [each for each in found if each.after not in (None, each.before)]
    others = Counter(each.obstacle for each in found if each.after is None and not each.needs_models)
    numbers = {"", *(clause.number for clause in loaded.clauses)}
    counts = {
        "cases": len(found),
        "compared": sum(each.after is not None for each in found),
        "need_models": sum(each.needs_models for each in found),
        "calls_needed": calls,
        "calls_made": budget.made,
        "clause_gone": sum(each.before[1] not in numbers for each in found),
    }
    rows = [[each.trial_id, *each.before, *(each.after or ())] for each in changed]
    lead = [f"{len(found):,} cases, {counts['compared']:,} compared, {len(changed):,} would change."]
    if counts["need_models"]:
        lead.append(f"{counts['need_models']:,} need about {calls:,} calls of models. --ask makes them.")
    if counts["clause_gone"]:
        lead.append(f"{counts['clause_gone']:,} rest on a clause that the new policy lacks.")
    lead += [f"{count:,} not compared: {why}" for why, count in others.most_common()]
    figures = {**counts, "changed": rows, "not_compared": dict(others)}
    return Shown(title=f"Policy {loaded.id}", lead=lead, sections=list(_changes(changed)), figures=figures)


def _changes(changed: list[UnderPolicy]) -> Iterator[Section]:
    def in_words(side: tuple[str, str] | None) -> str:
        label, clause = side or ("", "")
        return f"{word(label)}, clause {clause}" if clause else word(label)

    if not changed:
        return
    pairs = [(each.trial_id, in_words(each.before), in_words(each.after)) for each in changed]
    cells = Counter(pair[1:] for pair in pairs).most_common()
    yield Section("kinds", "Changes", (("was", "would be", "cases"), *((*cell, f"{n:,}") for cell, n in cells)))
    title = "Cases" if len(pairs) <= _SHOWN else f"The first {_SHOWN} cases; --json lists all"
    yield Section("cases", title, (("trial", "was", "would be"), *pairs[:_SHOWN]), words=True)


async def _compared(
    settings: Settings, loaded: Policy, namespace: str | None, budget: CallBudget | None
) -> tuple[list[UnderPolicy], int]:
    """Compares cases by their records, then with a budget by models; returns them, and the calls that these take."""
    which = TrialFilter(states=frozenset({TrialState.DECIDED}), namespace=namespace, erased=False)
    found, calls = list[UnderPolicy](), 0
    async with docket_in(settings) as store:
        async for record in Selection(store.index, store.trials, which).records():
            found.append(await under_policy(record, loaded))
            if found[-1].needs_models:
                # The description and the answers of the Proposer stay: it is not shown the policy.
                calls += sum(each.requests for each in record.calls if each.call.role is not Role.PROPOSER)
        waiting = [place for place, each in enumerate(found) if each.needs_models]
        if budget is None or not waiting:
            return found, calls
        tell(f"{len(waiting):,} cases take about {calls:,} calls.{budget.in_words}")
        async with open_court(settings, tell=tell, duplicates=False) as executor:
            for place in waiting:
                record = await store.trials.record(found[place].trial_id)
                found[place] = await under_policy(record, loaded, executor, budget)
    return found, calls


@policy.command()
@_file
@_out
@click.option("--clause", required=True, metavar="NUMBER", help="Clause to reword.")
@_court
@_most_calls
@patience_option
@click.pass_context
def suggest(context: click.Context, /, file: Path, out: Path, clause: str, **options: Any) -> None:
    """Lets the Judge's model reword a clause, and tries the wording on examples that the model was not shown.

    It is accepted if it decides more of the held-out examples as they are meant, and no example of another clause
    worse. Then OUT/policy.toml has it. Exit code: 0 if it is accepted, 1 if not, 2 after an error, 3 if calls
    were not enough.
    """
    found = run_watched(lambda progress: suggested(_trials(out, options, progress), Policy.load(file), clause))
    click.echo(f"- {found.old}\n+ {found.new}")
    click.echo(
        f"Held-out examples: {found.gained} gained, {found.lost} lost (p {found.p:.3g}); "
        f"{found.lost_elsewhere} lost elsewhere. {'Accepted' if found.accepted else 'Not accepted'}."
    )
    if found.accepted:
        (out / "policy.toml").write_text(to_toml(found.policy), encoding="utf-8")
        click.echo(f"Written: {out / 'policy.toml'}", err=True)
    context.exit(0 if found.accepted else EXIT_WRONG)


def _trials(out: Path, options: dict[str, Any], progress: Progress) -> PolicyTrials:
    patience_s, budget = 60 * options.pop("patience"), CallBudget(options.pop("most_calls"))
    court = CourtOptions(**options)
    settings = court.settings_with(dict(parse_setting(each) for each in court.settings))
    return PolicyTrials(settings, out, progress, patience_s=patience_s, budget=budget)
