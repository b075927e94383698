"""A rehearsal: one full trial of an invented meme with a stand-in for the models, to try a set of prompts.

The stand-in answers with the shortest reply that the schema of a request allows, so that every message of a trial is
put together and every reply read. How well a model does with the words, no rehearsal can say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest
from court.events import AnyEvent, Procedure
from court.meme import Frame, Meme, Picture, PictureFormat
from court.ports import ChatRequest
from court.precedents import Findings, LibraryIdentity, MinSimilarity, Precedent, Search, TallyEntry, VoteSettings
from court.prompts import PromptSet
from court.record import TrialAborted
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from court.verdict import Label
from serving.version import SOFTWARE

_TEXT = "nobody likes people from Blueland"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Result of a rehearsal."""

    calls: int
    longest: int


async def rehearse(prompts: PromptSet, settings: TrialSettings) -> Rehearsal:
    """Holds a trial with these prompts.

    Raises:
        BadRequest: The trial came to no verdict.
    """
    # Even odds, which favour no label.
    model = ScriptedModel(_answer, odds=lambda request, options: [0.5] * len(options), name="stand-in")
    role = RoleModel(model)
    court = Court(
        finder=_Finder(),
        text_reader=None,
        software=SOFTWARE,
        # The expert witness's words are no part of a set.
        settings=settings.model_copy(update={"expert": "off"}),
        prompts=prompts,
        role_models=RoleModels(role, role, role, role),
    )
    # The stand-in ignores pictures.
    frame = Frame(b"", 1, 1)
    picture = Picture(PictureFormat.PNG, "", "", width=1, height=1, frame_count=1, frames=(frame,))
    try:
        await court.run(TrialCase("rehearsal", Meme(picture, text=_TEXT), Procedure.FULL), _nowhere)
    except TrialAborted as aborted:
        raise BadRequest(
            f"A trial of an invented meme with these prompts came to no verdict: {aborted.message}",
            reason="PROMPTS_UNUSABLE",
        ) from None
    requests = [call.request for call in model.asked]
    return Rehearsal(len(requests), max(map(_length, requests)))


def shortest(schema: Mapping[str, Any]) -> Any:
    """Returns the shortest value that a schema of :mod:`court.replies` allows; of some words, the first."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: shortest(part) for name, part in schema["properties"].items()}
        case "array":
            return []
        case "string":
            return "x" * max(1, schema.get("minLength", 1))
    raise AssertionError(f"no reply has a {schema['type']}")


def _answer(request: ChatRequest) -> Any:
    assert request.reply_schema is not None, "replies have schemas"
    return shortest(request.reply_schema)


def _length(request: ChatRequest) -> int:
    return len(request.system) + sum(len(part) for part in request.parts if isinstance(part, str))


async def _nowhere(*events: AnyEvent) -> None:
    """A sink that keeps nothing."""


class _Finder:
    """Finds two invented precedents, one of either label, with all that a Judge can be shown of one."""

    library = LibraryIdentity(name="rehearsal", digest="", size=2, encoder="", with_picture=2)

    async def find(self, **query: object) -> Findings:
        found = [
            Precedent(
                id=f"invented-{label.lower()}",
                label=label,
                text="an invented precedent",
                similarity=0.9,
                text_similarity=0.9,
                picture_similarity=0.9,
                categories=("nationality",),
            )
            for label in (Label.HARMFUL, Label.NOT_HARMFUL)
        ]
        return Findings(
            library=self.library,
            search=Search(alpha_asked=0.5, alpha=0.5, has_text=True, has_picture=True, exhibits=2, tally=2),
            floors=MinSimilarity(text=0.0, picture=0.0),
            exhibits=tuple(found),
            nearest_harmful=found[0],
            nearest_benign=found[1],
            tally=tuple(TallyEntry(id=one.id, label=one.label, similarity=one.similarity) for one in found),
            vote_settings=VoteSettings(k=2, tau=1.0, prior=0.5),
        )

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        return [Frame(b"", 1, 1) for _ in ids]
