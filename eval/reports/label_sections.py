"""Annotators, label noise and subgroups as report sections."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eval.reports.sections import Section
from eval.scores.annotators import Votes
from eval.scores.functional import FunctionalScores
from eval.scores.label_noise import LabelNoise
from eval.scores.measure import Figure, figure
from eval.scores.subgroups import SubgroupTable


def functional_sections(rows: Sequence[tuple[str, FunctionalScores]], titles: Mapping[str, str]) -> list[Section]:
    """Pass rates of systems side by side, and their contrast sets."""
    names = tuple(name for name, _ in rows)
    first = rows[0][1]
    table = [("functionality", "label", "cases", *names)]
    for one, *others in zip(*(scores.functionalities for _, scores in rows), strict=True):
        rates = (
            figure(each.passed) + (f" ({each.silent:,} without a class)" if each.silent else "")
            for each in (one, *others)
        )
        table.append((one.id, "harmful" if one.harmful else "not harmful", f"{one.n:,}", *rates))
    table.append(("all", "", f"{first.n:,}", *(figure(scores.passed) for _, scores in rows)))
    notes = [
        f"Always saying harmful passes {first.always_harmful:.3f} of all cases, and never a pair below.",
        *(f"{id_}: {titles[id_]}." for id_ in (one.id for one in first.functionalities) if id_ in titles),
    ]
    sections = [
        Section(
            key="functionalities",
            title=f"Functional tests, {first.n:,} cases",
            rows=tuple(table),
            notes=tuple(notes),
            caption="Share of cases that passed, with Wilson's 95 % interval; without a class a case has not passed",
        )
    ]
    if first.sets:
        heads = ("system", "sets", *first.contrast)
        sets = [(name, f"{one.sets:,}", *map(figure, one.contrast.values())) for name, one in rows]
        sections.append(
            Section(
                key="contrast",
                title="Contrast sets",
                rows=(heads, *sets),
                notes=(
                    "A set is two captions on two pictures that differ in a sign alone; one of the four is harmful. "
                    "Told by the picture: the same words on both pictures were both judged rightly. Told by the words: "
                    "both captions on the group's picture were.",
                ),
            )
        )
    return sections


_FEW = 30
"""Number of memes of a group below which the report says how wide its intervals are."""


def annotators_section(votes: Votes, found: Mapping[str, Figure | None]) -> tuple[Section, dict[str, Any]]:
    """Agreement of annotators, and the same for JSON."""
    every = [(annotator, label) for by_annotator in votes.values() for annotator, label in by_annotator.items()]
    labels = Counter(label for _, label in every)
    counts = {
        "memes": len(votes),
        "paired": sum(len(by_annotator) > 1 for by_annotator in votes.values()),
        "annotators": len({annotator for annotator, _ in every}),
        "votes": len(every),
    }
    section = Section(
        key="annotators",
        title="Annotators",
        rows=(
            ("figure", "value"),
            ("memes with votes", f"{counts['memes']:,}"),
            ("of these with two or more", f"{counts['paired']:,}"),
            ("annotators, votes", f"{counts['annotators']:,}, {counts['votes']:,}"),
            ("Krippendorff’s α", figure(found["alpha"])),
            ("pairs of votes that agree", figure(found["pairs"])),
            ("memes on which all agree", figure(found["unanimous"])),
            ("an annotator against the rest", figure(found["ceiling"])),
        ),
        notes=(
            f"Labels given: {', '.join(f'{count:,} {label}' for label, count in labels.most_common())}.",
            "The last figure is an annotator's accuracy if most of the others are right: no system can be shown to do "
            "better than that.",
        ),
    )
    return section, {**counts, "labels": dict(labels.most_common()), **found}


def soft_section(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Section:
    """Predictions compared with annotators' shares, one row per system."""
    heads = ("system", "scored", "Brier, soft", "accuracy, unanimous", "contested")
    without = [f"{name} {one['without_votes']:,}" for name, one in rows if one["without_votes"]]
    even = max(one["even"] for _, one in rows)
    notes = ["Scores are held against the share of annotators who found a meme harmful."]
    if even:
        notes.append(f"On {even:,} memes the votes are even: there is no majority that could be right.")
    if without:
        notes.append(f"Judged memes without a vote, which are in no figure: {', '.join(without)}.")
    figures = ("brier", "unanimous", "contested")
    table = [(name, f"{one['scored']:,}", *(figure(one[key]) for key in figures)) for name, one in rows]
    return Section("soft", "Held against soft labels", (heads, *table), tuple(notes))


