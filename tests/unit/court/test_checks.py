"""Tests of the checks of a full trial: planted faults are found, sound trials pass, and a mistrial acquits nobody."""

import itertools
import json
import re

import pytest

from court import checks
from court.checks import in_other_language, is_cut, of_argument, of_description, of_rationale, of_readings, of_sides
from court.events import Described, QuestioningEnd, Side, SideRested, Summarised, TrialChecked
from court.policy import DEFAULT_POLICY
from court.ports import ChatReply, FinishReason
from court.prompts import load
from court.prompts.sets import packaged
from court.settings import TrialSettings
from court.verdict import Decision, Label, Review, Strength, Strengths, Verdict
from court.verdict import ReviewReason as Check
from serving.docket.store.trials import trial_change
from serving.views.event_text import pieces_of
from serving.views.recheck import differences
from tests.support.cast import ACQUITTAL, RULING, Cast, prompt_text, try_meme
from tests.support.evidence import assert_reproducible
from tests.support.fakes import H, N, findings

ENGLISH = load("judge").content["system"]
SCENES = (
    "a crowd under a green flag", "two cats on a sofa", "a bus that is late", "a teacher with a pointer",
    "three people at a table", "a dog in the rain", "an empty platform", "a garden with a fence",
)  # fmt: skip
GROUPS = ("people from Blueland", "the Zorbs", "bakers", "left-handed people", "fans of the Reds")
ACCUSING = (
    "The words tell {group} to leave, while the picture has {scene}. Read together they say that {group} do not "
    "belong here, which is an attack on where they come from.",
    "Beside {scene} the text calls {group} a burden. That demeans them as a group, and a viewer is asked to laugh at "
    "them rather than with them.",
    "The caption blames {group} for everything, and {scene} is shown as the proof. Whoever reads this takes away "
    "that {group} are the cause, which is hateful towards all of them.",
)
DEFENDING = (
    "The words tease {group} about their habits, as friends do, while the picture has {scene}. Nothing in it is aimed "
    "at anybody, and a usual viewer takes it for a harmless joke.",
    "The text quotes {group} themselves, and {scene} is an everyday sight. No one is insulted, and what the Accuser "
    "calls an attack is a remark on the weather.",
    "It celebrates {group}: the picture has {scene} and the caption thanks them. There is no harm in thanks, and "
    "none of the answers named anything hostile.",
)
SOUND = [
    (side, template.format(group=group, scene=scene), f"{group} beside {scene}")
    for side, templates in ((Side.ACCUSER, ACCUSING), (Side.DEFENDER, DEFENDING))
    for template, group, scene in itertools.product(templates, GROUPS, SCENES)
]
GERMAN = (
    "Die Wörter greifen niemanden an, sondern erzählen von einem Bus, der zu spät kommt, und jeder, der schon einmal "
    "gewartet hat, wird darüber lachen und an seinen eigenen Morgen denken müssen."
)
CHINESE = "这张图片里的文字没有针对任何人，只是在说公交车又晚点了，大家都在站台上等车。"
POLICY = DEFAULT_POLICY.text


def argument(side, text, material="", summary="So far.", chars=1200):
    """Checks that fail for an argument."""
    found = of_argument(
        side, text, summary=summary, material=[material], policy=POLICY, chars=chars, instructions=ENGLISH
    )
    return [each.check for each in found]


def rationale(text, *, accuser="", defender="", material="", chars=1200):
    """Checks that fail for a rationale."""
    found = of_rationale(
        text,
        arguments={Side.ACCUSER: accuser, Side.DEFENDER: defender},
        material=[material],
        chars=chars,
        instructions=ENGLISH,
    )
    return [each.check for each in found]


# Each check, on planted faults and on sound texts


