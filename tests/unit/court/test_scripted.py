"""Tests of the shipped fake model: it reports calls that are not in its script, and unused lines of the script."""

import asyncio
import itertools
import json

import pytest

from court.backends.chat.scripted import OffScript, ScriptedModel
from court.errors import Overrun, Unavailable
from court.examination import entropy
from court.policy import DEFAULT_POLICY
from court.ports import ChatReply, ChatRequest, FinishReason
from court.replies import (
    Answer,
    Argument,
    Description,
    Question,
    argument_schema,
    parse,
    parse_description,
    parse_quoting_argument,
    parse_ruling,
    ruling_schema,
    schema_of,
)
from court.settings import TrialSettings
from eval.standin.replies import TOKENS, meme_text, scripted_reply, tokens_of

HELLO = ChatRequest(system="You are brief.", parts=("Say hello.",), reply_schema=None, max_tokens=9)
BYE = ChatRequest(system="You are brief.", parts=("Say goodbye.",), reply_schema=None, max_tokens=9)


def ask(model, *requests, within_s=1.0):
    async def run():
        return [await model.reply(request, within_s=within_s) for request in requests]

    return asyncio.run(run())


def test_script_lines_are_matched_to_requests_in_any_order():
    full_reply = ChatReply("cut", FinishReason.LENGTH, "m", 1, 2, 3, 0.5)
    script = [
        ("goodbye", "Bye."),
        (lambda request: request.max_tokens == 9, {"said": "é"}),
        (None, lambda request: request.parts[0]),
        (None, full_reply),
    ]
    with ScriptedModel(script) as model:
        replies = ask(model, HELLO, BYE, HELLO, HELLO)
    assert [reply.text for reply in replies] == [
        json.dumps({"said": "é"}, ensure_ascii=False),
        "Bye.",
        "Say hello.",
        "cut",
    ]
    assert replies[3] is full_reply
    assert [call.request for call in model.asked] == [HELLO, BYE, HELLO, HELLO]
    assert replies[1].tokens_out == 1 and replies[1].tokens_in == 5


def test_function_answers_every_request():
    with ScriptedModel(lambda request: request.parts[0].upper()) as model:
        assert [reply.text for reply in ask(model, HELLO, BYE)] == ["SAY HELLO.", "SAY GOODBYE."]


def test_scripted_errors_are_raised():
    model = ScriptedModel([(None, Unavailable("Gone.", reason="MODEL_GONE"))])
    with pytest.raises(Unavailable, match="Gone"):
        ask(model, HELLO)
    model.finish()


def test_unscripted_call_is_a_fault_even_if_its_error_is_swallowed():
    model = ScriptedModel([("goodbye", "Bye.")])
    with pytest.raises(OffScript, match="call 1 is not in the script"):
        ask(model, HELLO)
    ask(model, BYE)
    with pytest.raises(OffScript, match="1 calls were not in the script"):
        model.finish()


def test_unused_script_lines_are_a_fault():
    with pytest.raises(OffScript, match="1 lines of it are left"), ScriptedModel([(None, "Hello.")]):
        pass


def test_exception_in_the_block_is_not_masked_by_unused_lines():
    with pytest.raises(KeyError), ScriptedModel([(None, "Hello.")]):
        raise KeyError("inside")


def test_scripted_odds_are_returned():
    async def run(model):
        return await model.odds(HELLO, ("A", "B"), within_s=1)

    assert asyncio.run(run(ScriptedModel([]))) is None
    model = ScriptedModel([], odds=lambda request, options: [0.5, 0.25])
    assert asyncio.run(run(model)).masses == (0.5, 0.25)
    assert model.asked[0].options == ("A", "B")
    model.finish()


async def test_time_limit_and_cancellation_are_honoured():
    model = ScriptedModel(lambda request: "Hello.", delay_s=30)
    with pytest.raises(Overrun):
        await model.reply(HELLO, within_s=0.01)
    call = asyncio.create_task(model.reply(HELLO, within_s=60))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert model.cancelled == 1


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
    assert parse_description(replies["describe"]) and parse(Answer, replies["answer"])
    assert parse(Question, replies["ask"]) and parse(Argument, replies["summarise"])
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
    bits = [entropy(parse(Argument, text_reply(Argument, words)).summary) for words in histories]
    changes = [abs(one - other) for one, other in itertools.pairwise(bits)]
    epsilon = TrialSettings().epsilon
    assert all(change > epsilon for change in changes[: rounds - 2])
    assert all(change < epsilon for change in changes[rounds - 2 :])
