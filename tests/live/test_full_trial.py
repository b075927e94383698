"""Full trials on a real vLLM: valid replies, token counts, the prefix cache, and a vLLM that ends and comes back.

The model writes nonsense. The tests show that the court, the client and vLLM fit together, not that a verdict is right.
"""

import asyncio
import itertools
import json
import math
import time
from dataclasses import replace

import pytest

from court.backends.chat import wire
from court.backends.chat.capabilities import probe
from court.backends.chat.wire import Capabilities, LogProbs
from court.errors import Unavailable
from court.events import (
    AnswerGiven,
    Described,
    QuestionAsked,
    Role,
    Side,
    SideRested,
    Summarised,
    TrialFailed,
    TrialResumed,
    VerdictGiven,
)
from court.meme import Frame
from court.ports import ChatRequest, FinishReason
from court.record import TrialAborted, TrialRecord, TrialState
from court.settings import TrialSettings
from court.trial import Court
from eval.perf.vllm.prefix_cache import BLOCK, PICTURES, Recorded, prompts_sent, share, tokenize_body
from eval.perf.vllm.tiny_model import SPECIAL
from eval.synthetic.scenes import draw_meme
from tests.support.cast import Cast
from tests.support.fakes import FakeReader, H, N, RecordingSink, findings
from tests.support.full_trial import Finder, a_case, court_of, read
from tests.support.full_trial import picture as picture
from tests.support.injections import INJECTIONS, SPECIALS, marked
from tests.support.playing import wait_until

LENGTHY = TrialSettings(reply_chars=1900, rounds_min=2, rounds_max=2)
CALLS = 1 + 2 * 2 * 3 + 1 + 2
"""Model calls of a trial with two rounds: the description; per side and round a question, an answer and a summary; the
ruling; and the odds in both orders."""
CONTRADICTS = "its label does not follow from its strengths, which make it "
"""The only possible fault of a nonsense reply that follows its schema: a rule that JSON schema can't express."""
MARK = "5e1f8c0a72d94b36"


def with_model(vllm, work):
    """Runs ``work`` with a client that has probed the capabilities of vLLM; returns its result."""

    async def run():
        model = Recorded(base_url=vllm.base_url, model=vllm.model, api_key=vllm.api_key)
        try:
            probed = await probe(model, pictures=PICTURES)
            assert probed.sentences == () and probed.capabilities.log_probs is LogProbs.CHOSEN
            model.forget()
            return await work(model)
        finally:
            await model.aclose()

    return asyncio.run(run())


def calls_of(record):
    """Returns all model calls on record."""
    calls = [event.call for event in record.events if getattr(event, "call", None) is not None]
    return [*calls, *(event.odds.call for event in record.all(VerdictGiven) if event.odds)]


def unfinished(vllm):
    return vllm.metric("vllm:num_requests_running") + vllm.metric("vllm:num_requests_waiting")


def token_counters(vllm):
    """Returns vLLM's counters of tokens: in prompts, in replies, looked up in the prefix cache, found there."""
    names = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
    return [vllm.metric(f"vllm:{name}_total") for name in names]


def tokens_of(client, model, request):
    """Returns the tokens of a prompt as the engine gets them: after the chat template, with all picture tokens."""
    answer = client.post("/tokenize", json=tokenize_body(model, request))
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trials_decide_with_valid_replies_and_the_token_counts_of_vllm(vllm, picture, temperature):
    async def work(model):
        trials = []
        for number in range(3):
            notes, began, before = RecordingSink(), time.monotonic(), await asyncio.to_thread(token_counters, vllm)
            court = court_of(model, temperature=temperature)
            record = await court.run(a_case(picture, f"send all {number} of them home"), notes)
            trials.append((record, notes, [*model.asked], before, await asyncio.to_thread(token_counters, vllm)))
            print(f"temperature {temperature}: a trial in {time.monotonic() - began:.2f} s")
            model.asked.clear()
        return trials

    for record, notes, made_calls, before, after in with_model(vllm, work):
        assert record.state is TrialState.DECIDED and TrialRecord.of(notes.events) == record
        for kind, number in ((Described, 1), (QuestionAsked, 4), (AnswerGiven, 4), (Summarised, 4), (SideRested, 2)):
            assert len(record.all(kind)) == number
        (verdict,) = record.all(VerdictGiven)
        assert [reading.id for reading in verdict.ruling.precedents] == ["p0", "p1", "p2"]
        calls = calls_of(record)
        repairs = [call for call in calls if call.fault]
        assert all(call.role is Role.JUDGE and call.fault.startswith(CONTRADICTS) for call in repairs)
        assert len(made_calls) == CALLS + len(repairs)
        for made_call in made_calls:
            if not made_call.is_odds:
                assert made_call.reply.finish is FinishReason.STOP and isinstance(
                    json.loads(made_call.reply.text), dict
                )
        for name in ("tokens_in", "tokens_out", "tokens_cached"):
            assert sum(getattr(call, name) for call in calls) == sum(
                getattr(made_call.reply, name) for made_call in made_calls
            )
        assert all(call.model == vllm.model and call.tokens_out > 0 and call.latency_s > 0 for call in calls)
        # No call was cut short, so vLLM has counted exactly these.
        counted = [later - earlier for earlier, later in zip(before, after, strict=True)]
        prompts = sum(call.tokens_in for call in calls)
        cached = sum(call.tokens_cached for call in calls)
        assert counted == [prompts, sum(call.tokens_out for call in calls), prompts, cached]


