"""Leaderboard of an arena: ratings by dimension, and evidence of their reliability."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from court.errors import BadRequest
from eval.arena.agreement import (
    HumanVerdict,
    human_agreement,
    human_sections,
    judged_in,
    judged_in_both_orders,
    percent,
)
from eval.arena.bias import bias_report, bias_sections, contrasts
from eval.arena.boards import Board, BoardRow, board_of
from eval.arena.events import Answered, Event, Judged, MemeDone, MemeLeftOut, NoReply, TaskFormulated
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.words import OVERALL, SETTING_WORDS, Row, Setting
from eval.datasets.read import DETECT, language_identifier, language_of
from eval.reports.sections import Section, Tile
from eval.scores.measure import NOTHING, Figure, figure, wilson
from eval.session.directory import Spent

FEWEST_LETTERS = 20
"""Letters below which an answer is not looked at: of a name or a "yes" nobody can tell the language."""
_ONE_LANGUAGE = {
    **dict.fromkeys(("cmn", "wuu", "yue"), "zh"),
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("ary", "arz"), "ar"),
    **dict.fromkeys(("bs", "hr", "sh"), "sr"),
    **{"ms": "id", "in": "id", "iw": "he", "fil": "tl", "uzs": "uz"},
}
"""Tags of one written language, or of languages that share most words, so that a detector's word is no proof."""

_HOW = (
    "What is compared is how well a model explains the harm in a meme, by the judgement of models. Bradley-Terry "
    "ratings by maximum likelihood, ties half a win each; {anchor}, and 400 points are odds of ten to one: a "
    "difference of 100 points is a win in 64 of 100 battles, of 200 in 76. Intervals are 95 %, by bootstrap over "
    "memes, {resamples:,} resamples. Who is ahead in 97.5 % of the resamples is surely ahead; places are those that "
    "this leaves open."
)


def answer_languages(events: Sequence[Event]) -> dict[str, Row]:
    """Detects the languages of answers, by model; leaves out models that were never asked for a language.

    Each round's answer counts separately: each is requested in that language. ``told`` counts the answers whose
    language could be detected, ``right`` those of them in the language asked for, and ``unknown`` the others, which are
    too short, or asked for in a language that the detector does not know.

    Raises NotLoaded: A question asks for a language, and py3langid is not installed.
    """
    wanted = {(e.meme, e.task): e.language for e in events if isinstance(e, TaskFormulated) and e.language}
    found: dict[str, list[bool | None]] = defaultdict(list)
    for event in events:
        if isinstance(event, Answered) and (language := wanted.get((event.meme, event.task))):
            found[event.target] += [_is_in(text, language) for text in event.reasoning]
    return {
        target: {
            "told": len(answers) - answers.count(None),
            "right": answers.count(True),
            "unknown": answers.count(None),
        }
        for target, answers in found.items()
    }


def _is_in(text: str, tag: str) -> bool | None:
    """True if a text is in the language of a tag; None if there is no telling."""
    if len(re.findall(r"[^\W\d_]", text)) < FEWEST_LETTERS:
        return None
    language, known = _plain(tag), map(str, language_identifier().labels)
    # The detector only names languages that it knows, so every answer in another one would count as wrong.
    if language not in map(_plain, known) or not (found := language_of(text, DETECT)):
        return None
    return _plain(found) == language


