"""``memecourt-eval policy``: policies tried by their examples, compared on recorded cases, and reworded."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import patience_option, run_watched
from eval.commands.plans import CourtOptions
from eval.session.spec import spec_options
from serving.cli.common import docket_in, docket_option, run

if TYPE_CHECKING:
    from court.policy import Policy
    from eval.replay.replay import UnderPolicy
    from eval.reports.sections import Section
    from eval.session.progress import Progress
    from eval.studies.policies import PolicyFigures, PolicyTrials
    from retrieval.library.postgres.address import Address
    from serving.settings import Settings

EXIT_WRONG = 1
_SHOWN = 50  # changed cases that are listed; --json lists all
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_file = click.argument("file", type=_FILE)
_out = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the model calls: a call that is stored there is not made again.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
# The policy is an argument, and a handful of examples is not worth the start of a server.
_NOT_HERE = ("policy", "vllm", "vllm_flags")
_court = spec_options(CourtOptions, *(name for name in CourtOptions.__dataclass_fields__ if name not in _NOT_HERE))


@click.group()
def policy() -> None:
    """Tests a policy by its examples, compares two policies on recorded cases, and rewords a clause."""


@policy.command()
@_file
@_out
@click.option("--against", type=_FILE, help="Policy that contradicts it: is one meme judged by whichever is in force?")
@_court
@patience_option
@_as_json
@click.pass_context
def test(context: click.Context, /, file: Path, out: Path, against: Path | None, as_json: bool, **options: Any) -> None:
    """Tries the examples of each clause by a full trial without precedents.

    A gap is a forbidden example that no clause catches. A clause is too wide if it catches what it allows, and dead if
    others catch all that it forbids. Two clauses clash if one catches what the other allows. With --against, examples
    that the two policies label oppositely are tried under both.

    Exit code: 0 if nothing is wrong, 1 if something is. The same command goes on where it was interrupted.
    """
    from court.policy import Policy
    from eval.reports.sections import as_text
    from eval.scores.subgroups import wilson
    from eval.scores.tables import figure
    from eval.studies.policies import Example, contradictions, examples_of, figures_of

    own = Policy.load(file)
    examples = examples_of(own)
    other = Policy.load(against) if against else None
    opposite = contradictions(own, other) if other else {}

    async def work(progress: Progress) -> tuple[PolicyFigures, int]:
        trials = _trials(out, options, progress)
        judged = await trials.judge(own, examples)
        if other is None:
            return figures_of(own, judged), 0
        sides = {each.example.text.strip(): each.right for each in judged}
        pairs = [Example("", text, not forbidden) for text, forbidden in opposite.items()]
        both = [each.right and sides[each.example.text] for each in await trials.judge(other, pairs)]
        return figures_of(own, judged), sum(both)

    found, read = run_watched(work)
    share = wilson(read, len(opposite))
    if as_json:
        pairs = {"pairs": len(opposite), "pairs_right": read} if opposite else {}
        click.echo(json.dumps({**found.as_json(), **pairs}))
    else:
        lead = [f"{len(examples):,} examples of {own.id}, version {own.version}. Right: {figure(found.right)}."]
        if share is not None:
            lead.append(f"{len(opposite):,} contradictory pairs, right under both policies: {figure(share)}.")
        lead += _faults(found)
        click.echo(as_text(lead, _sections(found)))
    context.exit(0 if found.passed and read == len(opposite) else EXIT_WRONG)


def _faults(found: PolicyFigures) -> list[str]:
    clashes = [f"{allows} with {forbids}" for allows, forbids in found.clashes]
    named = {"Gaps in": found.gaps, "Too wide": found.too_wide, "Dead": found.dead, "Clashes of": clashes}
    sentences = [f"{words}: {', '.join(clauses)}." for words, clauses in named.items() if clauses]
    sentences += [f"Without examples of both kinds: {', '.join(found.untested)}."] if found.untested else []
    return [*sentences, f"Without a label: {found.silent:,} examples."] if found.silent else sentences


def _sections(found: PolicyFigures) -> list[Section]:
    from eval.reports.sections import Section

    head = ("clause", "forbidden", "caught", "under it", "allowed", "passed")
    rows = [
        (each.clause, *(f"{n:,}" for n in (each.forbidden, each.found, each.named, each.allowed, each.passed)))
        for each in found.clauses
    ]
    elsewhere = [
        (clause, named, f"{count:,}")
        for clause, names in found.confusion.items()
        for named, count in names.items()
        if named != clause
    ]
    sections = [Section("clauses", "Examples by clause", (head, *rows))]
    if elsewhere:
        rows_ = (("forbidden by", "caught by", "examples"), *elsewhere)
        sections.append(Section("confusion", "Caught by another clause", rows_))
    return sections


@policy.command()
@click.argument("new", type=_FILE)
@click.option("--namespace", help="Only trials of this namespace.")
@click.option("--limit", type=click.IntRange(1), help="Only so many trials, the oldest first.")
@click.option("--ask", is_flag=True, help="Ask the models where the record has no reply to the request.")
@_court
@docket_option
@_as_json
def diff(
    new: Path,
    namespace: str | None,
    limit: int | None,
    ask: bool,
    docket: Path | Address | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Lists the recorded cases that another policy would decide otherwise, by clause; nothing is stored.

    Requests that stay the same get their recorded reply. The others need a model: without --ask their number is printed
    and nobody is asked. Texts and pictures are not shown; `memecourt records show ID` does.
    """
    from court.policy import Policy

    settings = CourtOptions(**options).settings_with({})
    settings = settings.model_copy(update={"docket": docket}) if docket is not None else settings
    loaded = Policy.load(new)
    found, calls = run(_compared(settings, loaded, namespace, limit, ask=ask))
    known = [each for each in found if each.after is not None]
    changed = [each for each in known if each.after != each.before]
    waiting = [each for each in found if each.needs_models]
    others = Counter(each.obstacle for each in found if each.obstacle and not each.needs_models)
    gone = sum(bool(each.before[1]) and each.before[1] not in _numbers(loaded) for each in found)
    if as_json:
        rows = [[each.trial_id, *each.before, *(each.after or ())] for each in changed]
        counts = {"cases": len(found), "compared": len(known), "calls_made": sum(each.calls for each in found)}
        click.echo(
            json.dumps(
                {**counts, "changed": rows, "need_models": len(waiting), "calls_needed": calls, "clause_gone": gone}
                | {"not_compared": dict(others)}
            )
        )
        return
    click.echo(f"{len(found):,} cases, {len(known):,} compared, {len(changed):,} would change.")
    _print_changes(changed)
    if waiting:
        click.echo(f"{len(waiting):,} need about {calls:,} calls of models whose requests change. --ask makes them.")
    if gone:
        click.echo(f"{gone:,} rest on a clause that the new policy lacks.")
    for why, count in others.most_common():
        click.echo(f"{count:,} not compared: {why}")


