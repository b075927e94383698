"""Helpers of tests of injections."""

import asyncio
import json
import re
import sys
import unicodedata

from court.events import Side
from court.meme import Frame
from court.messages import AdvocateBrief, Exchange, Exhibit, JudgeBrief
from court.policy import DEFAULT_POLICY
from court.ports import ChatReply, ChatRequest, FinishReason, Odds
from court.precedents import vote
from court.prompts import Fence
from court.prompts.sets import packaged, packaged_versions
from court.roles import Advocate, Judge, Proposer
from tests.support.cast import RULING, in_form, speaker
from tests.support.fakes import H, N, findings
from tests.support.injections import SPECIALS
from tests.support.sizes import FULL

MARK = "7c1e0a9b3d5f2468"
FENCED = re.compile(rf"\[begin {MARK}\]\n(.*?)\n\[end {MARK}\]", re.DOTALL)
FRAME = Frame(png=b"the meme", width=4, height=4)


def systems_of(prompts):
    """Returns the system message of each role in a set of prompts."""
    advocate, policy = prompts.advocate, DEFAULT_POLICY.text
    return {
        "proposer": prompts.proposer.system(),
        "judge": prompts.judge.system(policy=policy),
        **{side: advocate.system(policy=policy, stance=advocate.stance(side)) for side in ("accuser", "defender")},
    }


SYSTEMS = {version: systems_of(packaged(version)) for version in packaged_versions()}
"""System messages of each packaged set."""


class RecordingModel:
    """A fake model that records its requests and returns queued replies."""

    name = "recorder"

    def __init__(self):
        self.requests: list[ChatRequest] = []
        self.replies = []

    async def reply(self, request, *, within_s):
        self.requests.append(request)
        return in_form(request, self.replies.pop(0))

    async def odds(self, request, options, *, within_s):
        self.requests.append(request)
        return Odds((0.5, 0.5), reply_of(""))


def reply_of(text, finish=FinishReason.STOP):
    return ChatReply(text, finish, "recorder", 1, 1, 0, 0.0)


REPLIES = {
    "answer": reply_of('{"answer": "A flag."}'),
    "describe": reply_of('{"description": "A flag."}'),
    "ask": reply_of('{"question": "What is there?"}'),
    "summarise": reply_of('{"summary": "s", "justification": "j"}'),
    "judge": reply_of(json.dumps(RULING)),
}


def exhibits(text="a text", categories=("race",)):
    found = findings([H, N, H]).exhibits
    first = found[0].model_copy(update={"text": text, "categories": tuple(categories)})
    frame = Frame(png=b"a precedent", width=4, height=4)
    return (
        Exhibit(first, frame),
        Exhibit(found[1].model_copy(update={"categories": ("x",)}), frame),
        Exhibit(found[2], None),
    )


async def prompts_with(text, model, fence, prompts, places=slice(None)):
    """Yields the prompts that can contain ``text``, or those of some places: role, place, request."""
    speaks = speaker(model, fence=fence, prompts=prompts)

    async def call(role, what, coroutine, *replies):
        model.replies, model.requests = list(replies), []
        await coroutine
        for number, request in enumerate(model.requests):
            yield role, (what, number), request

    cut = reply_of(text, FinishReason.LENGTH)  # an unusable reply is quoted in the repair request
    proposer = Proposer(speaks, (FRAME,))
    calls = [
        ("proposer", "question", proposer.answer(text), REPLIES["answer"]),
        ("proposer", "repair", proposer.describe(), cut, REPLIES["describe"]),
    ]
    plain, turn = "plain words", Exchange("What is it?", "It is a flag.")
    for side in Side:
        role = str(side).lower()

        def advocate(words=plain, description=plain, side=side):
            shown = {"text": words, "description": description}
            return Advocate(speaks, side, AdvocateBrief(policy=DEFAULT_POLICY, fence=fence, prompts=prompts, **shown))

        for place, who, history in (
            ("text", advocate(words=text), [turn]),
            ("description", advocate(description=text), [turn]),
            ("question", advocate(), [turn, Exchange(text, "Yes."), turn]),
            ("answer", advocate(), [turn, Exchange("What is it?", text), turn]),
        ):
            calls.append((role, ("ask", place), who.ask(history), REPLIES["ask"]))
            calls.append((role, ("summarise", place), who.summarise(history), REPLIES["summarise"]))
        calls.append((role, "repair ask", advocate().ask([turn]), cut, REPLIES["ask"]))
        calls.append((role, "repair summarise", advocate().summarise([turn]), cut, REPLIES["summarise"]))

    found = findings([H, N, H])
    precedent_vote = vote(found.tally, found.vote_settings)

    def brief(**places):
        words = {"text": plain, "description": plain, "accuser": plain, "defender": plain, "exhibits": exhibits()}
        values = {**words, **places}
        constants = {"policy": DEFAULT_POLICY, "fence": fence, "vote": precedent_vote, "prompts": prompts}
        return JudgeBrief(pictures=(FRAME,), **constants, **values)

    judge = Judge(speaks)
    for place, shown_to_judge in (
        *((place, brief(**{place: text})) for place in ("text", "description", "accuser", "defender")),
        ("precedent", brief(exhibits=exhibits(text=text))),
        ("categories", brief(exhibits=exhibits(categories=("race", text)))),
    ):
        calls.append(("judge", ("rule", place), judge.rule(shown_to_judge), REPLIES["judge"]))
        calls.append(("judge", ("odds", place), judge.odds(shown_to_judge)))
    calls.append(("judge", "repair", judge.rule(brief()), cut, REPLIES["judge"]))
    chosen = calls[places]
    for skipped in calls:
        if skipped not in chosen:
            skipped[2].close()
    for role, what, coroutine, *says in chosen:
        async for each in call(role, what, coroutine, *says):
            yield each


