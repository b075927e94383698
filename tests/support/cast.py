"""Scripted models for full trials, one per role, so that the prompts of each role can be inspected."""

import asyncio
import dataclasses
import itertools
import json
import re

from court.backends.chat.scripted import ScriptedModel
from court.deadline import Deadline
from court.events import Procedure
from court.meme import Frame
from court.ports import ChatReply, ChatRequest
from court.prompts import Fence
from court.prompts.sets import packaged
from court.roles import RoleModel, RoleModels, Speaker
from court.trial import Court, TrialCase
from tests.support.fakes import FakeFinder, FakeReader, H, RecordingSink, a_meme, findings, ticking_clock

MARK = "mark"

RULING = {
    "harmful_evidence": ["the words shut a group out"],
    "harmless_evidence": [],
    "precedents": {"1": "harmful", "2": "harmful", "3": "harmful"},
    "harmful_strength": "strong",
    "harmless_strength": "weak",
    "label": "harmful",
    "category": "nationality",
    "clause": "4",
    "target": "community",
    "rationale": "The words call for driving people out.",
}
ACQUITTAL = {
    **RULING,
    "harmful_strength": "weak",
    "harmless_strength": "strong",
    "label": "not harmful",
    "category": "none",
    "clause": "none",
    "target": "none",
}


def task_of(request: ChatRequest) -> str:
    """Returns the task of a request, recognised by its last part that is no repair."""
    last = next(
        part
        for part in reversed(request.parts)
        if isinstance(part, str) and not part.startswith(("Your last reply could not be used", "[begin"))
    )
    for task, words in (
        ("describe", "Describe the picture"),
        ("answer", "Answer it from what can be seen"),
        ("ask", "Ask the witness one question"),
        ("summarise", "Sum up for your side"),
        ("question", 'Reply as {"rationale": "...", "'),
        ("judge", "Judge the meme."),
        ("odds", "Answer with the letter alone"),
    ):
        if words in last:
            return task
    raise AssertionError(f"no task: {last[:200]}")


def is_repair(request: ChatRequest) -> bool:
    return str(request.parts[-1]).startswith("Your last reply could not be used")


def speaker(model, *, fence=None, prompts=None) -> Speaker:
    """Returns the speaker of one role in a trial without a deadline."""
    return Speaker(
        model=model if isinstance(model, RoleModel) else RoleModel(model),
        fence=fence or Fence(MARK),
        deadline=Deadline(None, 60),
        reply_chars=1200,
        prompts=prompts or packaged(),
    )


class Cast:
    """Four models that play a trial; replies can be overridden by task or by role and task."""

    def __init__(
        self, *, rounds: int = 3, delay_s: float = 0.0, judge_delay_s: float | None = None, odds=(0.8, 0.1), **lines
    ) -> None:
        """Plays that many rounds a side: summaries change until then and stay the same afterwards.

        ``odds`` are the masses of both labels, or a function that returns them for a request.
        """
        self.rounds = rounds
        self.lines = lines
        self.count = {"accuser": itertools.count(1), "defender": itertools.count(1)}
        masses = (
            None
            if odds is None
            else (lambda request, options: _in_order(request, odds(request) if callable(odds) else odds))
        )
        self.models = {
            role: ScriptedModel(
                self._speaker(role),
                name=f"{role}-model",
                delay_s=delay_s if role != "judge" or judge_delay_s is None else judge_delay_s,
                odds=masses,
            )
            for role in ("proposer", "accuser", "defender", "judge")
        }

    def _speaker(self, role):
        def speak(request):
            task = task_of(request)
            line = self.lines.get(f"{role}_{task}", self.lines.get(task))
            if callable(line):
                line = line(request)
            return in_form(request, self._usual(role, task, request) if line is None else line)

        return speak

    def _usual(self, role, task, request):
        questions_before = sum("Question " in part for part in request.parts if isinstance(part, str))
        match task:
            case "describe":
                return {"description": "A crowd stands under a green flag."}
            case "answer":
                return {"answer": "It shows a flag, as was asked."}
            case "ask":
                return {"question": f"What else does the {role} want to know, number {questions_before + 1}?"}
            case "summarise":
                # Gains three letters a round until it has converged.
                letters = "abcdefghijklmnopqrstuvwxyz"[: min(questions_before, self.rounds - 1) * 3]
                return {"summary": f"{role} says {letters}", "justification": f"the {role}'s reasons {letters}"}
            case "judge":
                return RULING

    @property
    def role_models(self) -> RoleModels:
        return RoleModels(**{role: RoleModel(model) for role, model in self.models.items()})

    def requests(self, *roles: str) -> list[ChatRequest]:
        return [call.request for role in roles or self.models for call in self.models[role].asked]

    def calls(self) -> int:
        return sum(len(model.asked) for model in self.models.values())


