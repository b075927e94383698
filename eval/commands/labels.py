"""``memecourt-eval labels`` and ``subgroups``: how far gold labels can be trusted, and whom a system treats worse."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from court.errors import BadRequest
from eval.commands.options import (
    Shown,
    protocol_option,
    protocols_of,
    runs_argument,
    score_by_protocol,
    seed_option,
    shows_sections,
    unfinished_in_words,
    words_in,
)
from eval.reports.label_sections import annotators_section, noise_section, soft_section, subgroup_sections
from eval.runs.results import Results, card_of_results, read_results, read_runs, require_verdicts
from eval.scores.annotators import annotator_agreement, card_votes, harm_shares, soft_labels, soft_scores, votes_of
from eval.scores.label_noise import find_task_noise
from eval.scores.meme_rows import read_meme_rows
from eval.scores.subgroups import groups_of, subgroup_tables
from serving.cli.common import PATH


@click.command()
@runs_argument
@click.option(
    "--by",
    required=True,
    metavar="TASK|PROPERTY",
    help=(
        "Property to group by: a task of the card, or group (of the card), label (the data set's own words), "
        "language (of the card, else detected), script, split or target."
    ),
)
@protocol_option
@shows_sections()
def subgroups(runs: tuple[Path, ...], by: str, protocol: str | None) -> Shown:
    """Shows figures of each RUN by groups of memes, each beside those of all other memes.

    Accuracy, false alarms (not harmful, called harmful) and misses (harmful, not called so) have Wilson's 95 %
    intervals; of runs of classify there is a table of whole answers, and one of each label in place of harm. Each is
    tested against the other memes by Fisher's exact test, and all p-values of a table, or of all tables of a question,
    are corrected by Holm's procedure: so many looks find something by chance alone otherwise. A meme without a class or
    an answer counts as wrong.
    """
    read, sections, figures = read_runs(runs), [], []
    for results in read:
        of_meme = groups_of(results, by)
        # A protocol makes two classes of labels; answers are scored by the labels themselves.
        if results.question is not None:
            if protocol is not None:
                raise click.UsageError(f"{results.name} asked a question: it has no protocols, leave --protocol out.")
            tables = subgroup_tables(results, of_meme)
        else:
            scored = protocols_of(protocol, results.protocols)
            table_of = partial(subgroup_tables, results, of_meme)
            found = score_by_protocol(scored, table_of, named=protocol is not None).values()
            tables = tuple(table for (table,) in found)
        sections += subgroup_sections(results.name, tables)
        figures += [{"run": results.name, "finished": results.finished, **asdict(table)} for table in tables]
    answer = {"by": by, "tables": figures}
    return Shown(title="Subgroups", lead=unfinished_in_words(read), sections=sections, figures=answer)


@click.group()
def labels() -> None:
    """Says how far gold labels can be trusted: annotators who disagree, and labels that are likely wrong."""


@labels.command()
@click.argument("votes", type=PATH)
@click.argument("runs", nargs=-1, metavar="[RUN...]", type=PATH)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=NAME",
    help="Column of VOTES that is id, annotator or label, such as annotator=who. Repeatable.",
)
@click.option("--harmful", metavar="LABEL,…", help="Labels that count as harmful, if their names do not say so.")
@seed_option
@shows_sections()
def annotators(votes: Path, runs: tuple[Path, ...], columns: tuple[str, ...], harmful: str | None, seed: int) -> Shown:
    """Measures how far annotators agree, and compares each RUN with their votes.

    VOTES is CSV with a header or JSON a line, with id (of the meme), annotator and label, one line per vote,
    such as a table of memes that several people labelled (--column id=filename --column annotator=who); or the folder
    of a run whose data set's card keeps votes, which is then compared with them too. Agreement is measured by
    Krippendorff's alpha (nominal labels), by the shares of pairs and of memes that agree, and by an annotator's
    accuracy against the rest. A run's scores are compared with the share of annotators who found a meme harmful (Brier
    score), and its labels with the majority, separately for unanimous memes and for the others.
    Intervals are 95 %, by bootstrap over memes.
    """
    named = words_in(harmful)
    lead: list[str] = []
    if votes.is_dir():
        own = read_results(votes)
        cast = card_votes(own)
        lead.append("The card's votes bear no names: there are as many annotators as votes on one meme at most.")
        if own.question is None:
            # A run of trials is itself compared with its memes' votes.
            runs = tuple(dict.fromkeys((votes, *runs)))
        # What the card calls harmful, unless the user says it.
        if not named and (card := card_of_results(own)) and (task := card.court_task):
            named = tuple(task.court.harmful) if task.court else ()
    else:
        # Names of a header are read in lower case.
        by_field = {field: name.lower() for field, _, name in (one.partition("=") for one in columns)}
        wanted = {field: by_field.pop(field, field) for field in ("id", "annotator", "label")}
        if by_field:
            raise click.UsageError("--column maps id, annotator or label to a column, as in annotator=who.")
        rows, missing = read_meme_rows(votes, tuple(wanted.values()), "votes of annotators")
        cast = votes_of(rows)
        if missing:
            lead.append(f"{missing:,} rows of {votes.name} have no label and count as no vote.")
    if not cast:
        raise BadRequest("There are no votes of annotators.", reason="VOTES_MISSING")
    section, agreement = annotators_section(cast, annotator_agreement(cast, seed=seed))
    sections, soft, scores = [section], soft_labels(cast), []
    if runs:
        shares = harm_shares(soft, named)
        for results in read_runs(runs):
            require_verdicts(results)
            lead += unfinished_in_words([results])
            scores.append((results.name, soft_scores(results.judged, shares, seed=seed)))
        sections.append(soft_section(scores))
    figures = {"agreement": agreement, "soft_labels": soft, "runs": [{"run": name, **one} for name, one in scores]}
    return Shown(title="Annotators", lead=lead, sections=sections, figures=figures)


@labels.command()
@runs_argument
@click.option("--protocol", help="Protocol that maps the runs' labels to two classes. [default: the run's first]")
@click.option(
    "--show", default=20, show_default=True, type=click.IntRange(0), help="Number of labels to list in the terminal."
)
@shows_sections()
def noise(runs: tuple[Path, ...], protocol: str | None, show: int) -> Shown:
    """Lists gold labels that are likely wrong, by confident learning (cleanlab).

    For RUNs of the same split, the probability of harm is the mean of their scores; no run has seen the labels. For
    runs of classify, labels are checked one by one, each with its own probability. The list holds ids only and no text
    of a meme.
    """
    read = _runs_of_one_split(runs)
    name = f"{read[0].dataset}, {read[0].split}, by {', '.join(results.name for results in read)}"
    if read[0].question is not None and protocol is not None:
        raise click.UsageError("--protocol is for verdicts: these runs asked a question.")
    found, too_few = find_task_noise(read, None if read[0].question else protocols_of(protocol, read[0].protocols)[0])
    lead = [f"Not looked at, as too few memes have it, or lack it: {', '.join(too_few)}."] if too_few else []
    sections = [noise_section(one, name, show, label=label) for label, one in found.items()]
    figures = {"of": name, "by_label": found, "too_few": too_few}
    return Shown(title="Label noise", lead=lead, sections=sections, figures=figures)


def _runs_of_one_split(runs: tuple[Path, ...]) -> list[Results]:
    """The runs. Raises BadRequest where they are of several splits, or of verdicts and answers both."""
    read = [read_results(root) for root in runs]
    first = read[0]
    if any((one.dataset, one.split) != (first.dataset, first.split) for one in read):
        raise BadRequest("These runs are of several splits: label noise is listed of one.", reason="SPLITS_DIFFER")
    # By task and labels: runs that asked in other ways have the same gold.
    questions = [one.question.material() if one.question else None for one in read]
    if any(one != questions[0] for one in questions):
        raise BadRequest("These runs asked different questions: label noise is listed of one.", reason="SPLITS_DIFFER")
    return read