def split_fenced(request):
    """Returns the court's own parts of a request with a hole for each fence, and the contents of the fences."""
    ours, theirs = [], []
    for part in request.parts:
        if isinstance(part, str):
            theirs += FENCED.findall(part)
            ours.append(FENCED.sub("[…]", part))
        else:
            ours.append(part)
    return ours, theirs


LOOPING = "harmless words, " * 25
"""A reply that is requested again because it repeats itself."""


INVISIBLE = dict.fromkeys(code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cf", "Mn"))
"""Deletes format characters and combining marks in :meth:`str.translate`."""


def specials_in(text):
    """Returns control tokens in a text, in every Unicode normalisation, with and without invisible characters."""
    visible = text.translate(INVISIBLE)
    forms = {unicodedata.normalize(form, each) for form in ("NFC", "NFKC", "NFD", "NFKD") for each in (text, visible)}
    return [token for token in SPECIALS if any(token in form for form in forms)]


def folded(text):
    return unicodedata.normalize("NFKC", text).casefold()


def sweep_texts(texts, *, share, version="1"):
    """Renders each text in each place. Returns the number of prompts, and by promise the places that broke it.

    Args:
        texts: Pairs of a kind of text and the text.
        share: Each text is rendered in one of this many places, neighbouring texts in other ones; in all at full size.
        version: Packaged set of prompts.
    """
    share = 1 if FULL else share
    wrong = {"system": [], "pictures": [], "tokens": [], "fence": []}
    checked, clean, prompts = 0, set(), packaged(version)

    async def run():
        nonlocal checked
        fence, model = Fence(MARK), RecordingModel()
        pattern = {}
        # A repair request has two forms: a reply that repeats itself is called so.
        for harmless in ("harmless words", LOOPING):
            async for role, what, request in prompts_with(harmless, model, fence, prompts):
                ours, theirs = split_fenced(request)
                pictures = [part for part in ours if not isinstance(part, str)]
                usual, *_ = pattern.setdefault((role, what), ([], pictures, len(theirs)))
                usual.append(ours)
        for number, (kind, text) in enumerate(texts):
            places = slice(number % share, None, share)
            async for role, what, request in prompts_with(text, model, fence, prompts, places):
                where = (kind, text[:40], role, what)
                ours, theirs = split_fenced(request)
                usual, pictures, fences = pattern[role, what]
                checked += 1
                if request.system != SYSTEMS[version][role]:
                    wrong["system"].append(where)
                if [part for part in ours if not isinstance(part, str)] != pictures:
                    wrong["pictures"].append(where)
                if ours not in usual or len(theirs) != fences:
                    wrong["fence"].append(where)
                for body in theirs:
                    if body not in clean:
                        if specials_in(body):
                            wrong["tokens"].append((*where, specials_in(body)))
                        if MARK in folded(body):
                            wrong["fence"].append(where)
                        clean.add(body)

    asyncio.run(run())
    return checked, wrong