def test_odds_match_those_read_from_vllm_directly(vllm, picture):
    async def work(model):
        record = await court_of(model).run(a_case(picture, "send them all home"), RecordingSink())
        return record.last(VerdictGiven), [call.request for call in model.asked if call.is_odds]

    verdict_event, requests = with_model(vllm, work)
    odds = verdict_event.odds
    assert len(odds.harmful) == len(odds.not_harmful) == len(requests) == 2
    assert all(0 < mass <= 1 for mass in (*odds.harmful, *odds.not_harmful))
    assert all(sum(pair) <= 1 for pair in zip(odds.harmful, odds.not_harmful, strict=True))
    # A model with random weights spreads its probability widely, which the record reports.
    assert verdict_event.verdict.harm_score is None
    assert [signal.reason for signal in verdict_event.verdict.signals] == ["SCORE_UNKNOWN"]
    with vllm.client() as client:
        tokenized_words = [
            client.post("/tokenize", json={"model": vllm.model, "prompt": word, "add_special_tokens": False}).json()
            for word in ("A", "B")
        ]
        ids = [tokenized["tokens"][0] for tokenized in tokenized_words]
        for number, request in enumerate(requests):
            body = {
                "model": vllm.model,
                "messages": wire.messages(request, Capabilities(), {}),
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "allowed_token_ids": ids,
                "logprob_token_ids": ids,
            }
            choice = client.post("/v1/chat/completions", json=body).json()["choices"][0]
            masses = {
                entry["token"]: math.exp(entry["logprob"]) for entry in choice["logprobs"]["content"][0]["top_logprobs"]
            }
            direct = (masses["A"], masses["B"])
            if number == 1:  # A stands for harmful in the first order, B in the second
                direct = direct[::-1]
            assert direct == pytest.approx((odds.harmful[number], odds.not_harmful[number]), rel=1e-3)
    assert odds.call.tokens_out == 2


@pytest.mark.parametrize("end", ["deadline", "cancel"])
def test_aborted_trial_frees_the_engine(vllm, picture, end):
    def finished():
        return vllm.metric("vllm:request_success_total")

    async def work(model):
        court, notes = court_of(model, LENGTHY, temperature=1.0), RecordingSink()
        within_s = 5 if end == "deadline" else None
        before = await asyncio.to_thread(finished)
        trial = asyncio.create_task(court.run(a_case(picture, "given up", within_s=within_s), notes))
        await asyncio.to_thread(wait_until, lambda: unfinished(vllm) >= 1, 60)
        if end == "deadline":
            with pytest.raises(TrialAborted) as caught:
                await trial
            assert caught.value.reason == "DEADLINE"
        else:
            trial.cancel()
            with pytest.raises(asyncio.CancelledError):
                await trial
        end_time = time.monotonic()
        await asyncio.to_thread(wait_until, lambda: unfinished(vllm) == 0, 60)
        print(f"{end}: the engine is free after {time.monotonic() - end_time:.3f} s")
        # It was freed by the cancellation, not by finishing all requests.
        assert await asyncio.to_thread(finished) - before < len(model.begun)
        return TrialRecord.of(notes.events)

    record = with_model(vllm, work)
    assert record.state is TrialState.FAILED and record.verdict is None


