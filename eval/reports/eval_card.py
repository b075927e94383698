"""Card of an evaluation: the system, the data, the figures and their limits.

One page for people who decide by a figure without reading a report: the system and its data, figures with intervals
beside a constant answer and published figures, limits, and how to reproduce it. As Markdown it begins with the metadata
that the Hugging Face hub reads from model cards (``model-index``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from court.display import word
from eval.reports import tasks
from eval.reports.gather import PROTOCOLS, Table, gather
from eval.reports.sections import Section, as_markdown, as_page
from eval.reports.tasks import by_task_sections, split_by_task
from eval.reports.verdicts import published_section
from eval.runs.results import Results, RunManifest, card_of_results
from eval.scores.bootstrap import Figure
from eval.scores.tables import figure, traps_in_words
from eval.solvers.question import gold_of


@dataclass(frozen=True, slots=True)
class EvalCard:
    """Card of one run."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]
    metadata: Mapping[str, object]
    command: str = ""

    def as_markdown(self) -> str:
        """The card as Markdown, preceded by its metadata as YAML (a superset of JSON)."""
        # JSON instead of a YAML library: it escapes any character in a name.
        lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in self.metadata.items()]
        return "\n".join(["---", *lines, "---", "", as_markdown(self.title, self.lead, self.sections)])

    def as_html(self) -> str:
        """The card as a page. Raises NotLoaded if jinja2 or matplotlib is not installed."""
        return as_page(self.title, self.lead, self.sections, command=self.command)


async def eval_card(results: Results) -> EvalCard:
    """The card of a run of trials, of a run that asked a question, or of predictions from elsewhere.

    Raises BadRequest: The run can't be scored.
    """
    described = card_of_results(results)
    data_title = described.title if described else results.dataset
    figures, measured, limits = await _measured(results)
    sections = [_system(results), _data(results), *figures, *_by_language(results), _limits(results, limits)]
    manifest = results.manifest
    # How predictions from elsewhere were made is unknown.
    if manifest is not None:
        sections.append(_repeat(manifest))
    found = [
        {
            "task": {"type": "image-classification", "name": results.question.task if results.question else "harm"},
            "dataset": {"type": results.dataset, "name": data_title, "split": results.split},
            "metrics": [{"type": _metric_id(name), "name": name, "value": round(value, 4)} for name, value in measured],
        }
    ]
    return EvalCard(
        title=f"Evaluation of {results.name} on {data_title}, {results.split}",
        lead=(() if results.finished else ("NOT FINISHED: these figures will change.",)),
        sections=tuple(sections),
        metadata={
            "tags": ["hateful-memes", "memecourt"],
            "model-index": [{"name": results.name, "results": found}],
        },
        command=manifest.command if manifest else "",
    )


def _metric_id(name: str) -> str:
    # The hub compares by type; only the name contains the protocol.
    return name.partition(" (")[0].lower().removesuffix("-strict").removesuffix(", strict").replace(" ", "-")


async def _measured(results: Results) -> tuple[list[Section], list[tuple[str, float]], Sequence[str]]:
    """Sections with the figures, those that go into the metadata, and sentences on their limits."""
    if results.question is not None:
        # The report's own sections, so that card and report can't differ in a figure.
        groups = tasks.gather_tasks([results])
        wanted = ("figures", "published", "labels", "confusion")
        shown = [section for section in tasks.sections_of(groups) if section.key.split("-")[2] in wanted]
        scored = groups[0].first
        known = [
            (name, value.value)
            for name, value in scored.figures.items()
            if value is not None and scored.over[name] == scored.n
        ]
        # Listed as a limit: memes without an answer may be the hard ones.
        nothing = f"{scored.unanswered:,} of {scored.n:,} memes have no answer, and count as wrong."
        return shown, known, [nothing] if scored.unanswered else []
    # Records are for looking at single memes; a card shows none.
    report = await gather([results], records=False, pictures=False)
    (group,) = report.groups
    measured = [
        (f"{name} ({table.protocol})", value.value)
        for table in group.tables
        for name, value, _, memes in _figures_of(table)
        # The hub compares systems by these: a figure over the memes that one of them chose to score is no such figure.
        if isinstance(value, Figure) and (memes == table.rows[0].card.n or "decided" in name)
    ]
    sections = [_verdicts(table) for table in group.tables]
    if group.published:
        sections.append(replace(published_section(group), key="published", level=2))
    remarks = [sentence for table in group.tables for sentence in table.remarks]
    return sections, measured, [*group.unscored, *dict.fromkeys(remarks)]


