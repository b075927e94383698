"""Whole full trials on a real vLLM: every reply as asked for, its figures, its cache, its end and its coming back.

The model writes nonsense. What is shown is that the court, the client and vLLM fit together, not that a verdict is
right.
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
from court.backends.chat.features import Capabilities, LogProbs
from court.backends.pictures.reader import GuardedPictureReader
from court.errors import Unavailable
from court.events import (
    AnswerGiven,
    Described,
    Procedure,
    QuestionAsked,
    Role,
    Side,
    SideRested,
    Summarised,
    TrialFailed,
    TrialResumed,
    VerdictGiven,
)
from court.meme import Frame, Meme
from court.ports import ChatRequest, FinishReason
from court.record import TrialAborted, TrialRecord, TrialState
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from eval.perf.vllm.court import PICTURES, Recorded
from eval.perf.vllm.prefix_cache import prompts_sent, share, tokenize_body
from eval.perf.vllm.server import BLOCK
from eval.perf.vllm.tiny_model import SPECIAL
from retrieval.starter.draw import draw_meme
from tests.support.cast import Cast
from tests.support.fakes import FakeFinder, FakeReader, H, N, Notes, findings
from tests.support.injections import INJECTIONS, SPECIALS, marked
from tests.support.pictures import encode
from tests.support.playing import wait_until

BRIEF = TrialSettings(reply_chars=64, rounds_min=2, rounds_max=2)
LENGTHY = TrialSettings(reply_chars=1900, rounds_min=2, rounds_max=2)
CALLS = 1 + 2 * 2 * 3 + 1 + 2
"""Of a trial with two rounds: the description, per side and round a question, an answer and a summary, the ruling and
the odds in both orders."""
CONTRADICTS = "its label does not follow from its strengths, which make it "
"""The one thing that may be wrong with a reply of nonsense that keeps to its schema; JSON schema can't ask for it."""
MARK = "5e1f8c0a72d94b36"


def with_model(vllm, work):
    """Runs what wants the client, which has found out what vLLM can do."""

    async def run():
        model = Recorded(base_url=vllm.base_url, model=vllm.model, api_key=vllm.api_key)
        try:
            found = await probe(model, pictures=PICTURES)
            assert found.sentences == () and found.capabilities.log_probs is LogProbs.CHOSEN
            model.forget()
            return await work(model)
        finally:
            await model.aclose()

    return asyncio.run(run())


class Finder(FakeFinder):
    """Finds three precedents, each with a picture of its own size."""

    SCENES = ("crowd", "cat", "road")

    async def pictures(self, ids):
        drawn = [draw_meme(self.SCENES[n], f"text of {each}", size=(140 + 28 * n, 112)) for n, each in enumerate(ids)]
        return [Frame(encode(picture, "PNG"), *picture.size) for picture in drawn]


def court_of(model, settings=BRIEF, temperature=0.0, **options):
    chair = RoleModel(model, temperature)
    return Court(
        finder=Finder(findings([H, N, H, H, N])),
        text_reader=FakeReader("read off the picture"),
        software="test",
        settings=settings,
        chairs=RoleModels(proposer=chair, accuser=chair, defender=chair, judge=chair),
        **options,
    )


def a_case(picture, text, **options):
    return TrialCase("t", Meme(picture, text=text), Procedure.FULL, **options)


def read(*drawn):
    """Pictures as the court reads them, in the guarded worker."""

    async def run():
        reader = GuardedPictureReader(workers=1)
        try:
            return [await reader.read(encode(picture, "PNG")) for picture in drawn]
        finally:
            await reader.aclose()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def picture():
    return read(draw_meme("coffee", "send them all home", size=(224, 168)))[0]


def calls_of(record):
    """All calls on record."""
    calls = [event.call for event in record.events if getattr(event, "call", None) is not None]
    return [*calls, *(event.odds.call for event in record.all(VerdictGiven) if event.odds)]