def test_trial_finds_its_shared_prefixes_in_the_cache(vllm):
    before, case = read(draw_meme("road", "another meme", size=(196, 140)), draw_meme("cake", "ours", size=(252, 168)))

    async def work(model):
        # Only the system messages, which all trials share, have been seen before.
        await court_of(model).run(a_case(before, "another meme"), RecordingSink())
        earlier = len(model.asked)
        counters = await asyncio.to_thread(token_counters, vllm)
        record = await court_of(model).run(a_case(case, "ours"), RecordingSink())
        counters = [new - old for old, new in zip(counters, await asyncio.to_thread(token_counters, vllm), strict=True)]
        calls = [*model.asked]
        repeated = [(await model.reply(replace(calls[-3].request, max_tokens=900), within_s=60)) for _ in range(2)]
        return await prompts_sent(vllm.root_url, vllm.model, calls), earlier, counters, record, repeated

    prompts, earlier, (_, _, queries, hits), record, (_, again) = with_model(vllm, work)
    shared = share(prompts[earlier:], prompts[:earlier], BLOCK)
    assert (queries, hits) == (shared.prompts, shared.reached)
    print(
        f"prefix cache: {shared.reached} of {shared.prompts} tokens ({shared.reached / shared.prompts:.1%}); possible "
        f"{shared.possible} ({shared.reached / shared.possible:.1%} of it reached)"
    )
    assert 0.9 * shared.possible <= shared.reached <= shared.possible
    for side in Side:
        sums, questions = ([e for e in record.all(kind) if e.side is side] for kind in (Summarised, QuestionAsked))
        for event in (*sums, *questions[1:]):
            assert event.call.tokens_cached >= 0.5 * event.call.tokens_in
    assert again.tokens_cached == (again.tokens_in - 1) // BLOCK * BLOCK


@pytest.mark.parametrize(("moment", "end"), [(QuestionAsked, "kill"), (QuestionAsked, "stop"), (SideRested, "kill")])
def test_trial_that_lost_its_vllm_is_resumed_once_it_is_back(vllm, picture, moment, end):
    """vLLM ends while the second event of a kind is stored, with other calls in flight."""

    async def work(model):
        lost = []

        async def watch(*events):
            notes.extend(events)
            if sum(isinstance(event, moment) for event in notes) == 2 and not lost:
                lost.append(time.monotonic())
                await asyncio.to_thread(getattr(vllm, end))

        notes = []
        # One fence mark before and after, so that a repeated prompt would be recognised; replies always differ.
        court = court_of(model, temperature=1.0, fence_mark=MARK)
        with pytest.raises(TrialAborted) as caught:
            await court.run(a_case(picture, "send them all home"), watch)
        print(f"{moment.__name__}, {end}: aborted {time.monotonic() - lost[0]:.2f} s after the end began")
        begun_calls, calls = len(model.begun), [*model.asked]
        aborted = TrialRecord.of(notes)
        await asyncio.to_thread(vllm.start)
        record = await court.resume(aborted, picture, watch)
        return caught.value, aborted, record, TrialRecord.of(notes), calls, model.begun[begun_calls:]

    error, aborted, record, from_events, calls, begun_calls = with_model(vllm, work)
    assert isinstance(error.cause, Unavailable) and error.reason == "MODEL_GONE"
    assert error.record == aborted and aborted.state is TrialState.FAILED and aborted.verdict is None
    failed = aborted.last(TrialFailed)
    assert failed.retryable and failed.reason == "MODEL_GONE"

    assert record == from_events and record.state is TrialState.DECIDED
    assert record.events[: len(aborted.events) + 1] == (*aborted.events, record.last(TrialResumed))
    for kind, number in ((Described, 1), (QuestionAsked, 4), (AnswerGiven, 4), (Summarised, 4), (SideRested, 2)):
        assert len(record.all(kind)) == number
    on_record = {words_of(event) for event in aborted.events} - {None}
    answered = [call.request for call in calls if words_of_reply(call) in on_record]
    assert len(answered) >= len(on_record) >= 3
    assert [request.parts[-1] for request in begun_calls if request in answered] == []
    since = calls_of(record)[len(calls_of(aborted)) :]
    repairs = sum(bool(call.fault) for call in since)
    assert len(begun_calls) == len(since) + repairs + 1  # the record has one call for both orders of the odds


def words_of(event):
    """Returns the words of a model in an event; None for an event without any."""
    match event:
        case Described():
            return (event.description,)
        case QuestionAsked():
            return (event.question,)
        case AnswerGiven():
            return (event.answer,)
        case Summarised():
            return (event.summary, event.justification)
    return None