def _figures_of(table: Table) -> Iterator[tuple[str, Figure | float | None, float | None, int]]:
    """Figures of a table's only run, each with that of a constant answer and the number of memes behind it."""
    (row,) = table.rows
    scored, n = row.card, row.card.n
    strict = scored.strict if row.run.finished else None
    yield "coverage", scored.coverage, 1.0, n
    yield "accuracy", strict.accuracy if strict else None, scored.majority, n
    yield "macro-F1", strict.macro_f1 if strict else None, scored.majority_macro_f1, n
    for of in strict.classes if strict else ():
        yield f"recall of {of.name}", of.recall, None, n
    if scored.decided:
        yield "accuracy, decided", scored.decided.accuracy, scored.majority, scored.decided.n
    # A constant answer has an AUROC of one half by definition.
    yield "AUROC", scored.auroc, 0.5, scored.scored
    if scored.scored < n:
        yield "AUROC, strict", scored.auroc_strict if strict else None, 0.5, n
    yield "Brier score", scored.brier, None, scored.scored
    yield "ECE", scored.ece, None, scored.scored
    yield "MMAE", scored.mmae, None, scored.levelled
    if scored.vote:
        yield "accuracy of the precedents' vote", scored.vote.accuracy, scored.majority, scored.voted


def _verdicts(table: Table) -> Section:
    (row,) = table.rows
    # Not every run has levels, scores and votes.
    rows = [("metric", "value, 95 % interval", "always the same class")]
    rows += [
        (name, figure(value) if memes == row.card.n else f"{figure(value)} of {memes:,}", figure(constant))
        for name, value, constant, memes in _figures_of(table)
        if value is not None
    ]
    scored = row.card
    return Section(
        key=f"verdicts-{table.protocol}",
        title=f"Verdicts, protocol {table.protocol}: {PROTOCOLS[table.protocol]}",
        rows=tuple(rows),
        notes=(
            f"{scored.n:,} memes, {scored.harmful:,} of them harmful; {scored.dropped:,} dropped by the protocol, "
            f"{scored.undecided:,} undecided, {scored.failed:,} failed.",
            "A meme without a class counts as wrong, but for what is called decided. Intervals are by bootstrap over "
            f"{f'{scored.groups:,} groups of memes' if scored.groups else 'memes'}.",
        ),
    )


def _facts(key: str, title: str, facts: Mapping[str, object], notes: Sequence[str] = ()) -> Section:
    """A table of names and values without empty values."""
    # An empty value would look like a lost figure.
    rows = [("what", "value"), *((name, str(value)) for name, value in facts.items() if value not in ("", None))]
    return Section(key, title, tuple(rows), notes=tuple(notes))