def unfinished(vllm):
    return vllm.metric("vllm:num_requests_running") + vllm.metric("vllm:num_requests_waiting")


def told(vllm):
    """vLLM's own counters: tokens of prompts, of replies, looked for in the prefix cache, found there."""
    names = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
    return [vllm.metric(f"vllm:{name}_total") for name in names]


def tokens_of(client, model, request):
    """The whole prompt as vLLM's engine is given it: through the chat template, pictures in full."""
    answer = client.post("/tokenize", json=tokenize_body(model, request))
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_whole_trials_decide_with_valid_replies_and_the_server_s_own_figures(vllm, picture, temperature):
    async def work(model):
        held = []
        for number in range(3):
            notes, began, before = Notes(), time.monotonic(), await asyncio.to_thread(told, vllm)
            court = court_of(model, temperature=temperature)
            record = await court.hear(a_case(picture, f"send all {number} of them home"), notes)
            held.append((record, notes, [*model.asked], before, await asyncio.to_thread(told, vllm)))
            print(f"temperature {temperature}: a trial in {time.monotonic() - began:.2f} s")
            model.asked.clear()
        return held

    for record, notes, asked, before, after in with_model(vllm, work):
        assert record.state is TrialState.DECIDED and TrialRecord.of(notes.events) == record
        for kind, number in ((Described, 1), (QuestionAsked, 4), (AnswerGiven, 4), (Summarised, 4), (SideRested, 2)):
            assert len(record.all(kind)) == number
        (given,) = record.all(VerdictGiven)
        assert [reading.id for reading in given.ruling.precedents] == ["p0", "p1", "p2"]
        calls = calls_of(record)
        repairs = [call for call in calls if call.fault]
        assert all(call.role is Role.JUDGE and call.fault.startswith(CONTRADICTS) for call in repairs)
        assert len(asked) == CALLS + len(repairs)
        for each in asked:
            if not each.is_odds:
                assert each.reply.finish is FinishReason.STOP and isinstance(json.loads(each.reply.text), dict)
        for name in ("tokens_in", "tokens_out", "tokens_cached"):
            assert sum(getattr(call, name) for call in calls) == sum(getattr(each.reply, name) for each in asked)
        assert all(call.model == vllm.model and call.tokens_out > 0 and call.latency_s > 0 for call in calls)
        # No call was cut short, so that vLLM has counted just these.
        counted = [now - then for then, now in zip(before, after, strict=True)]
        prompts = sum(call.tokens_in for call in calls)
        cached = sum(call.tokens_cached for call in calls)
        assert counted == [prompts, sum(call.tokens_out for call in calls), prompts, cached]


def test_the_score_is_what_vllm_says_when_it_is_asked_directly(vllm, picture):
    async def work(model):
        record = await court_of(model).hear(a_case(picture, "send them all home"), Notes())
        return record.last(VerdictGiven), [each.request for each in model.asked if each.is_odds]

    given, requests = with_model(vllm, work)
    odds = given.odds
    assert len(odds.harmful) == len(odds.not_harmful) == len(requests) == 2
    assert all(0 < mass <= 1 for mass in (*odds.harmful, *odds.not_harmful))
    assert all(sum(pair) <= 1 for pair in zip(odds.harmful, odds.not_harmful, strict=True))
    # A model with random weights is about to say anything, and the record says so.
    assert given.verdict.harm_score is None
    assert [signal.reason for signal in given.verdict.signals] == ["SCORE_UNKNOWN"]
    with vllm.client() as client:
        two = [
            client.post("/tokenize", json={"model": vllm.model, "prompt": word, "add_special_tokens": False}).json()
            for word in ("A", "B")
        ]
        ids = [one["tokens"][0] for one in two]
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
                one["token"]: math.exp(one["logprob"]) for one in choice["logprobs"]["content"][0]["top_logprobs"]
            }
            direct = (masses["A"], masses["B"])
            if number == 1:  # A stands for harmful when asked first, B when asked again
                direct = direct[::-1]
            assert direct == pytest.approx((odds.harmful[number], odds.not_harmful[number]), rel=1e-3)
    assert odds.call.tokens_out == 2