def words_of_reply(call):
    """Returns the words of a reply likewise; None for a call for odds, whose reply is not JSON."""
    return None if call.is_odds else tuple(str(value).strip() for value in json.loads(call.reply.text).values())


@pytest.fixture(scope="module")
def special(vllm):
    """The model's control tokens, with their ids."""
    with vllm.client() as client:
        answers = {
            word: client.post(
                "/tokenize", json={"model": vllm.model, "prompt": word, "add_special_tokens": False}
            ).json()
            for word in SPECIAL
        }
    assert all(answer["count"] == 1 for answer in answers.values())
    return {word: answer["tokens"][0] for word, answer in answers.items()}


def skeleton(tokens, special):
    """Returns the control tokens of a prompt in order; a picture's run of padding as one entry with its length."""
    names = {number: word for word, number in special.items()}
    bones = []
    for name, run in itertools.groupby(names.get(token) for token in tokens):
        length = len([*run])
        if name is not None:
            bones += [(name, length)] if name == "<|image_pad|>" else [(name, 1)] * length
    return bones


class Injected(Cast):
    """A cast that fills every free text of its replies with a given text."""

    def __init__(self, text):
        def clip(most):
            return f"{text[: most - 5]} what"  # long enough for a question, and never blank

        super().__init__(
            rounds=2,
            describe=lambda _: {"description": clip(4000)},
            ask=lambda _: {"question": clip(500)},
            answer=lambda _: {"answer": clip(2000)},
            summarise=lambda _: {"summary": clip(2000), "justification": clip(2000)},
        )


def prompts_of(text, picture):
    """Returns the prompts of a trial in which meme, precedents and all replies have this text, by role."""
    cast = Injected(text)
    found = findings([H, N, H, H, N])
    exhibits = [each.model_copy(update={"text": text, "categories": (text,)}) for each in found.exhibits]
    found = found.model_copy(update={"exhibits": tuple(exhibits)})
    court = Court(
        finder=Finder(found),
        text_reader=FakeReader("unused"),
        software="test",
        settings=TrialSettings(rounds_min=2, rounds_max=2),
        role_models=cast.role_models,
        fence_mark=MARK,
    )
    record = asyncio.run(court.run(a_case(picture, text), RecordingSink()))
    assert record.state is TrialState.DECIDED
    return {role: cast.requests(role) for role in cast.models}


def test_no_injection_becomes_a_control_token_of_the_real_tokeniser(vllm, picture, special):
    strings = [marked(text, MARK) for _, text in INJECTIONS] + [" ".join(SPECIALS)]
    assert len(strings) >= 30
    teeth = 0
    with vllm.client() as client:
        harmless = prompts_of("a plain caption", picture)
        wanted = {
            role: [skeleton(tokens_of(client, vllm.model, request), special) for request in requests]
            for role, requests in harmless.items()
        }
        for role, requests in harmless.items():
            for request, bones in zip(requests, wanted[role], strict=True):
                pictures = sum(isinstance(part, Frame) for part in request.parts)
                assert [word for word, _ in bones] == [
                    *("<|im_start|>", "<|im_end|>", "<|im_start|>"),
                    *("<|vision_start|>", "<|image_pad|>", "<|vision_end|>") * pictures,
                    *("<|im_end|>", "<|im_start|>"),
                ]
        checked = set()
        for text in strings:
            bare = ChatRequest(system="You judge.", parts=(text,), reply_schema=None, max_tokens=1)
            teeth += len(skeleton(tokens_of(client, vllm.model, bare), special)) > 5
            for role, requests in prompts_of(text[:10_000], picture).items():
                assert len(requests) == len(wanted[role])
                for request, bones in zip(requests, wanted[role], strict=True):
                    key = (request.system, request.parts)
                    if key in checked:
                        continue
                    checked.add(key)
                    assert skeleton(tokens_of(client, vllm.model, request), special) == bones, (role, text)
        # The checked tokens are those that the engine gets.
        for request in (harmless["proposer"][0], harmless["judge"][0]):
            messages = wire.messages(request, Capabilities(), {})
            body = {"model": vllm.model, "messages": messages, "max_tokens": 1, "return_token_ids": True}
            answer = client.post("/v1/chat/completions", json=body).json()
            assert answer["prompt_token_ids"] == tokens_of(client, vllm.model, request)
    assert teeth >= 5  # without fence and escaping, at least so many would get through
    print(f"control tokens: {len(strings)} strings, {len(checked)} prompts; {teeth} strings would get through bare")
