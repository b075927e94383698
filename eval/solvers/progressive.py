"""Progressive retrieval: a side's question also fetches a precedent, which is added to the witness's answer.

The search is by the meme's text and the question. It stands outside the store of calls, so that arms without it share
the witness's own replies.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from court.ports import ChatModel, ChatReply, ChatRequest, PrecedentFinder, ReplicatedModel
from court.replies import Answer, UnusableReply, parse
from court.roles import RoleModel
from court.verdict import Label

_FENCED = re.compile(r"\[begin (\w+)\]\n(.*?)\n\[end \1\]", re.DOTALL)


def fetching(proposer: RoleModel, finder: PrecedentFinder, text: str) -> RoleModel:
    """Returns the Proposer's model for the trial of a meme with this text, whose answers come with precedents."""
    servers = cast(ReplicatedModel, FetchingModel(proposer.servers or proposer.model, finder, text))
    return replace(proposer, model=servers, servers=servers if proposer.servers else None)


@dataclass(frozen=True, slots=True)
class FetchingModel:
    """A :class:`~court.ports.ReplicatedModel` whose answers come with precedents; all else is the model's own."""

    inner: ChatModel
    finder: PrecedentFinder
    text: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def pinned(self, key: str) -> Self:
        """See :meth:`court.ports.ReplicatedModel.pinned`."""
        return replace(self, inner=cast(ReplicatedModel, self.inner).pinned(key))

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the model's reply; an answer with the precedent that its question fetches."""
        reply = await self.inner.reply(request, within_s=within_s)
        question = _FENCED.search("".join(part for part in request.parts if isinstance(part, str)))
        if request.call_id is None or request.call_id.task != "answer" or question is None:
            return reply
        try:
            answer = parse(Answer, reply.text).answer
        # The court asks again for it, as for any reply that can't be read.
        except UnusableReply:
            return reply
        found = await self.finder.find(
            text=f"{self.text}\n{question[2]}", frames=(), pixels_sha256="", exhibits=1, tally=1, alpha=None
        )
        for precedent in found.exhibits:
            label = "harmful" if precedent.label is Label.HARMFUL else "not harmful"
            # So many characters at most: an answer is short too.
            answer += f' On file: a meme with the words "{precedent.text[:300]}" was found {label}.'
        return replace(reply, text=json.dumps({"answer": answer}))