@pytest.mark.promise("MT-1", "240 arguments with planted faults: 95 % found, false alarms 2 % a check, 5 % together")
def test_planted_faults_are_found_and_sound_arguments_pass():
    false = {check: 0 for check in Check}
    missed = {check: 0 for check in (Check.SIDE_CHANGED, Check.SIDES_ALIKE, Check.POLICY_ECHOED, Check.OTHER_LANGUAGE)}
    echo = " ".join(POLICY.split()[20:80])
    for side, text, material in SOUND:
        for check in argument(side, text, material):
            false[check] += 1
        other = Side.DEFENDER if side is Side.ACCUSER else Side.ACCUSER
        missed[Check.SIDE_CHANGED] += Check.SIDE_CHANGED not in argument(other, text, material)
        missed[Check.POLICY_ECHOED] += Check.POLICY_ECHOED not in argument(side, f"It is this: {echo}", material)
        missed[Check.OTHER_LANGUAGE] += Check.OTHER_LANGUAGE not in argument(side, f"{text} {GERMAN}", material)
        missed[Check.SIDES_ALIKE] += not of_sides(text, text.replace("which", "and that"))
    halves = len(SOUND) // 2
    pairs = [(one, other) for (_, one, _), (_, other, _) in zip(SOUND[:halves], SOUND[halves:], strict=True)]
    false[Check.SIDES_ALIKE] = sum(bool(of_sides(*pair)) for pair in pairs)
    # Promised: at least 95 % found, at most 2 % false alarms a check and 5 % together.
    assert {check: count for check, count in missed.items() if count > 0.05 * len(SOUND)} == {}
    assert {check: count for check, count in false.items() if count > 0.02 * len(SOUND)} == {}
    assert sum(false.values()) <= 0.05 * len(SOUND)


def test_joke_that_hurts_is_an_accusation():
    assert argument(Side.ACCUSER, "The meme is a form of humour that can be hurtful to people from Blueland.") == []
    assert argument(Side.DEFENDER, "It is a joke about a late bus, and it hurts nobody from Blueland.") == []


def test_copied_rationale_differs_from_one_that_quotes_the_meme():
    for side, text, material in SOUND:
        sides = {"accuser": text} if side is Side.ACCUSER else {"defender": text}
        assert Check.RATIONALE_COPIED in rationale(text, **sides)
        own = (
            f"The text is about {material}. I weigh that the witness saw no more than this, and follow the precedents."
        )
        assert rationale(own, **sides, material=material) == []
    # A sentence of either side, and none of the Judge's own.
    halves = SOUND[0][1], SOUND[-1][1]
    assert rationale(" ".join(halves), accuser=halves[0], defender=halves[1]) == [Check.RATIONALE_COPIED]
    # A formula behind each sentence is no reason either: seen in ten of 57 trials of a small model.
    one, other = "The meme promotes the idea that buses are never late", "The meme is about the usual wait for a bus"
    formulas = f"{one}, which is harmful according to the policy. {other}, which is harmless according to the policy."
    assert rationale(formulas, accuser=one, defender=other) == [Check.RATIONALE_COPIED]
    meme = "people from Blueland should all go home before the last bus leaves the old town tonight or tomorrow"
    # Both repeat the meme's words, which is no copy.
    assert rationale(meme, accuser=meme, material=meme) == []


def test_rationale_without_a_word_of_the_meme_is_ungrounded():
    vague = (
        "Considering overall circumstances, societal norms strongly discourage expressions promoting negativity and "
    )
    vague += "hostility, therefore cautious moderation remains advisable within public digital environments."
    assert rationale(vague, accuser="The flag is green.", material="cats") == [Check.RATIONALE_UNGROUNDED]
    assert rationale(f"{vague} The flag is green.", accuser="The flag is green.", material="a green flag") == []


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (GERMAN, True),
        (CHINESE, True),
        (f"The words say this and that about the bus. {GERMAN}", True),
        (
            f"The words say “{GERMAN}”, which is about a bus that is late and not about any group of people at all.",
            False,
        ),
        ("Ja.", False),
        ("The cats sit on the sofa, and that is all there is to see in this picture of theirs.", False),
    ],
)
def test_other_language_is_found_outside_of_quotes(text, other):
    assert in_other_language(text, ENGLISH) is other
    # Prompts of one's own may ask for any language.
    assert not in_other_language(text, GERMAN)