@pytest.mark.parametrize("end", ["deadline", "cancel"])
def test_a_trial_that_is_given_up_frees_the_engine(vllm, picture, end):
    def finished():
        return vllm.metric("vllm:request_success_total")

    async def work(model):
        court, notes = court_of(model, LENGTHY, temperature=1.0), Notes()
        within_s = 5 if end == "deadline" else None
        before = await asyncio.to_thread(finished)
        trial = asyncio.create_task(court.hear(a_case(picture, "given up", within_s=within_s), notes))
        await asyncio.to_thread(wait_until, lambda: unfinished(vllm) >= 1, 60)
        if end == "deadline":
            with pytest.raises(TrialAborted) as caught:
                await trial
            assert caught.value.reason == "DEADLINE"
        else:
            trial.cancel()
            with pytest.raises(asyncio.CancelledError):
                await trial
        ended = time.monotonic()
        await asyncio.to_thread(wait_until, lambda: unfinished(vllm) == 0, 60)
        print(f"{end}: the engine is free after {time.monotonic() - ended:.3f} s")
        # It was freed before it had come to an end by itself with all that was asked.
        assert await asyncio.to_thread(finished) - before < len(model.begun)
        return TrialRecord.of(notes.events)

    record = with_model(vllm, work)
    assert record.state is TrialState.FAILED and record.verdict is None


def test_a_trial_finds_in_the_prefix_cache_what_can_be_there(vllm):
    before, case = read(draw_meme("road", "another meme", size=(196, 140)), draw_meme("cake", "ours", size=(252, 168)))

    async def work(model):
        # What is the same in all trials, the system messages, has been seen before; the rest is new.
        await court_of(model).hear(a_case(before, "another meme"), Notes())
        earlier = len(model.asked)
        counters = await asyncio.to_thread(told, vllm)
        record = await court_of(model).hear(a_case(case, "ours"), Notes())
        counters = [now - then for then, now in zip(counters, await asyncio.to_thread(told, vllm), strict=True)]
        asked = [*model.asked]
        twice = [(await model.reply(replace(asked[-3].request, max_tokens=900), within_s=60)) for _ in range(2)]
        return await prompts_sent(vllm.root_url, vllm.model, asked), earlier, counters, record, twice

    prompts, earlier, (_, _, queries, hits), record, (_, again) = with_model(vllm, work)
    found = share(prompts[earlier:], prompts[:earlier], BLOCK)
    assert (queries, hits) == (found.prompts, found.reached)
    print(
        f"prefix cache: {found.reached} of {found.prompts} tokens ({found.reached / found.prompts:.1%}); possible "
        f"{found.possible} ({found.reached / found.possible:.1%} of it reached), of what was answered already "
        f"{found.settled} ({found.reached / found.settled:.1%})"
    )
    assert 0.9 * found.possible <= found.reached <= found.possible
    for side in Side:
        sums, questions = ([e for e in record.all(kind) if e.side is side] for kind in (Summarised, QuestionAsked))
        for event in (*sums, *questions[1:]):
            assert event.call.tokens_cached >= 0.5 * event.call.tokens_in
    assert again.tokens_cached == (again.tokens_in - 1) // BLOCK * BLOCK


