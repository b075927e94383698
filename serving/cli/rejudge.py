"""``memecourt rejudge``: memes of stored trials tried once more, after policy, library or models have changed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from court.display import word
from court.errors import BadRequest, CourtError
from court.record import TrialState
from retrieval.library.postgres.address import Address
from serving.cli.common import (
    FiniteRange,
    docket_in,
    docket_option,
    docket_place_in,
    excerpt,
    library_option,
    run,
    settings_of,
    settled_trial_options,
    tell,
    trial_settings,
)
from serving.cli.exports import search_argument, selected
from serving.docket.review.search import parse_search
from serving.docket.store.listing import TrialFilter
from serving.export.tables import Selection
from serving.judging.follow import Follower, FollowRules
from serving.judging.known import Findings, VerdictCache
from serving.judging.rejudge import Rejudged, Rejudging, rejudge_all
from serving.settings import Settings

EXIT_FAILED = 1
_EVERY_S = 1.0
"""Seconds between two looks at the log of a court that is followed."""


@click.command()
@search_argument
@click.option("--everything", is_flag=True, help="All trials; required without a SEARCH.")
@click.option("--dry-run", is_flag=True, help="Judge nothing; print the number of trials.")
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=click.FloatRange(1, 86_400),
    help="Seconds allowed for each trial.",
)
@click.option(
    "--into",
    callback=docket_place_in,
    metavar="DOCKET",
    help="Try each decided meme of the log with a candidate that records in this docket, apart from the court's.",
)
@click.option("--follow", is_flag=True, help="With --into: go on with new verdicts until interrupted.")
@click.option(
    "--share",
    default=1.0,
    show_default=True,
    type=FiniteRange(0, 1, min_open=True),
    help="With --into: share of verdicts whose meme is tried, drawn by the trial's id.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and trial.")
@settled_trial_options
@library_option
@docket_option
@click.pass_context
def rejudge(
    context: click.Context,
    /,
    search: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    timeout: float,
    into: Path | Address | None,
    follow: bool,
    share: float,
    as_json: bool,
    library: Path | None,
    docket: Path | Address | None,
    **options: Any,
) -> None:
    """Judges memes of stored trials again with the current settings, and lists what comes out differently.

    SEARCH selects trials as in `records list`, such as since:7d namespace:forum is:unreviewed.

    Each meme gets a new trial that names the old one, which stays unchanged. Trials that already have the current
    policy, library, prompts, models and settings are skipped. Running the command again judges no meme twice and
    resumes interrupted trials. Verdicts that need review enter the review queue as usual.

    With --into, a candidate tries the memes in the order of the log, with the texts that the court read, and records
    its trials in a docket of its own: nothing changes for the court. Run again, it goes on where it ended. What is
    erased in the court's docket is left out, and erased in the candidate's. `memecourt-eval shadow` compares the two.

    A meme whose new trial was erased is not judged again, and counts as no failure.

    Exit code: 0 if every other meme has a verdict, 1 otherwise; 130 if Ctrl-C ended it.
    """
    if into is None and (follow or share != 1):
        raise click.UsageError("--follow and --share need --into DOCKET.")
    # Going through a whole docket may cost days of a model: it has to be asked for by name.
    if into is None and not everything and not search:
        raise click.UsageError("Say which trials: give a SEARCH, or --everything.")
    settings = settings_of(library=library, docket=docket, **trial_settings(**options))
    if into is None:
        done = run(_rejudged(settings, search, dry_run=dry_run, within_s=timeout, as_json=as_json))
    elif dry_run:
        raise click.UsageError("--dry-run counts what is judged again in the same docket: leave it out with --into.")
    elif str(into) == str(settings.docket_place):
        raise click.UsageError("--into names another docket than the court's: the candidate records apart.")
    else:
        done = run(_followed(settings, into, search, share=share, within_s=timeout, follow=follow, as_json=as_json))
    _end(context, done, as_json=as_json)


def _end(context: click.Context, done: Counter[str], *, as_json: bool) -> None:
    """Prints the counts, and exits with the code of the command."""
    if not as_json:
        words = {"SAME": "the same label", "DIFFERENT": "another label", "UNCHANGED": "nothing has changed"}
        words |= {"ERASED": "erased since", "FAILED": "no new verdict", "TO_DO": "would be tried"}
        for outcome, count in sorted(done.items()):
            click.echo(f"{count:>9,}  {words[outcome]}")
    if done["FAILED"]:
        context.exit(EXIT_FAILED)


async def _rejudged(
    settings: Settings, search: Sequence[str], *, dry_run: bool, within_s: float, as_json: bool
) -> Counter[str]:
    from serving.wiring import open_court

    # Before a court is opened, which takes long.
    parse_search(" ".join(search))
    done: Counter[str] = Counter()
    async with open_court(settings, tell=tell) as executor:
        docket = executor.docket
        # So that whoever asks about such a meme next is given the new verdict, and not the one before it.
        known = VerdictCache(
            docket.verdict_keys, docket.trials, executor.court_of, settings=settings, findings=Findings(docket.findings)
        )
        rejudging = Rejudging(executor, known, within_s=within_s)
        which = await selected(docket, settings, search)
        # Trials of this command are not gone through again.
        until = which.opened_until or datetime.now(UTC)
        which = replace(which, states=frozenset({TrialState.DECIDED}), opened_until=until, erased=False)
        selection = Selection(docket.index, docket.trials, which)
        if dry_run:
            async for record in selection.records():
                # As rejudge_all does: the counts of a dry run are to be those of the real one.
                if not record.opened.of_trial:
                    done["UNCHANGED" if rejudging.is_unchanged(record) else "TO_DO"] += 1
            return done
        async for each in rejudge_all(rejudging, selection, at_once=settings.worked_on_at_once):
            _count(done, each, as_json)
    return done


async def _followed(
    court: Settings,
    into: Path | Address,
    search: Sequence[str],
    *,
    share: float,
    within_s: float,
    follow: bool,
    as_json: bool,
) -> Counter[str]:
    from serving.wiring import open_court

    done: Counter[str] = Counter()
    which = parse_search(" ".join(search)).which
    # The log is read in its order, and what else is known of a trial may still change.
    if replace(which, namespace=None, opened_from=None) != TrialFilter():
        raise BadRequest("With --into, since: and namespace: select trials, and no other filter.", field="search")
    # Key and pictures of its own: no checkpoint of the candidate may pass for one of the court.
    key = None if isinstance(into, Path) else court.home / "candidate.key"
    own = court.model_copy(update={"docket": into, "docket_key": key, "pictures": None})
    async with docket_in(court) as docket, open_court(own, tell=tell, read_text=False, duplicates=False) as candidate:
        rules = FollowRules(
            share=share,
            namespace=which.namespace,
            since=which.opened_from,
            at_once=court.worked_on_at_once,
            within_s=within_s,
        )
        follower = Follower(docket, candidate, rules)
        while True:
            try:
                async for each in follower.follow():
                    _count(done, each, as_json)
            except CourtError as error:
                if not follow:
                    raise
                tell(f"{error.message} ({error.reason}) It is tried again.")
            if not follow:
                return done
            await asyncio.sleep(_EVERY_S)


def _count(done: Counter[str], each: Rejudged, as_json: bool) -> None:
    done[each.outcome] += 1
    if as_json:
        click.echo(json.dumps(_as_json(each)))
    elif each.outcome in ("DIFFERENT", "FAILED"):
        click.echo(_line(each))


def _line(each: Rejudged) -> str:
    assert each.old is not None, "an erased trial is counted only"
    old = word(each.old.verdict.label) if each.old.verdict else ""
    if each.new is None or each.new.verdict is None:
        return f"{each.old.trial_id}  {old} → no verdict: {each.message} ({each.reason})"
    content_id = excerpt(each.old.opened.meme.content_id, 40)
    return f"{each.old.trial_id}  {old} → {word(each.new.verdict.label)}  {each.new.trial_id}  {content_id}".rstrip()


def _as_json(each: Rejudged) -> dict[str, object]:
    old, new = each.old, each.new
    if old is None:
        return {"trial_id": each.trial_id, "outcome": each.outcome}
    return {
        "trial_id": old.trial_id,
        "outcome": each.outcome,
        # The court's own, beside the one in force: only the first says whether the court has changed its mind.
        "label": old.verdict and old.verdict.label,
        "decision": old.decision,
        "label_in_force": old.label_in_force if old.verdict else None,
        "new_trial_id": new and new.trial_id,
        "new_label": new and new.verdict and new.verdict.label,
        "new_decision": new and new.decision,
        "needs_human_review": bool(new and new.verdict and new.verdict.needs_human_review),
        "namespace": old.opened.meme.namespace,
        "content_id": old.opened.meme.content_id,
        "reason": each.reason,
    }