@pytest.mark.parametrize(
    ("text", "most", "cut"),
    [
        ("the existence of a pictur", 25, True),
        ("the existence of a pictur", 24, False),
        ("the existence of a pictur", 27, True),
        ("the existence of a pictur", 28, False),
        ("the existence of a photo.", 25, False),
        ("the existence of a flag, ", 25, True),
        ("文字没有针对任何人。", 10, False),
    ],
)
def test_text_that_ends_in_mid_sentence_at_its_limit_is_cut(text, most, cut):
    assert is_cut(text, most) is cut


def test_reading_every_precedent_as_neither_ignores_them():
    assert [each.check for each in of_readings(["neither"] * 3)] == [Check.PRECEDENTS_IGNORED]
    for supports in ([], ["neither"], ["neither", "harmful", "neither"]):
        assert of_readings(supports) == ()


def test_missing_description_differs_from_a_text_without_a_picture():
    assert of_description(None, 1200) == () == of_description("A flag.", 1200)
    assert [each.check for each in of_description("", 1200)] == [Check.DESCRIPTION_MISSING]


# In a trial


def failed_in(record):
    """Checks that failed in a trial."""
    checked = record.last(TrialChecked)
    return [] if checked is None else [each.check for each in checked.failed]


def reasons(record):
    """Reasons for review of a trial, and its signals."""
    return [each.reason for each in record.verdict.review], [each.reason for each in record.verdict.signals]


def summary(justification):
    return {"summary": "The words are about a bus.", "justification": justification}


SIDES = {"accuser_summarise": summary(SOUND[0][1]), "defender_summarise": summary(SOUND[-1][1])}
CHANGED = {"accuser_summarise": summary(SOUND[0][1]), "defender_summarise": summary(SOUND[1][1])}


@pytest.mark.parametrize(("label", "ruling"), [(H, RULING), (N, ACQUITTAL)])
@pytest.mark.parametrize(
    ("check", "lines"),
    [
        (Check.SIDE_CHANGED, lambda ruling: {**CHANGED, "judge": ruling}),
        (Check.RATIONALE_COPIED, lambda ruling: {**SIDES, "judge": {**ruling, "rationale": SOUND[0][1]}}),
        (Check.OTHER_LANGUAGE, lambda ruling: {**SIDES, "judge": {**ruling, "rationale": GERMAN}}),
    ],
)
def test_failed_essential_check_is_a_mistrial_that_keeps_its_label(check, lines, label, ruling):
    cast = Cast(**lines(ruling))
    record = try_meme(cast, found=findings([H, N] * 3))
    assert record.verdict.label is label and record.decision is Decision.REVIEW
    checked = record.last(TrialChecked)
    assert checked.mistrial and check in failed_in(record)
    in_review, in_signals = reasons(record)
    assert Check.MISTRIAL in in_review and check in in_signals
    # It was repaired once, and the messages of that are on record; an auditor sees what was found.
    assert any("mistrial" in str(piece) for piece in pieces_of(checked))
    assert_reproducible(record)


def test_repaired_check_leaves_no_trace_but_the_fault():
    attempts = itertools.count()

    def defend(request):
        return summary(SOUND[1][1] if next(attempts) == 0 else SOUND[-1][1])

    cast = Cast(**{**SIDES, "defender_summarise": defend})
    record = try_meme(cast)
    assert failed_in(record) == [] and not record.verdict.review
    # At temperature 0 the same reply would come again.
    assert {request.temperature for request in cast.requests() if request.call_id.attempt == 1} == {0.0}
    assert [request.temperature for request in cast.requests() if request.call_id.attempt == 2] == [0.5]
    faults = [event.call.fault for event in record.all(Summarised) if event.side is Side.DEFENDER]
    assert faults[0] == "it argues for the other side; argue for your own" and not any(faults[1:])


