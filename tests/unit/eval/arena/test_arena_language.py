"""Share of arena answers in the requested language, by the real detector."""

import pytest

from eval.arena.events import Answered, Style, TaskFormulated
from eval.arena.folder import FixedTask
from eval.arena.leaderboard import answer_languages, leaderboard
from tests.support.arena_world import THREE, Arena, ArenaModel
from tests.support.report_page import board_page, board_text

pytest.importorskip("py3langid", reason="needs the extra eval")

SENTENCES = {
    "de": "Das Bild zeigt eine Katze auf dem Dach, und der Text macht sich über Leute aus Blueland lustig.",
    "en": "The picture shows a cat on the roof, and the text makes fun of people who come from Blueland.",
    "fr": "L'image montre un chat sur le toit, et le texte se moque des gens qui viennent de Blueland.",
    "zh": "这张图片上有一只猫坐在屋顶上，文字在嘲笑来自蓝国的人，说他们总是迟到，从来不付茶钱。",
    "ja": "この画像には屋根の上の猫が写っていて、文章はブルーランドから来た人々をからかっています。",
    "ko": "이 그림에는 지붕 위의 고양이가 있고, 글은 블루랜드에서 온 사람들을 놀리고 있습니다.",
    "ar": "تظهر الصورة قطة على السطح، والنص يسخر من الناس الذين يأتون من بلولاند لأنهم يتأخرون دائما.",
    "hi": "तस्वीर में छत पर एक बिल्ली है, और पाठ ब्लूलैंड से आने वाले लोगों का मज़ाक उड़ाता है।",
    "ru": "На картинке кошка сидит на крыше, а текст смеётся над людьми, которые приехали из Блюленда.",
}


def task_in(language, task=0):
    return TaskFormulated(meme="m0", task=task, relevance=None, rounds=("Who is shown?",), language=language, call=None)


def answer_of(*texts, task=0, target="ash"):
    style = Style(words=1, headings=0, lists=0, bold=0)
    return Answered(meme="m0", task=task, target=target, background="", reasoning=texts, style=style, calls=())


def share_of(language, *texts):
    return answer_languages([task_in(language), answer_of(*texts)])["ash"]


@pytest.mark.parametrize("wanted", SENTENCES)
def test_only_the_answer_in_the_requested_language_counts_as_right(wanted):
    assert share_of(wanted, *SENTENCES.values()) == {"told": 9, "right": 1, "unknown": 0}


@pytest.mark.parametrize("tag", ["zh-Hant-TW", "zh_CN", "ZH", "yue", "cmn"])
def test_script_and_region_of_a_language_tag_are_ignored(tag):
    assert share_of(tag, SENTENCES["zh"], SENTENCES["ja"]) == {"told": 2, "right": 1, "unknown": 0}


def test_short_answers_and_unknown_languages_are_not_counted_as_wrong():
    short = share_of("de", "Das ist unser neue(s) Haus!", "Ja.", "2026!", "")
    assert short == {"told": 1, "right": 1, "unknown": 3}
    assert share_of("de", "Ja.")["told"] == 0
    # The detector does not know the language, so answers are counted neither as right nor as wrong.
    assert share_of("tlh", SENTENCES["de"]) == {"told": 0, "right": 0, "unknown": 1}


def test_only_answers_to_questions_with_a_language_count():
    events = [
        answer_of(SENTENCES["en"]),  # before its question: a record interleaves memes
        task_in("en"),
        task_in("", task=1),
        answer_of(SENTENCES["fr"], task=1),
        answer_of(SENTENCES["fr"], task=1, target="beech"),
    ]
    assert answer_languages(events) == {"ash": {"told": 1, "right": 1, "unknown": 0}}


@pytest.mark.parametrize("language", ["de", ""])
def test_leaderboard_has_a_language_column_where_questions_name_a_language(tmp_path, language):
    """Beech answers in English, the others in German."""

    class Speaker(ArenaModel):
        def _quality(self, meme):
            return f"{SENTENCES['en' if self.name == 'beech' else 'de']} {super()._quality(meme)}"

    tasks = {f"m{n}": (FixedTask(meme=f"m{n}", rounds=("Who is shown?",), language=language),) for n in range(12)}
    voices = {name: Speaker(name, THREE) for name in THREE}
    arena = Arena(tmp_path, strengths=THREE, judges=["ash", "cedar"], voices=voices, plan={"fixed_tasks": tasks})
    board = leaderboard(arena.hold())
    shown = {one["model"]: one["in_language"] for one in board.figures["targets"]}
    wanted = {name: {"told": 12, "right": 12 * (name != "beech"), "unknown": 0} if language else None for name in THREE}
    assert shown == wanted
    for form in (board_text(board), board_page(board)):
        assert ("in the language asked for" in form) == ("0.0 % of 12" in form) == bool(language)