def _numbers(loaded: Policy) -> set[str]:
    return {clause.number for clause in loaded.clauses}


def _print_changes(changed: list[UnderPolicy]) -> None:
    from court.display import word
    from eval.scores.tables import table
    from serving.cli.common import printable

    def in_words(side: tuple[str, str]) -> str:
        return f"{word(side[0])}{f', clause {side[1]}' if side[1] else ''}"

    if not changed:
        return
    cells = Counter((in_words(each.before), in_words(each.after or ("", ""))) for each in changed)
    click.echo(table([["was", "would be", "cases"], *([*cell, f"{n:,}"] for cell, n in cells.most_common())]))
    rows = [
        [printable(each.trial_id), in_words(each.before), in_words(each.after or ("", ""))] for each in changed[:_SHOWN]
    ]
    click.echo("\n" + table([["trial", "was", "would be"], *rows], numbers=False))
    if len(changed) > _SHOWN:
        click.echo(f"and {len(changed) - _SHOWN:,} more; --json lists all")


async def _compared(
    settings: Settings, loaded: Policy, namespace: str | None, limit: int | None, *, ask: bool
) -> tuple[list[UnderPolicy], int]:
    """Compares cases one by one; returns them, and the calls that those without a result would need."""
    from contextlib import AsyncExitStack

    from court.events import Role
    from court.record import TrialState
    from eval.replay.replay import UnderPolicy, under_policy
    from serving.cli.common import tell
    from serving.docket.store.listing import TrialFilter
    from serving.export.tables import Selection
    from serving.wiring import open_court

    which = TrialFilter(states=frozenset({TrialState.DECIDED}), namespace=namespace, erased=False)
    found, calls = list[UnderPolicy](), 0
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(docket_in(settings))
        executor = await stack.enter_async_context(open_court(settings, tell=tell, duplicates=False)) if ask else None
        async for record in Selection(store.index, store.trials, which).records():
            found.append(await under_policy(record, loaded, executor))
            if found[-1].needs_models:
                # The description and the answers of the Proposer stay: it is not shown the policy.
                calls += sum(each.requests for each in record.calls if each.call.role is not Role.PROPOSER)
            if len(found) == limit:
                break
    return found, calls


@policy.command()
@_file
@_out
@click.option("--clause", required=True, metavar="NUMBER", help="Clause to reword.")
@_court
@patience_option
@_as_json
@click.pass_context
def suggest(context: click.Context, /, file: Path, out: Path, clause: str, as_json: bool, **options: Any) -> None:
    """Lets the Judge's model reword a clause, and tries the wording on examples that the model was not shown.

    It is accepted if it decides more of the held-out examples as they are meant, and no example of another clause
    worse. Then OUT/policy.toml has it. Exit code: 0 if it is accepted, 1 if not.
    """
    from dataclasses import asdict

    from court.policy import Policy
    from eval.studies.policies import suggest as suggested
    from serving.policy_files import to_toml

    found = run_watched(lambda progress: suggested(_trials(out, options, progress), Policy.load(file), clause))
    if as_json:
        rest = {name: value for name, value in asdict(found).items() if name != "policy"}
        click.echo(json.dumps({**rest, "accepted": found.accepted}))
    else:
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
    from eval.runs.plan import parse_setting
    from eval.studies.policies import PolicyTrials

    names = CourtOptions.__dataclass_fields__
    court = CourtOptions(**{name: value for name, value in options.items() if name in names})
    settings = court.settings_with(dict(parse_setting(each) for each in court.settings))
    return PolicyTrials(settings, out, progress, patience_s=60 * options["patience"])