def in_form(request: ChatRequest, reply):
    """Returns a reply with a summary and a justification in the form that a request asks for; others as they are."""
    if isinstance(reply, ChatReply):
        return dataclasses.replace(reply, text=in_form(request, reply.text))
    wanted = (request.reply_schema or {}).get("properties", {})
    if "quotes" not in wanted:
        return reply
    if isinstance(reply, str):
        try:
            content = json.loads(reply)
        except (ValueError, RecursionError):
            return reply
        formed = in_form(request, content)
        return reply if formed is content else json.dumps(formed)
    if not isinstance(reply, dict) or "justification" not in reply:
        return reply
    summary, justification = reply["summary"], reply["justification"]
    claim = {"claim": reply["claim"]} if "claim" in reply else {}
    return {
        "quotes": [justification[:160]],
        "conclusion": wanted["conclusion"]["enum"][0],
        "because": f"{summary} {justification}"[-960:],
        **claim,
    }


def _in_order(request, odds):
    last = str(request.parts[-1])
    return odds if re.search(r"A\) harmful", last) else odds[::-1]


def prompt_text(request: ChatRequest) -> str:
    """Returns all text of a request."""
    return "\n".join([request.system, *(part for part in request.parts if isinstance(part, str))])


def frames_of(request: ChatRequest) -> list[Frame]:
    return [part for part in request.parts if isinstance(part, Frame)]


class PictureFinder(FakeFinder):
    """A finder with a fixed result, and a picture for each precedent."""

    async def pictures(self, ids):
        return [Frame(png=f"picture of {each}".encode(), width=4, height=4) for each in ids]


def full_court(cast: Cast, *, found=None, reader=None, settings=None, role_models=None, **changes) -> Court:
    clock = ticking_clock()
    return Court(
        finder=PictureFinder(found or findings([H, H, H, H, H])),
        text_reader=reader or FakeReader("read off the picture"),
        software="test",
        role_models=role_models or cast.role_models,
        fence_mark=MARK,
        now=lambda: next(clock),
        **({"settings": settings} if settings else {}),
        **changes,
    )


def try_meme(cast: Cast, *, meme=None, procedure=Procedure.FULL, watch=None, within_s=None, run=asyncio.run, **options):
    """Runs a whole trial and returns its record; durations are exact with the ``run`` of ``virtual_time``."""
    court = full_court(cast, **options)
    case = TrialCase("t", meme or a_meme("the meme's own words"), procedure, within_s=within_s)
    return run(court.run(case, watch or RecordingSink()))


def as_json(value) -> str:
    return json.dumps(value)


def ahead_of_time():
    """A cast whose Accuser finishes its first summary only after those of rounds 2 and 3 are written and stored."""
    cast = Cast(rounds=3)
    original_reply = cast.models["accuser"].reply
    written = asyncio.Event()

    async def reply(request, *, within_s):
        number = questions_in(request) if task_of(request) == "summarise" else 0
        if number == 1:
            await written.wait()
            for _ in range(50):
                await asyncio.sleep(0)
        summary_reply = await original_reply(request, within_s=within_s)
        if number == 3:
            written.set()
        return summary_reply

    object.__setattr__(cast.models["accuser"], "reply", reply)
    return cast


def questions_in(request):
    return sum("Question " in part for part in request.parts)
