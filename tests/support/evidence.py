"""A fake source of evidence and a scripted model of the expert witness."""

import asyncio
import dataclasses
import hashlib
from copy import copy

from court.backends.chat.scripted import ScriptedModel
from court.ports import EvidenceDocument, EvidenceHit
from court.roles import RoleModel
from court.settings import TrialSettings
from eval.replay.replay import replay
from serving.views.messages import messages_of
from serving.views.recheck import differences
from tests.support.cast import Cast, try_meme

TEXT = "Blue tea cures colds, ask anybody in Blueland"
CLAIM = "Blue tea cures colds."
REFUTING = "A trial with 900 people found that blue tea does not shorten a cold."
SUPPORTING = "In a small trial with 12 people, blue tea did cure colds within a day."
FINDINGS = {"statements": [{"words": "Blue tea cures colds", "claim": CLAIM, "kind": "fact"}]}
NONE_FOUND = {"statements": []}
WEIGHED = {
    "comprehensible": True,
    "new": True,
    "useful": True,
    "quotes": ["blue tea does not shorten a cold"],
    "label": "refuted",
    "enough": True,
    "next": [],
}
USELESS = {**WEIGHED, "useful": False, "quotes": [], "label": "not enough", "enough": False}
UNCLEAR = {**USELESS, "comprehensible": False, "new": False}
REFUTED = {"quotes": [{"document": 1, "quote": "blue tea does not shorten a cold"}], "label": "refuted"}


def document(name: str, text: str = REFUTING, *, source: str = "health.example", date: str = "2024-05-01"):
    """Returns a document with this id."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return EvidenceDocument(id=name, title=f"Page {name}", source=source, date=date, text=text, sha256=digest)


class FakeEvidence:
    """A source with fixed documents that can be made to fail or to be slow."""

    identity = "test evidence"
    sends_elsewhere = False

    def __init__(self, found=None, *, search_error=None, read_error=None, delay_s: float = 0.0) -> None:
        """Finds these documents for every query, or those of the query if ``found`` is a mapping."""
        self.found = [document("one")] if found is None else found
        self.search_error = search_error
        self.read_error = read_error
        self.delay_s = delay_s
        self.queries: list[str] = []
        self.reads: list[str] = []

    async def search(self, query, *, most, within_s):
        self.queries.append(query)
        await asyncio.sleep(self.delay_s)
        if self.search_error is not None:
            raise copy(self.search_error)
        found = self.found.get(query, []) if isinstance(self.found, dict) else self.found
        return [
            EvidenceHit(id=each.id, title=each.title, source=each.source, snippet=each.text[:80], date=each.date)
            for each in found
        ][:most]

    async def read(self, document_id, *, within_s):
        self.reads.append(document_id)
        if self.read_error is not None:
            raise copy(self.read_error)
        everything = [each for some in self.found.values() for each in some] if isinstance(self.found, dict) else None
        return next(each for each in everything or self.found if each.id == document_id)


def expert_task(request) -> str:
    """Returns the witness's task of a request."""
    words = "\n".join(part for part in request.parts if isinstance(part, str))
    for task, sign in (
        ("claims", "List its statements"),
        ("queries", "What would you type into a search engine"),
        ("rank", "Put them in the order in which you would read them"),
        ("weigh", "Weigh the new document."),
        ("comprehensible", "Can the new document be understood"),
        ("helpful", "Does the new document say something"),
        ("sufficient", "does it settle the"),
        ("more_queries", "would find what is missing"),
        ("classify", "the passages on which"),
    ):
        if sign in words:
            return task
    raise AssertionError(f"no task of the witness: {words[-300:]}")


USUAL = {
    "claims": FINDINGS,
    "queries": {"queries": ["blue tea colds"]},
    "weigh": WEIGHED,
    "comprehensible": {"comprehensible": True},
    "helpful": {"new": True, "useful": True, "quotes": WEIGHED["quotes"]},
    "sufficient": {"label": "refuted", "enough": True},
    "more_queries": {"queries": []},
    "classify": REFUTED,
}


class Expert:
    """A scripted model of the witness, whose reply to each task can be set."""

    def __init__(self, *, delay_s: float = 0.0, **lines) -> None:
        self.lines = {**USUAL, **lines}
        self.model = ScriptedModel(self._speak, name="expert-model", delay_s=delay_s)

    def _speak(self, request):
        task = expert_task(request)
        line = self.lines.get(task)
        if isinstance(line, list):  # one after the other; the last one is repeated
            line = line.pop(0) if len(line) > 1 else line[0]
        if callable(line):
            line = line(request)
        if task == "rank" and line is None:
            return {"order": []}
        return line

    @property
    def requests(self):
        return [call.request for call in self.model.asked]

    @property
    def tasks(self):
        return [expert_task(request) for request in self.requests]


def expert_settings(**settings) -> TrialSettings:
    """Returns settings with the witness in every trial, which waits for it."""
    return TrialSettings(**{"expert": "always", "expert_waits": True, **settings})


def with_expert(cast: Cast, expert: Expert):
    """Returns the models of a cast with that of the witness."""
    return dataclasses.replace(cast.role_models, expert=RoleModel(expert.model))


def try_with_expert(expert=None, source=None, *, cast=None, settings=None, **options):
    """Runs a trial with the witness; returns its record, the witness, the source and the cast."""
    expert, source, cast = expert or Expert(), source or FakeEvidence(), cast or Cast()
    from tests.support.fakes import a_meme

    options.setdefault("meme", a_meme(TEXT))
    record = try_meme(
        cast,
        role_models=with_expert(cast, expert),
        evidence_source=source,
        settings=settings or expert_settings(),
        **options,
    )
    return record, expert, source, cast


def reasons(record):
    return {review.reason for review in record.verdict.review}


def assert_reproducible(record):
    """Checks that messages can be rebuilt from the record, and that it replays to the same outcome."""
    for event in record.events:
        for message in messages_of(record, event):
            assert message.exact, (event.kind, message.why)
    again = asyncio.run(replay(record))
    assert (again.differences, again.obstacle) == ((), "")
    assert differences(record) == ()
