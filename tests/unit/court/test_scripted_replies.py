"""Replies that the stand-in model server plays in a trial."""

import itertools

import pytest

from court.examination import entropy
from court.policy import DEFAULT_POLICY
from court.replies import (
    Answer,
    Argument,
    Description,
    Question,
    argument_schema,
    parse_answer,
    parse_argument,
    parse_description,
    parse_question,
    parse_quoting_argument,
    parse_ruling,
    ruling_schema,
    schema_of,
)
from court.settings import TrialSettings
from eval.standin.replies import TOKENS, meme_text, scripted_reply, tokens_of

CHARS = TrialSettings().reply_chars


def scripted(words, schema):
    payload = {"messages": [{"role": "user", "content": words}]}
    payload["response_format"] = {"json_schema": {"schema": schema}}
    return scripted_reply(payload)


def text_reply(kind, words="x"):
    return scripted(words, schema_of(kind, CHARS))


def test_scripted_replies_have_the_stated_length_and_can_be_parsed():
    ruling = scripted("x", ruling_schema(DEFAULT_POLICY, 3, CHARS))
    replies = {
        "describe": text_reply(Description, [{"type": "image_url"}, {"type": "text", "text": "Describe"}]),
        "ask": text_reply(Question),
        "answer": text_reply(Answer),
        "summarise": text_reply(Argument, meme_text("m", 4)),
        "judge": ruling,
    }
    assert {task: len(tokens_of(reply)) for task, reply in replies.items()} == dict(TOKENS)
    assert parse_description(replies["describe"]) and parse_answer(replies["answer"])
    assert parse_question(replies["ask"]) and parse_argument(replies["summarise"]).summary
    assert len(parse_ruling(ruling, DEFAULT_POLICY, 3).precedents) == 3
    alone = scripted("x", ruling_schema(DEFAULT_POLICY, 0, CHARS))
    assert not parse_ruling(alone, DEFAULT_POLICY, 0).precedents


def test_scripted_argument_in_parts_quotes_the_meme():
    text, opening = meme_text("m", 4), "This is harmful because"
    reply = scripted(text, argument_schema(opening, CHARS, on_claim=False))
    argument = parse_quoting_argument(reply, opening, [text], CHARS, on_claim=False, quotes_needed=True)
    assert len(tokens_of(reply)) == TOKENS["summarise"] and not argument.dropped
    assert opening in argument.justification and "…" not in argument.justification


def test_other_schemas_are_left_to_the_model_server():
    assert scripted("x", {"type": "object", "properties": {"word": {"type": "string"}}}) is None


@pytest.mark.parametrize("rounds", [2, 3, 6, 10])
def test_summaries_change_until_the_round_named_in_the_meme(rounds):
    histories = [meme_text("m", rounds) + text_reply(Answer) * count for count in range(1, rounds + 2)]
    bits = [entropy(parse_argument(text_reply(Argument, words)).summary) for words in histories]
    changes = [abs(one - other) for one, other in itertools.pairwise(bits)]
    epsilon = TrialSettings().epsilon
    assert all(change > epsilon for change in changes[: rounds - 2])
    assert all(change < epsilon for change in changes[rounds - 2 :])