def noise_section(found: LabelNoise, name: str, most: int, *, label: str) -> Section:
    """Labels that are likely wrong, the least supported first."""
    rows = [("meme", "label", f"probability of {label}")]
    rows += [(one.id, label if one.harmful else f"not {label}", figure(one.probability)) for one in found.noisy[:most]]
    notes = [
        f"{len(found.noisy):,} of {found.n:,} labels are likely wrong. By confident learning {found.harmful_wrong:.1%} "
        f"of the memes labelled {label} are not, and {found.benign_wrong:.1%} of the others are.",
        "A system's own errors stand among them and in these shares: have people look before a label is changed.",
    ]
    if len(found.noisy) > most:
        notes.append(f"{len(found.noisy) - most:,} more are not shown; --json lists all.")
    if found.without:
        notes.append(f"{found.without:,} memes have no probability, and were not looked at.")
    title = f"Labels to look at, {label}: {name}"
    return Section(f"noise-{label}", title, tuple(rows) if found.noisy else (), tuple(notes))


def subgroup_sections(name: str, tables: Sequence[SubgroupTable]) -> list[Section]:
    """Figures of each group of memes and of all other memes, one section per table of a run."""
    sections = []
    for number, found in enumerate(tables):
        nothing = "no answer" if found.task else "no class"
        shares = {"accuracy": "accuracy", "false_alarms": "false alarms", "misses": "misses", "silent": nothing}
        shares = {one: title for one, title in shares.items() if one in found.groups[0].shares}
        # In a table of whole answers every meme has the label.
        whole = bool(found.task) and not found.label
        rows = [["group", "memes", *([] if whole else [found.label or "harmful"])]]
        rows[0] += [head for title in shares.values() for head in (title, "others")]
        notes = []
        for group in found.groups:
            row = [group.name, f"{group.n:,}", *([] if whole else [f"{group.harmful:,}"])]
            for one, title in shares.items():
                share = group.shares[one]
                row += [figure(share.figure) + ("*" if share.sure else ""), figure(share.rest)]
                if share.sure and share.figure:
                    text = f"{figure(share.figure.value)} against {figure(share.rest)} of the others"
                    notes.append(f"{group.name}: {title} {text} (p = {share.corrected:.2g} after correction).")
            rows.append(row)
        notes = notes or ["No group differs from the others by more than chance often makes among so many looks."]
        # The tables of a question share tests and groups, so their notes are given once.
        if not (found.task and number):
            of_run = " in all tables of this run" if found.task else ""
            tests = (
                f"Tests of each group against all other memes (Fisher's exact): {found.tests:,}{of_run}, corrected by "
                "Holm. * marks what is below 0.05 after that."
            )
            few = ", ".join(group.name for group in found.groups if group.n < _FEW)
            caveats = [f"Fewer than {_FEW} memes, of which little can be said: {few}."] if few else []
            notes = [tests, *notes, *caveats]
        scored = f"label {found.label}" if found.label else f"{found.task}, whole answers"
        sections.append(
            Section(
                key=f"groups-{found.task}-{found.label}" if found.task else f"groups-{found.protocol}",
                title=f"{name}, {scored if found.task else f'protocol {found.protocol}'}: {found.n:,} memes",
                rows=tuple(map(tuple, rows)),
                notes=tuple(notes),
                caption=f"Shares with Wilson's 95 % intervals; a meme with {nothing} is wrong",
            )
        )
    return sections