@pytest.mark.parametrize(("moment", "end"), [(QuestionAsked, "kill"), (QuestionAsked, "stop"), (SideRested, "kill")])
def test_a_trial_that_lost_its_vllm_goes_on_once_it_is_back(vllm, picture, moment, end):
    """It ends while the moment's second event is noted: other calls are with it."""

    async def work(model):
        lost = []

        async def watch(*events):
            notes.extend(events)
            if sum(isinstance(each, moment) for each in notes) == 2 and not lost:
                lost.append(time.monotonic())
                await asyncio.to_thread(getattr(vllm, end))

        notes = []
        # The same mark before and after, so that a question would be the same; no two replies are.
        court = court_of(model, temperature=1.0, fence_mark=MARK)
        with pytest.raises(TrialAborted) as caught:
            await court.hear(a_case(picture, "send them all home"), watch)
        print(f"{moment.__name__}, {end}: aborted {time.monotonic() - lost[0]:.2f} s after it began to end")
        begun, asked = len(model.begun), [*model.asked]
        aborted = TrialRecord.of(notes)
        await asyncio.to_thread(vllm.start)
        record = await court.resume(aborted, picture, watch)
        return caught.value, aborted, record, TrialRecord.of(notes), asked, model.begun[begun:]

    error, aborted, record, kept, asked, begun = with_model(vllm, work)
    assert isinstance(error.cause, Unavailable) and error.reason == "MODEL_GONE"
    assert error.record == aborted and aborted.state is TrialState.FAILED and aborted.verdict is None
    failed = aborted.last(TrialFailed)
    assert failed.retryable and failed.reason == "MODEL_GONE"

    assert record == kept and record.state is TrialState.DECIDED
    assert record.events[: len(aborted.events) + 1] == (*aborted.events, record.last(TrialResumed))
    for kind, number in ((Described, 1), (QuestionAsked, 4), (AnswerGiven, 4), (Summarised, 4), (SideRested, 2)):
        assert len(record.all(kind)) == number
    on_record = {words_of(event) for event in aborted.events} - {None}
    answered = [each.request for each in asked if said_in(each) in on_record]
    assert len(answered) >= len(on_record) >= 3
    assert [request.parts[-1] for request in begun if request in answered] == []
    since = calls_of(record)[len(calls_of(aborted)) :]
    repairs = sum(bool(call.fault) for call in since)
    assert len(begun) == len(since) + repairs + 1  # both orders of the odds are one on record


def words_of(event):
    """What a model said for an event."""
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


def said_in(asked):
    """The same of a reply; nothing of one that is no JSON, for the odds ask for none."""
    return None if asked.is_odds else tuple(str(value).strip() for value in json.loads(asked.reply.text).values())


@pytest.fixture(scope="module")
def special(vllm):
    """Ids of the model's control tokens."""
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
    """The control tokens of a prompt in their order; of a picture's run of them, its length."""
    names = {number: word for word, number in special.items()}
    bones = []
    for name, run in itertools.groupby(names.get(token) for token in tokens):
        length = len([*run])
        if name is not None:
            bones += [(name, length)] if name == "<|image_pad|>" else [(name, 1)] * length
    return bones


class Injected(Cast):
    """A cast whose every free word is what a stranger wrote."""

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
    """Every prompt of a trial with this text as the meme's, the precedents', and in the mouth of each witness."""
    cast = Injected(text)
    found = findings([H, N, H, H, N])
    exhibits = [each.model_copy(update={"text": text, "categories": (text,)}) for each in found.exhibits]
    found = found.model_copy(update={"exhibits": tuple(exhibits)})
    court = Court(
        finder=Finder(found),
        text_reader=FakeReader("unused"),
        software="test",
        settings=TrialSettings(rounds_min=2, rounds_max=2),
        chairs=cast.chairs,
        fence_mark=MARK,
    )
    record = asyncio.run(court.hear(a_case(picture, text), Notes()))
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
        # What is looked at is what the engine is given.
        for request in (harmless["proposer"][0], harmless["judge"][0]):
            messages = wire.messages(request, Capabilities(), {})
            body = {"model": vllm.model, "messages": messages, "max_tokens": 1, "return_token_ids": True}
            answer = client.post("/v1/chat/completions", json=body).json()
            assert answer["prompt_token_ids"] == tokens_of(client, vllm.model, request)
    assert teeth >= 5  # without fence and care, so many would have got through
    print(f"control tokens: {len(strings)} strings, {len(checked)} prompts; {teeth} strings would get through bare")