def test_switched_role_is_checked_and_no_mistrial():
    record = try_meme(Cast(**CHANGED), settings=TrialSettings(stance_at="switch"))
    assert Check.SIDE_CHANGED in failed_in(record) and not record.last(TrialChecked).mistrial
    in_review, in_signals = reasons(record)
    assert Check.MISTRIAL not in in_review and Check.SIDE_CHANGED in in_signals
    # Only what was to be expected is excused.
    copied = try_meme(
        Cast(**SIDES, judge={**RULING, "rationale": SOUND[0][1]}), settings=TrialSettings(stance_at="switch")
    )
    assert copied.last(TrialChecked).mistrial


def test_as_published_records_checks_and_declares_no_mistrial():
    cast = Cast(**CHANGED, describe=lambda request: "" if request.call_id.attempt == 1 else {"description": "A bus."})
    record = try_meme(cast, settings=TrialSettings(mistrials=False))
    assert Check.SIDE_CHANGED in failed_in(record) and not record.last(TrialChecked).mistrial
    in_review, in_signals = reasons(record)
    assert Check.MISTRIAL not in in_review and Check.SIDE_CHANGED in in_signals
    (repair,) = (request for request in cast.requests() if "could not be used" in prompt_text(request))
    assert repair.call_id.role == "PROPOSER" and repair.temperature == 0.0


def test_checks_that_are_not_essential_are_signals():
    same = summary("The words are about a bus that is late, and the picture has a platform with nobody on it yet.")
    ruling = {**RULING, "precedents": dict.fromkeys("123", "neither")}
    record = try_meme(Cast(accuser_summarise=same, defender_summarise=same, judge=ruling))
    assert failed_in(record) == [Check.SIDES_ALIKE, Check.PRECEDENTS_IGNORED]
    assert reasons(record)[1] == [Check.SIDES_ALIKE, Check.PRECEDENTS_IGNORED]
    assert not record.last(TrialChecked).mistrial and record.verdict.decision is Decision.BLOCK


IN_PARTS = {
    "quotes": ["the meme's own words", "words of nobody"],
    "because": "it speaks of nobody, and all of it is an innocent joke.",
}
"""A side's reply under the second set of prompts, in its parts; for the Defender."""


def in_parts(request, **changes):
    opening = request.reply_schema["properties"]["conclusion"]["enum"][0]
    return {**IN_PARTS, "conclusion": opening, **changes}


def test_side_that_is_not_shown_the_policy_replies_in_parts():
    accused = {"because": "it shuts all of them out of the street."}
    cast = Cast(defender_summarise=in_parts, accuser_summarise=lambda request: in_parts(request, **accused))
    record = try_meme(cast, prompts=packaged("2"))
    assert not any(DEFAULT_POLICY.text in prompt_text(request) for request in cast.requests("accuser", "defender"))
    summarised = record.last(Summarised)
    assert summarised.dropped == ("words of nobody",) and "words of nobody" not in summarised.justification
    assert any("words of nobody" in str(piece) for piece in pieces_of(summarised))
    assert failed_in(record) == [] and "“the meme's own words”" in prompt_text(cast.requests("judge")[0])
    # The rationale comes before strengths and label.
    (ruling,) = (each.reply_schema["required"] for each in cast.requests("judge") if each.reply_schema)
    assert ruling.index("rationale") < ruling.index("harmful_strength") and ruling[-1] == "label"
    assert_reproducible(record)


def test_compelled_opening_is_no_sign_of_a_side_s_stance():
    cast = Cast(accuser_summarise=in_parts, defender_summarise=in_parts)
    record = try_meme(cast, prompts=packaged("2"))
    assert Check.SIDE_CHANGED in failed_in(record) and record.last(TrialChecked).mistrial


def test_cut_part_of_an_argument_is_found():
    cut = "it speaks of nobody and of nothing that is ha"
    lines = {"summarise": lambda request: in_parts(request, because=cut)}
    record = try_meme(Cast(**lines), prompts=packaged("2"), settings=TrialSettings(reply_chars=2 * len(cut)))
    assert Check.REPLY_CUT in failed_in(record) and record.last(Summarised).justification.endswith("that is […]")