def _system(results: Results) -> Section:
    manifest, question = results.manifest, results.question
    if manifest is None:
        unknown = "from elsewhere; how they were made is not known"
        return _facts("system", "System", {"name": results.name, "predictions": unknown})
    words = ""
    if question is not None:
        words = f"{question.title or question.task}: {', '.join(question.labels)}"
    reasons = ", ".join(f"{n:,} {why}" for why, n in sorted(manifest.excluded.items()))
    models = ", ".join(f"{word(role)} {model}" for role, model in sorted(manifest.models.items()))
    facts = {
        "name": results.name,
        "what it does": "answers a question of the data set's card" if question else "judges whether a meme is harmful",
        "question": words,
        "shown": f"{'+'.join(question.inputs)}, {question.shots} examples" if question else "",
        "procedure": "" if question else manifest.comparator or word(manifest.procedure),
        "models": models or "none: the vote of labelled memes",
        "altered as a control": manifest.control,
        "labelled memes": f"{manifest.library_size:,}, encoder {manifest.encoder}" if manifest.library_size else "none",
        "left out as too near to what is judged": reasons or "none",
        "policy": "" if question else manifest.policy,
        "measured": f"{manifest.finished or manifest.created:%Y-%m-%d}",
        "software": f"{manifest.software} {manifest.commit}".strip(),
    }
    return _facts("system", "System", facts)


def _data(results: Results) -> Section:
    described, question, manifest = card_of_results(results), results.question, results.manifest
    labels: Counter[str] = Counter()
    for one in results.judged:
        if question is not None:
            # With several labels, "none" is an answer, too, and is counted.
            labels.update(gold_of(one.meme, question.task) or {"no label"})
        else:
            labels[one.meme.source_label or ("harmful" if one.meme.harmful else "not harmful")] += 1
    languages = Counter(one.meme.language or "not said" for one in results.judged)
    facts = {
        "data set": described.title if described else results.dataset,
        "split": results.split,
        "memes": f"{len(results.judged):,}"
        + (f", a sample (seed {manifest.seed})" if manifest is not None and manifest.limit else ""),
        "gold labels": ", ".join(f"{n:,} {label}" for label, n in labels.most_common()),
        "languages, as the card has them": ", ".join(f"{n:,} {language}" for language, n in languages.most_common()),
        "by": described.citation if described else "",
        "terms": described.licence if described else "",
        "from": described.source_url if described else "",
        "counts": described.verified if described else "",
    }
    return _facts("data", "Data", facts, traps_in_words(described.caveats) if described else ())


def _by_language(results: Results) -> list[Section]:
    """Figures by language if the card names several; languages are not detected."""
    named = {one.meme.language for one in results.judged}
    # Detected languages would need another package, and be wrong for short texts.
    if len(named) < 2 or "" in named:
        return []
    return by_task_sections([split_by_task(results, "language")], "language")


def _limits(results: Results, remarks: Sequence[str]) -> Section:
    manifest = results.manifest
    named = sorted({one.meme.language for one in results.judged} - {""})
    # Measured limits come before those that apply to every card.
    notes = list(remarks)
    if len(named) == 1:
        notes.append(f"All memes are in one language ({named[0]}): nothing is known of others.")
    if not named:
        notes.append("The card names no languages, so that it is not known of which these figures hold.")
    if manifest is not None and manifest.text_only:
        notes.append("Memes were judged by their texts, without pictures.")
    if manifest is not None and manifest.control:
        notes.append(f"The court was altered as a control ({manifest.control}), and is not served so.")
    notes += [
        "Figures are of this split: memes from elsewhere, or of later years, may be others. What a system is worse at, "
        "memecourt-eval subgroups tests.",
        "Gold labels are people's, who disagree: memecourt-eval labels says how far, where their votes are there.",
        "Chosen settings flatter the split that they were chosen on.",
    ]
    return Section("limits", "What these figures don't say", notes=tuple(notes))


def _repeat(manifest: RunManifest) -> Section:
    facts = {
        "command": manifest.command,
        "seed": manifest.seed,
        "settings": manifest.settings_digest,
        "prompts": manifest.prompts,
        "labelled memes": manifest.library,
        **{f"file {name}": digest for name, digest in sorted(manifest.data.items())},
        "computer": f"{manifest.machine}, Python {manifest.python}",
    }
    return _facts("repeat", "To repeat it", facts)
