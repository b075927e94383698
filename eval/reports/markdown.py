"""The report as Markdown: the tables and remarks of the page, without pictures and records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from court.display import word
from eval.reports import words
from eval.reports.gather import Group, Report, RunView, Table
from eval.reports.wrong import VerdictFault
from eval.scores.bootstrap import Figure
from eval.scores.metrics import OUTCOMES, Card, Rates

_EXCERPT = 300
"""Longest excerpt of a rationale, in characters."""


def as_markdown(report: Report) -> str:
    """The report; untrusted text is escaped."""
    lines = [f"# {escaped(words.listed(f'{group.title}, {group.split}' for group in report.groups))}", ""]
    lines += [
        f"Intervals are 95 %, by bootstrap over memes, {report.resamples:,} resamples. Decided figures are over the "
        "memes that were given a class; in strict figures a meme without a class is wrong.",
        "",
    ]
    if report.unfinished:
        lines += ["**Not finished: these figures will change.**", ""]
        lines += [f"- {escaped(run.unfinished_words)}" for run in report.unfinished] + [""]
    for group in report.groups:
        lines += _group(group)
    lines += ["## Runs", ""]
    for run in report.runs:
        lines += _run(run)
    for group in report.groups:
        lines += _wrong(group)
    return "\n".join(lines).rstrip() + "\n"


def _group(group: Group) -> Iterator[str]:
    yield from (f"## {escaped(group.title)}, {escaped(group.split)}", "")
    for sentence in group.unscored:
        yield from (escaped(sentence), "")
    for table in group.tables:
        yield from (f"### Protocol {table.protocol}: {table.protocol_words}", "")
        yield from _figures(table)
        yield from (*(f"- {escaped(remark)}" for remark in table.remarks), "")
        yield from _contrasts(table)
        yield from _classes(table)
        for row in table.rows:
            yield from (f"Confusion, {escaped(row.run.label)}:", "")
            yield from _confusion(row.card)
            yield from _calibration(row.card)
    if group.traps:
        yield from (*(f"- {escaped(trap)}" for trap in group.traps), "")
    yield from _published(group)


def _figures(table: Table) -> Iterator[str]:
    heads = ["run", "memes", "harmful", "coverage", "undecided", "failed", "accuracy, decided", "accuracy, strict"]
    heads += ["macro-F1, decided", "macro-F1, strict", "AUROC", "AUROC, decided", "AUROC, strict"]
    heads += ["Brier", "ECE", "MMAE"]
    first = table.rows[0].card
    rows = []
    for row in table.rows:
        card = row.card
        rows.append(
            [
                escaped(row.run.label) + ("" if row.run.finished else " (not finished)"),
                f"{card.n:,}",
                f"{card.harmful:,}",
                _share(card.coverage),
                f"{card.undecided:,}",
                f"{card.failed:,}",
                _share(card.decided.accuracy if card.decided else None),
                _share(row.strict.accuracy if row.strict else None),
                _share(card.decided.macro_f1 if card.decided else None),
                _share(row.strict.macro_f1 if row.strict else None),
                _number(card.auroc, card.scored, card.n),
                _number(card.auroc_decided, card.scored_decided, card.n),
                _number(card.auroc_strict if row.run.finished else None, card.n, card.n),
                _number(card.brier, card.scored, card.n),
                words.places(card.ece),
                _number(card.mmae, card.levelled, card.n),
            ]
        )
    accuracy, f1 = words.percent(first.majority), words.percent(first.majority_macro_f1)
    # AUROC three times, Brier, ECE and MMAE: a constant answer has none of them.
    none = [words.NOTHING] * 6
    rows.append(
        ["*majority class*", f"{first.n:,}", f"{first.harmful:,}", "100.0", "0", "0", accuracy, accuracy, f1, f1, *none]
    )
    for vote in table.votes:
        card = vote.card
        rows.append(
            [
                f"*precedents' vote{', ' + escaped(', '.join(vote.labels)) if len(table.votes) > 1 else ''}*",
                f"{card.voted:,}",
                words.NOTHING,
                words.percent(card.voted / card.n),
                f"{card.n - card.voted:,}",
                "0",
                _share(vote.rates.accuracy),
                words.NOTHING,
                _share(vote.rates.macro_f1),
                words.NOTHING,
                *none,
            ]
        )
    yield from _table(heads, rows)
    yield from (f"Dropped by the protocol: {first.dropped:,}.", "")


def _contrasts(table: Table) -> Iterator[str]:
    heads = ["run", "against", "memes", "accuracy", "macro-F1", "only the run right", "only the other right", "p"]
    rows = []
    for one in table.contrasts:
        compared = one.comparison
        differences = [
            f"{words.points(figure)} ({words.points_span(figure)})"
            for figure in (compared.difference_accuracy, compared.difference_macro_f1)
        ]
        judged = [f"{compared.mcnemar_p:.2g}", one.judgment]
        alone = [f"{compared.only_a_right:,}", f"{compared.only_b_right:,}"]
        rows.append([escaped(one.label), escaped(one.against), f"{compared.n:,}", *differences, *alone, *judged])
    yield from _table([*heads, "accuracy is"], rows)


def _classes(table: Table) -> Iterator[str]:
    rows = []
    for row in table.rows:
        kinds: list[tuple[str, Rates | None]] = [("strict", row.strict), ("decided", row.card.decided)]
        for kind, rates in kinds:
            for one in rates.classes if rates else ():
                figures = (_share(one.precision), _share(one.recall), _share(one.f1))
                rows.append([escaped(row.run.label), one.name, f"{one.support:,}", kind, *figures])
    yield from _table(["run", "class", "memes", "over", "precision", "recall", "F1"], rows)


def _confusion(card: Card) -> Iterator[str]:
    heads = ["gold", *(word(outcome) for outcome in OUTCOMES)]
    names = ("not harmful", "harmful")
    yield from _table(heads, [[name, *map(str, row)] for name, row in zip(names, card.confusion, strict=True)])


def _calibration(card: Card) -> Iterator[str]:
    if not card.calibration:
        yield from ("No meme has a score, so there is nothing to calibrate.", "")
        return
    yield from _table(
        ["scores", "memes", "mean score", "share harmful"],
        [
            [f"{one.low:.3f} to {one.high:.3f}", f"{one.n:,}", f"{one.mean_score:.3f}", f"{one.share_harmful:.3f}"]
            for one in card.calibration
        ],
    )


def _published(group: Group) -> Iterator[str]:
    if not group.published:
        return
    yield from ("### As published, not measured here", "")
    yield from (f"- {escaped(caveat)}" for caveat in group.caveats)
    yield ""
    yield from _table(
        ["system", "split", "protocol", "memes", "accuracy", "macro-F1", "AUROC", "MMAE", "source", "remark"],
        [
            [
                escaped(row.name),
                escaped(row.split) or "not said",
                str(row.protocol),
                words.NOTHING if row.n is None else f"{row.n:,}",
                words.percent(row.accuracy),
                words.percent(row.macro_f1),
                words.places(row.auroc),
                words.places(row.mmae),
                escaped(f"{row.source}; read in {row.read_in}"),
                escaped(row.remark),
            ]
            for row in group.published
        ],
    )


def _run(run: RunView) -> Iterator[str]:
    yield from (f"### {escaped(run.label)}", "")
    yield f"- memes: {run.judged:,} of {run.total:,} judged"
    manifest = run.results.manifest
    if manifest is None:
        yield "- predictions from elsewhere: nothing is known of how they were made"
    else:
        models = ", ".join(f"{word(role)} {model}" for role, model in sorted(manifest.models.items()))
        settings = ", ".join(f"{name} {value}" for name, value in sorted(manifest.settings.items()))
        excluded = ", ".join(f"{count:,} {why}" for why, count in sorted(manifest.excluded.items()))
        facts = {
            "procedure": word(manifest.procedure),
            "control": manifest.control,
            "limit, seed": f"{'none' if manifest.limit is None else manifest.limit}, {manifest.seed}",
            "models": models,
            "library": f"{manifest.library_size:,} precedents, {manifest.library}, {manifest.encoder}",
            "precedents left out as too near": excluded or "none",
            "settings": f"{settings} ({manifest.settings_digest})",
            "prompts": manifest.prompts,
            "policy": manifest.policy,
            "data": ", ".join(f"{name} {digest}" for name, digest in sorted(manifest.data.items())),
            "begun": f"{manifest.created:%Y-%m-%d %H:%M} UTC",
            "finished": f"{manifest.finished:%Y-%m-%d %H:%M} UTC" if manifest.finished else "no",
            "taken up again": f"{manifest.interruptions} times" if manifest.interruptions else "",
            "software": f"{manifest.software} {manifest.commit}, Python {manifest.python}, {manifest.machine}",
            "command": manifest.command,
        }
        yield from (f"- {name}: {escaped(value)}" for name, value in facts.items() if value)
    if run.failures:
        yield f"- failed: {escaped(', '.join(f'{count} {reason}' for reason, count in sorted(run.failures.items())))}"
    if run.cost:
        cost = run.cost
        yield (
            f"- a meme, on average: {cost.calls:.1f} model calls ({cost.stored:.0%} from the store), "
            f"{cost.tokens_in:,.0f} tokens read ({cost.tokens_cached:,.0f} cached), {cost.tokens_out:,.0f} written; "
            f"median: longest chain {cost.chain:g}, {cost.seconds:.2f} s"
        )
    yield ""
    if run.rounds:
        rows = [
            [word(one.side), "harmful" if one.harmful else "not harmful", f"{one.n:,}", f"{one.mean:.2f}"]
            for one in run.rounds
        ]
        yield from _table(["side", "gold", "memes", "rounds, mean"], rows)
    if run.entropies:
        rows = [
            [word(side), str(one.round), f"{one.n:,}", *(f"{x:.3f}" for x in (one.low, one.middle, one.high))]
            for side, course in run.entropies.items()
            for one in course
        ]
        heads = ["side", "round", "summaries", "entropy, lower quartile", "median", "upper quartile"]
        yield from _table(heads, rows)
    if not run.rounds:
        yield from ("No side examined the Proposer in this run, so there are no rounds.", "")


def _wrong(group: Group) -> Iterator[str]:
    yield from (f"## Wrong verdicts: {escaped(group.title)}, {escaped(group.split)}", "")
    if not group.wrong:
        yield from ("There is none among the memes that are judged.", "")
    for fault in VerdictFault:
        memes = [one for one in group.wrong if one.worst is fault]
        if not memes:
            continue
        yield from (f"### {fault.title}: {len(memes):,}", "")
        yield from _table(
            ["meme", "gold", "run", "said", "score", "vote", "rounds", "rationale"],
            [
                [
                    escaped(one.meme.id),
                    escaped(one.gold_words),
                    escaped(verdict.run.label),
                    word(verdict.prediction.outcome)
                    + (f" ({escaped(word(verdict.prediction.reason))})" if verdict.prediction.reason else ""),
                    words.places(verdict.prediction.score),
                    words.places(verdict.prediction.vote),
                    verdict.rounds_words or words.NOTHING,
                    escaped(_excerpt(verdict.rationale)) or words.NOTHING,
                ]
                for one in memes
                for verdict in one.verdicts
            ],
        )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join('---' for _ in heads)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _share(figure: Figure | None) -> str:
    return words.NOTHING if figure is None else f"{words.percent(figure.value)} ({words.percent_span(figure)})"


def _number(figure: Figure | None, memes: int, n: int) -> str:
    """A figure, with the number of memes behind it if these are not all."""
    if figure is None:
        return words.NOTHING
    over = "" if memes == n else f" of {memes:,}"
    return f"{words.places(figure.value)} ({words.places_span(figure)}){over}"


def _excerpt(text: str) -> str:
    line = words.plain(text)
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "…"


def escaped(text: str) -> str:
    """Untrusted text on one line, with all markup escaped."""
    # The ampersand first, or the other entities would be escaped twice.
    line = words.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Every character that is special to Markdown within a table cell.
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", line)