def test_cut_summary_does_not_count_as_converged():
    cut = "the words are about a bus that has come too late again tod"
    lines = {"summary": cut, "justification": "The words are about a bus."}
    settings = TrialSettings(reply_chars=len(cut), rounds_max=4)
    record = try_meme(Cast(summarise=lines), settings=settings)
    rested = record.all(SideRested)
    assert [each.reason for each in rested] == [QuestioningEnd.ROUND_LIMIT] * 2 and Check.REPLY_CUT in failed_in(record)
    assert not list(differences(record))
    # Without checks it counts, as published.
    record = try_meme(Cast(summarise=lines), settings=settings.model_copy(update={"mistrials": False}))
    assert {each.reason for each in record.all(SideRested)} == {QuestioningEnd.CONVERGED}


@pytest.mark.parametrize("reply", ["", *(json.dumps({"description": words}) for words in (" ", "...")), "refused"])
@pytest.mark.parametrize(("ruling", "decision"), [(RULING, Decision.BLOCK), (ACQUITTAL, Decision.REVIEW)])
def test_missing_description_ends_no_trial_and_needs_review_of_an_acquittal(reply, ruling, decision):
    def describe(request):
        return refusal() if reply == "refused" else reply

    cast = Cast(describe=describe, judge=ruling, **SIDES)
    record = try_meme(cast)
    described = record.last(Described)
    assert described.description == "" and len(described.call.replies) == 2
    assert failed_in(record) == [Check.DESCRIPTION_MISSING] and record.decision is decision
    assert Check.DESCRIPTION_MISSING in reasons(record)[0 if decision is Decision.REVIEW else 1]
    assert_reproducible(record)


def test_description_of_the_second_attempt_is_used():
    attempts = itertools.count()
    cast = Cast(describe=lambda _: {"description": "" if next(attempts) == 0 else "A flag."}, **SIDES)
    record = try_meme(cast)
    assert record.last(Described).description == "A flag." and failed_in(record) == []


def refusal():
    return ChatReply(
        text="", finish=FinishReason.REFUSAL, model="m", tokens_in=1, tokens_out=0, tokens_cached=0, latency_s=0.0
    )


@pytest.mark.parametrize(
    "failed", [[Check.MISTRIAL], [Check.STEERING_SUSPECTED], [Check.MISTRIAL, Check.VOTE_DISAGREES]]
)
def test_block_by_precedents_alone_outlasts_what_a_meme_provokes(failed):
    strengths = Strengths(harmful=Strength.STRONG, benign=Strength.WEAK)
    verdict = Verdict(
        label=Label.HARMFUL,
        strengths=strengths,
        rationale="So.",
        review=tuple(Review(reason=reason, detail="So.") for reason in failed),
        precedents_block=True,
    )
    stands = Check.VOTE_DISAGREES not in failed
    assert verdict.decision is (Decision.BLOCK if stands else Decision.REVIEW) and verdict.needs_human_review
    assert verdict.block_stands is stands
    for other in ({"precedents_block": False}, {"label": Label.NOT_HARMFUL, "strengths": None}):
        assert verdict.model_copy(update=other).decision is Decision.REVIEW


def test_mistrial_with_blocking_precedents_stays_a_block_in_the_queue():
    record = try_meme(Cast(**CHANGED), found=findings([H] * 5))
    assert record.verdict.precedents_block and record.decision is Decision.BLOCK and record.verdict.needs_human_review
    assert trial_change(record.verdict_event)["block_stands"] is True