def _plain(tag: str) -> str:
    """Returns the language of a BCP 47 tag, without script and region."""
    language = tag.replace("_", "-").partition("-")[0].lower()
    return _ONE_LANGUAGE.get(language, language)


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Report on an arena."""

    manifest: ArenaManifest
    boards: tuple[Board, ...]
    """The overall board first."""
    figures: Row
    """All figures for other programs, without any text."""

    @property
    def overall(self) -> Board:
        """The board that ranks."""
        return self.boards[0]


def leaderboard(root: Path, humans: Sequence[HumanVerdict] = ()) -> Leaderboard:
    """Reads an arena, finished or not.

    Raises:
        BadRequest: The folder contains no arena, or the arena has no battle yet.
        NotLoaded: A question asks for a language, and py3langid is not installed.
    """
    folder = ArenaFolder(root)
    manifest, events = folder.manifest(), folder.events()
    if not (fought := judged_in(events)):
        raise BadRequest(f"{root} has no battle yet that could be ranked.", reason="ARENA_EMPTY")
    # Ties say nothing about a preference for the answer shown first.
    decided = [s for event in fought if (s := event.verdicts[OVERALL].score) != 0.5]
    both = judged_in_both_orders(fought, OVERALL)
    settings, draw = manifest.settings, (manifest.settings.resamples, manifest.seed)
    families = {name: entry.family for name, entry in manifest.models.items()}
    # The last criterion is OVERALL itself, which comes first here.
    boards = tuple(board_of(manifest, events, name) for name in (OVERALL, *settings.dimensions[:-1]))
    figures: Row = {
        "manifest": {
            "name": manifest.name,
            "dataset": manifest.dataset,
            "split": manifest.split,
            "finished": manifest.finished is not None,
            "settings": settings.model_dump(mode="json"),
            "samples": [one.model_dump(mode="json") for one in manifest.samples],
        },
        "boards": boards,
        "targets": _targets(manifest, events),
        "memes": sum(isinstance(event, MemeDone) for event in events),
        "left_out": Counter(event.reason for event in events if isinstance(event, MemeLeftOut)),
        "tasks": sum(isinstance(event, TaskFormulated) for event in events),
        # Answers that could not be merged into their guideline.
        "unmerged": sum(isinstance(event, NoReply) and event.to == "merging" for event in events),
        # Share of decided battles won by the answer shown first. 0.5 without one: no preference either way.
        "first_wins": (float(np.mean(decided)) if decided else 0.5, len(decided)),
        "consistent": (float(np.mean([one == other for one, other in both])), len(both)) if both else None,
        # A battle has no reference if no judge had an answer to start a guideline from.
        "references": Counter(str(event.setting) for event in fought),
        "spent": {name: spent.model_dump() for name, spent in folder.spent().items()},
        # Given all events: it selects its own battles.
        "bias": bias_report(events, settings.targets, settings.judges, draw),
        "humans": human_agreement(events, humans) if humans else None,
        "contrasts": contrasts(events, settings.targets, families, draw),
    }
    return Leaderboard(manifest, boards, figures)


def _targets(manifest: ArenaManifest, events: Sequence[Event]) -> list[Row]:
    """Returns further facts about each model."""
    answers: dict[str, list[Answered]] = defaultdict(list)
    for event in events:
        if isinstance(event, Answered):
            answers[event.target].append(event)
    # Includes the bias study: these count all calls to a model as a judge.
    judged = Counter(event.judge for event in events if isinstance(event, Judged))
    missing = [event for event in events if isinstance(event, NoReply)]
    languages = answer_languages(events)
    return [
        {
            "model": name,
            "called": manifest.models[name].model,
            "family": manifest.models[name].family,
            "answered": len(answers[name]),
            "unanswered": Counter(e.reason for e in missing if e.to == "answer" and e.model == name),
            "words": float(np.mean([one.style.words for one in answers[name]])) if answers[name] else 0.0,
            "tokens": float(np.mean([one.tokens_out for one in answers[name]])) if answers[name] else 0.0,
            "as_judge": judged[name],
            "unjudged": sum(e.to == "battle" and e.model == name for e in missing),
            "in_language": languages.get(name),
        }
        for name in manifest.settings.targets
    ]


def board_title(board: Leaderboard) -> str:
    """Title of the report."""
    return f"Leaderboard: {board.manifest.name}"


def board_lead(board: Leaderboard) -> list[str]:
    """Sentences before the sections."""
    manifest, settings, memes = board.manifest, board.manifest.settings, board.figures["memes"]
    anchor = f"{settings.anchor} has 1000" if settings.anchor else "their mean is 1000"
    lead = [
        f"{manifest.name}: {len(settings.targets)} models, {board.figures['tasks']:,} questions about {memes:,} "
        f"meme{'' if memes == 1 else 's'} of {manifest.dataset}, {manifest.split}; "
        f"{len(settings.judges)} of them judged {board.overall.battles:,} battles.",
        _HOW.format(anchor=anchor, resamples=settings.resamples),
    ]
    best = board.overall.rows[0]
    if best.rating is not None:
        surely = best.first == best.last == 1
        lead.append(f"{best.model} {'is surely first' if surely else 'has the highest rating, but not surely'}.")
    return lead


def board_sections(board: Leaderboard) -> list[Section]:
    """All sections, in order."""
    return [
        *_warnings(board),
        _overall(board),
        _dimensions(board),
        *_models(board.figures),
        *_judges(board),
        _arena(board),
    ]


def _warnings(board: Leaderboard) -> Iterator[Section]:
    if not board.manifest.finished:
        done = f"{board.figures['memes']} of {len(board.manifest.memes)} memes are done."
        lead = f"{done} The same command goes on with it."
        yield Section("unfinished", "Not finished: these figures will change", lead=(lead,), warning=True)
    if board.overall.not_ranked:
        also = " and Elo, which always have a value, stand" if board.overall.rows[0].elo else " stand"
        lead = f"{board.overall.not_ranked} Win rates{also} below."
        yield Section("unranked", "There are no ratings", lead=(lead,), warning=True)


def _overall(board: Leaderboard) -> Section:
    overall, settings = board.overall, board.manifest.settings
    targets = {target["model"]: target for target in board.figures["targets"]}
    languages = [target["in_language"] for target in targets.values() if target["in_language"]]
    head = ["model", "place", "rating", "style held equal", "Elo", "won", "battles", "answered", "tokens"]
    head += ["in the language asked for"] if languages else []
    rows = []
    for number, row in enumerate(overall.rows, 1):
        target = targets[row.model]
        rows.append(
            (
                f"{row.model} ({target['family']})" if target["family"] else row.model,
                _place(row, number),
                *(figure(rating, ".0f") for rating in (row.rating, row.styled, row.elo)),
                percent(row.win_rate),
                f"{row.battles:,}",
                f"{target['answered']:,} of {_questions(target):,}",
                f"{target['tokens']:.0f}",
                *([_in_language(target["in_language"])] if languages else []),
            )
        )
    caption = f"{overall.battles:,} battles, {percent(overall.tied)} tied"
    if overall.without:
        caption += (
            f"; {overall.without} of {settings.resamples} resamples have no finite ratings, and are in no interval"
        )
    notes = [f"Elo: K = {settings.elo_k:g}, from 1000, in an order of the battles that the seed draws."]
    if languages:
        notes.append(
            "In the language asked for: of answers to questions that ask for one, as py3langid detects it; "
            f"{sum(one['unknown'] for one in languages)} are left out, of fewer than {FEWEST_LETTERS} letters or of an "
            "unknown language."
        )
    if overall.no_style:
        notes.append(f"Style could not be held equal. {overall.no_style}")
    tiles = _tiles(overall, targets.values())
    return Section("overall", "Overall", (tuple(head), *rows), notes=tuple(notes), tiles=tiles, caption=caption)


def _questions(target: Row) -> int:
    return int(target["answered"] + sum(target["unanswered"].values()))


def _tiles(overall: Board, targets: Iterable[Row]) -> tuple[Tile, ...]:
    """Ratings and the share of questions that were answered, of each model, with their intervals."""
    found = []
    for title, values in (
        ("Rating", {row.model: row.rating for row in overall.rows}),
        ("Elo", {row.model: row.elo for row in overall.rows}),
    ):
        if bars := tuple((model, one) for model, one in values.items() if isinstance(one, Figure)):
            ends = (min(one.low for _, one in bars), max(one.high for _, one in bars) + 1)
            found.append(Tile(title, bars, *ends, ".0f"))
    answered = ((one["model"], wilson(one["answered"], _questions(one))) for one in targets)
    if shares := tuple((model, one) for model, one in answered if one is not None):
        found.append(Tile("Answered", shares))
    return tuple(found)


def _dimensions(board: Leaderboard) -> Section:
    titles = {one.key: one.title for one in board.manifest.settings.criteria}
    # The overall board, the first, is shown above.
    boards = board.boards[1:]
    own = [
        {row.model: percent(row.win_rate) if one.not_ranked else figure(row.rating, ".0f") for row in one.rows}
        for one in boards
    ]
    head = ("by dimension", *(titles[one.dimension] for one in boards))
    rows = ((row.model, *(cells[row.model] for cells in own)) for row in board.overall.rows)
    return Section(
        "dimensions",
        "By dimension",
        (head, *rows),
        notes=(
            "Redundancy: the higher the rating, the less of it.",
            *(f"{titles[one.dimension]}: {one.not_ranked}" for one in boards if one.not_ranked),
        ),
        caption="Bradley-Terry rating; where there are no finite ratings, the share of battles won",
    )


def _models(figures: Row) -> Iterator[Section]:
    spent = {name: Spent(**one) for name, one in figures["spent"].items()}
    calls = sum(one.calls for one in spent.values())
    tokens = sum(one.tokens_in + one.tokens_out for one in spent.values())
    usd = sum(one.usd for one in spent.values())
    total = f"Asked: {calls:,} calls, {tokens:,} tokens, US$ {usd:.2f}."
    yield Section("models", "Models", lead=(total,))
    head = ("model", "at its server", "answers", "without an answer", "words", "judged", "unusable judgements")
    rows: list[tuple[str, ...]] = [(*head, "calls", "asked again", "tokens in", "tokens out", "US $")]
    for target in figures["targets"]:
        own = spent.get(target["model"], Spent())
        rows.append(
            (
                target["model"],
                target["called"],
                f"{target['answered']:,}",
                ", ".join(f"{count} {reason}" for reason, count in target["unanswered"].items()) or NOTHING,
                f"{target['words']:.0f}",
                f"{target['as_judge']:,}",
                f"{target['unjudged']:,}",
                *(f"{n:,}" for n in (own.calls, own.repaired, own.tokens_in, own.tokens_out)),
                f"{own.usd:.2f}",
            )
        )
    caption = "In all sessions together; what came out of the store of calls is not in it"
    yield Section("asked", "Calls by model", tuple(rows), caption=caption, level=3, detail=True)


def _judges(board: Leaderboard) -> Iterator[Section]:
    figures = board.figures
    share, decided = figures["first_wins"]
    # A share of zero battles would be a figure without a measurement.
    lead = (
        f"The answer shown first won {percent(share)} of {decided:,} decided battles; a judge that takes no notice of "
        "the order makes it about half."
        if decided
        else "No battle was decided: all were ties."
    )
    lines = [lead]
    if figures["consistent"]:
        same, both = figures["consistent"]
        lines.append(f"Judged in both orders, {percent(same)} of {both:,} battles had the same outcome.")
    if not figures["bias"]:
        lines.append("The panel's bias was not studied: set bias = true in [arena].")
    yield Section("judges", "Judges", lead=tuple(lines))
    if figures["bias"]:
        yield from bias_sections(figures["bias"], figures["contrasts"], [row.model for row in board.overall.rows])
    if figures["humans"]:
        yield from human_sections(figures["humans"])


def _arena(board: Leaderboard) -> Section:
    manifest, left_out = board.manifest, board.figures["left_out"]
    number = sum(left_out.values()) + len(manifest.without_picture)
    references = (f"{SETTING_WORDS[Setting(name)]} {n:,}" for name, n in board.figures["references"].items())
    settings = manifest.settings.model_dump(mode="json", exclude={"criteria", "targets"})
    facts = {
        **{name.replace("_", " "): _words(value) for name, value in settings.items()},
        "battles by reference": ", ".join(references),
        "answers not merged": f"{board.figures['unmerged']:,}",
        "memes left out": ", ".join([str(number), *(f"{n} {reason}" for reason, n in left_out.items())]),
        "seed": str(manifest.seed),
        "software": f"{manifest.software} {manifest.commit[:12]}",
    }
    return Section("arena", "The arena", (("arena", manifest.name), *facts.items()), words=True, detail=True)


def _words(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else NOTHING if value is None else str(value)


def _in_language(one: Row | None) -> str:
    return f"{percent(one['right'] / one['told'])} of {one['told']:,}" if one and one["told"] else NOTHING


def _place(row: BoardRow, number: int) -> str:
    if row.first is None or row.last is None:
        return NOTHING if row.rating is None else str(number)
    return str(row.first) if row.first == row.last else f"{row.first}–{row.last}"
