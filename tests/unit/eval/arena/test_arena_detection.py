"""Follow-up questions to an arena: detection labels to set beside the battles, and difficulty of its tasks."""

import json

import pytest
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score

from court.errors import BadRequest
from eval.arena.detection import detection_sections, difficulty_questions, label_questions
from eval.arena.events import Detected, DifficultyRated, NoReply
from eval.arena.groups import boards_by
from eval.arena.leaderboard import leaderboard
from tests.support.arena_world import STRENGTHS, Arena, ask_after, output_of, rng_of

RIGHT = {"ash": 0.95, "beech": 0.8, "cedar": 0.7, "elm": 0.5, "fir": 0.3}


@pytest.fixture(scope="module")
def finished_arena(tmp_path_factory):
    arena = Arena(tmp_path_factory.mktemp("detection"), memes=30)
    arena.hold()
    return arena


def words_in(request):
    return "\n".join(part for part in request.parts if isinstance(part, str))


def number_of(request):
    return int(words_in(request).split("number ")[1].split()[0])


def labels(name):
    """Labels memes correctly at the rate of :data:`RIGHT`; cedar's reply about meme 7 is unusable."""

    def reply(request):
        number = number_of(request)
        if number == 7 and name == "cedar":
            return "I would rather not."
        harmful = bool(number % 2) == (rng_of("detect", name, number).random() < RIGHT[name])
        return {"label": "harmful" if harmful else "not harmful"}

    return reply


def run_detection(arena):
    models = ask_after(arena, label_questions(arena.manifest()), {name: labels(name) for name in STRENGTHS})
    return sum(len(model.asked) for model in models.values())


def detection_figures(arena, events, **options):
    return detection_sections(arena.manifest(), events, **options)[1]


def test_label_scores_match_scikit_learn_and_correlate_with_battles(finished_arena):
    with pytest.raises(BadRequest, match="No target of this arena was asked"):
        detection_figures(finished_arena, finished_arena.folder.events())
    assert run_detection(finished_arena) >= 5 * 30 and run_detection(finished_arena) == 0, (
        "stored labels are not requested again"
    )
    events = finished_arena.folder.events()
    report = detection_figures(finished_arena, events, resamples=300)
    assert report["rows"][0]["model"] == "ash" and report["memes"] == 30 and report["majority"] == 0.5
    gold = {meme.id: meme.harmful for meme in finished_arena.memes}
    for row in report["rows"]:
        labelled_as = {e.meme: e.harmful for e in events if isinstance(e, Detected) and e.target == row["model"]}
        # A meme without a label counts as wrong, as neither class.
        names = [int(labelled_as[meme]) if meme in labelled_as else 2 for meme in gold]
        truth = [int(one) for one in gold.values()]
        assert row["accuracy"].value == pytest.approx(accuracy_score(truth, names))
        assert row["macro_f1"] == pytest.approx(f1_score(truth, names, labels=[0, 1], average="macro"))
        assert row["unlabelled"] == (row["model"] == "cedar") and row["labelled"] + row["unlabelled"] == 30
        assert row["accuracy"].low <= row["accuracy"].value <= row["accuracy"].high
    board = leaderboard(finished_arena.root)
    won = {row.model: row.win_rate for row in board.overall.rows}
    assert {row["model"]: row["win_rate"] for row in report["rows"]} == pytest.approx(won)
    both = [(row["accuracy"].value, row["win_rate"]) for row in report["rows"]]
    assert report["spearman"].value == pytest.approx(spearmanr(*zip(*both, strict=True)).statistic)
    assert report["spearman"].low <= report["spearman"].value <= report["spearman"].high
    # Labels do not change the ranking: they are no battles.
    assert board.overall.battles == 30 * 3 * 3
    # A model that wins in spite of wrong labels lowers the correlation.
    turned = [
        e.model_copy(update={"harmful": not e.harmful}) if isinstance(e, Detected) and e.target == "ash" else e
        for e in events
    ]
    assert detection_figures(finished_arena, turned, resamples=100)["spearman"].value < report["spearman"].value


def test_target_with_missing_labels_has_no_score(finished_arena):
    run_detection(finished_arena)
    events = finished_arena.folder.events()
    last = next(e for e in reversed(events) if isinstance(e, Detected))
    part = [e for e in events if e is not last]
    rows = detection_figures(finished_arena, part, resamples=50)["rows"]
    assert {row["model"] for row in rows} == set(STRENGTHS) - {last.target}


def test_report_option_shows_the_table_without_model_calls(finished_arena):
    run_detection(finished_arena)
    report = ("arena", "detect", "--out", finished_arena.root, "--report")
    shown = output_of(*report)
    assert "Spearman's rank correlation" in shown and "29 of 30" in shown
    assert "Detection beside understanding" in (finished_arena.root / "detection.html").read_text()
    figures = json.loads(output_of(*report, "--json"))
    assert figures["memes"] == 30 and len(figures["rows"]) == 5


def run_rating(arena, name="owl"):
    """Rates each task by its meme's number; the reply about meme 3 is unusable."""

    def reply(request):
        words, number = words_in(request), number_of(request)
        assert "quality=" not in words.split("A reference")[0], "an answer was shown"
        if number == 3:
            return {"why": "hard", "text": 11, "image": 0, "reasoning": 0}
        score = 9 if number % 2 else 1
        return {"why": "it is what it is", "text": score, "image": score, "reasoning": score}

    return len(ask_after(arena, difficulty_questions(arena.folder.events(), name), {name: reply})[name].asked)


def test_difficulty_is_rated_once_and_defines_groups(tmp_path):
    arena = Arena(tmp_path / "arena", memes=8)
    arena.hold()
    with pytest.raises(BadRequest, match="group by 'difficulty'"):
        boards_by(arena.manifest(), arena.folder.events(), ["difficulty"])
    assert run_rating(arena) >= 24 and run_rating(arena) == 0
    events = arena.folder.events()
    assert sum(isinstance(e, DifficultyRated) for e in events) == 21
    assert sum(isinstance(e, NoReply) and e.to == "difficulty" for e in events) == 3
    # A rating that another annotator adds later changes no group.
    (by,) = boards_by(arena.manifest(), events, ["difficulty"], deals=20)
    assert {group["name"]: (group["memes"], group["tasks"]) for group in by["groups"]} == {
        "hard (6 and more)": (3, 9),
        "easy (below 6)": (4, 12),
    }
    assert by["ungrouped"] == 3
    command = ("arena", "difficulty", "--out", arena.root)
    assert "21 questions are rated, 9 of them hard" in output_of(*command, "--report")
    assert "Missing option --annotator" in output_of(*command, code=2)