def test_probes_ask_before_and_after_the_debate_and_only_find_faults():
    settings = TrialSettings(probes=True)
    quiet, loud = (Cast(odds=odds, **SIDES) for odds in ((0.5, 0.5), (0.8, 0.1)))
    record = try_meme(quiet, settings=settings)
    checked = record.last(TrialChecked)
    assert checked.failed == () and set(checked.supports) == set(Side) and checked.unheard.harmful == (0.5, 0.5)
    # Three questions in both orders, beside the ruling and its odds.
    assert len(quiet.requests("judge")) == 3 + 6
    first = quiet.requests("judge")[0]
    assert "The side that says" not in prompt_text(first) and len(checked.reported_calls) == 3
    ruling = next(request for request in quiet.requests("judge") if request.reply_schema is not None)
    for request in quiet.requests("judge"):
        # All share the beginning of the ruling's prompt, up to their question.
        assert request.parts[:-1] == ruling.parts[: len(request.parts) - 1] and request.system == ruling.system
    places = {re.search(r"Read the (\w+) of", prompt_text(request)) for request in quiet.requests("judge")}
    assert {place[1] for place in places if place} == {"first", "second"}
    # A model that is sure of harm finds that the Defender argues for it.
    record = try_meme(loud, settings=settings)
    (failed,) = record.last(TrialChecked).failed
    assert failed.check is Check.SIDE_CHANGED and failed.side is Side.DEFENDER and failed.share > 0.8
    assert record.last(TrialChecked).mistrial
    for each in (record, try_meme(Cast(odds=None, **CHANGED), settings=settings, found=findings([H, N] * 3))):
        assert_reproducible(each)
        # A hijacked answer removes nothing that the wording shows.
        assert Check.SIDE_CHANGED in failed_in(each)


def test_full_verdict_decides_alone_only_where_the_precedents_agree():
    agreed = try_meme(Cast(**SIDES), found=findings([H] * 5)).verdict
    assert agreed.decision is Decision.BLOCK and not agreed.review
    unsure = (findings([H, N] * 3), findings([H] * 5, risk=None), findings([H] * 5, text=0.05, picture=0.05))
    for found in unsure:
        verdict = try_meme(Cast(**SIDES), found=found).verdict
        assert [each.reason for each in verdict.review] == [Check.MODEL_NOT_AUDITIONED]
        assert verdict.label is H and verdict.decision is Decision.REVIEW
    # A reason that says more stands alone.
    against = try_meme(Cast(**SIDES), found=findings([N] * 5)).verdict
    assert [each.reason for each in against.review] == [Check.VOTE_DISAGREES]
    settings = TrialSettings(audition=False, vote_disagreement=0.5)
    assert try_meme(Cast(**SIDES), found=findings([N] * 5), settings=settings).verdict.decision is Decision.BLOCK


def test_pi_4_mistrial_never_lowers_a_decision():
    order = [Decision.ALLOW, Decision.REVIEW, Decision.BLOCK]
    provoked = (CHANGED, {**SIDES, "describe": ""}, {"accuser_summarise": summary(GERMAN)})
    rationales = (SOUND[0][1], GERMAN, "")
    settings = TrialSettings(rounds_min=1, rounds_max=1)
    for labels, ruling in itertools.product(([H] * 5, [N] * 5, [H, N] * 3), (RULING, ACQUITTAL)):
        found = findings(labels)
        plain = try_meme(Cast(**SIDES, judge=ruling), found=found, settings=settings).decision
        for lines, rationale_said in itertools.product(provoked, rationales):
            judge = {**ruling, "rationale": rationale_said} if rationale_said else ruling
            record = try_meme(Cast(**{**lines, "judge": judge}), found=found, settings=settings)
            assert order.index(record.decision) >= order.index(plain), (labels, ruling["label"], lines, rationale_said)
            assert record.verdict.decision is not Decision.ALLOW or not failed_in(record)


def test_each_check_has_words_and_sound_trials_need_no_repair():
    for check in checks.DETAILS:
        assert check in Check
    cast = Cast(**SIDES)
    record = try_meme(cast)
    assert record.last(TrialChecked) is None and record.verdict.decision is Decision.BLOCK
    assert not any("could not be used" in prompt_text(request) for request in cast.requests())
