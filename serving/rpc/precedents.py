"""The Precedents service: searches, describes and changes the precedent library over gRPC."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from court.errors import BadRequest, NotLoaded
from court.meme import Picture, check_text, checked_language
from memecourt.v1 import court_pb2 as wire
from retrieval.library.changes import Change, NoSuchPrecedent
from retrieval.library.edit import Opened, add_precedent, changed
from retrieval.library.ports import Writer
from retrieval.library.sources import Provenance
from retrieval.open import open_writer_of
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder
from serving.access.callers import NotAllowed, Scope, check_namespace, current
from serving.judging.decode import DecodingPool
from serving.judging.executor import TrialExecutor
from serving.rpc.calls import Budget, Service, changing
from serving.rpc.convert import MOST_WHY, few, fields_of, found_to_be, number, precedent_of, required, signed, within
from serving.rpc.listings import where_of

if TYPE_CHECKING:
    from serving.rpc.flow_control import ReceiveBudget

_SERVICE = wire.DESCRIPTOR.services_by_name["Precedents"]

_FOUND, _MOST_FOUND = 10, 1000
_MOST_LEFT_OUT = 10_000
_MOST_ID, _MOST_SOURCE, _MOST_NAMESPACE = 200, 200, 128
_MOST_CATEGORIES, _LONGEST_CATEGORY = 32, 100
_NAMESPACE_PREFIX = "\0precedents/"
"""Prefix of a caller's name in the namespace used for decoding its pictures; trials' namespaces never contain NUL."""
_MAX_CHANGES = 4
"""Maximum number of concurrent changes. Each may wait ten seconds for another writer, and occupies one of the threads
that also read the docket for trials."""


@dataclass(frozen=True, slots=True)
class _Open:
    """State of the precedents service while it is open."""

    executor: TrialExecutor
    decoders: DecodingPool

    @asynccontextmanager
    async def picture(self, image: bytes) -> AsyncIterator[Picture | None]:
        """Decodes a picture file; None if there is none. Callers take turns with each other, and with trials."""
        if not image:
            yield None
            return
        async with self.decoders.picture(image, f"{_NAMESPACE_PREFIX}{current().name}") as picture:
            yield picture


class PrecedentsService(Service[_Open]):
    """Serves ``memecourt.v1.Precedents``. Until :meth:`open` has been called it answers UNAVAILABLE.

    A caller that is limited to some namespaces finds their precedents, and those without a namespace, which are shared.
    It can change only precedents of its namespaces; those of others look as if they did not exist.

    A change that has started is completed even if its caller disconnects.
    """

    def __init__(self, memory: ReceiveBudget) -> None:
        super().__init__(_SERVICE, memory)
        self._changing = asyncio.Semaphore(_MAX_CHANGES)
        self._writing = ExitStack()
        self._writer: Writer | None = None

    def open(self, executor: TrialExecutor, decoders: DecodingPool) -> None:
        """Answers calls from now on; ``decoders`` decodes their pictures, as for trials."""
        self._begin(_Open(executor, decoders))

    async def empty(self, seconds: float) -> None:
        """Waits until no call is running, at most the given number of seconds, and closes the library's writer."""
        await super().empty(seconds)
        # Cleared before it is closed: a call in between must not get a closed writer.
        self._writer = None
        self._writing.close()

    async def search_precedents(
        self, request: wire.SearchPrecedentsRequest, _: Budget
    ) -> wire.SearchPrecedentsResponse:
        """Returns the precedents most similar to a text, a picture or both."""
        with self._call() as court:
            finder = _finder(court.executor)
            _check_meme(request.text, request.image)
            k = number(request.k, _FOUND, _MOST_FOUND, "k")
            alpha = request.alpha if request.HasField("alpha") else None
            if alpha is not None and not 0 <= alpha <= 1:
                raise BadRequest("alpha lies in [0, 1].", reason="OUT_OF_RANGE", field="alpha")
            where = where_of(request.filter)
            exclude = few(request.exclude, _MOST_LEFT_OUT, _MOST_ID, "exclude")
            async with court.picture(request.image) as picture:
                findings = await finder.find(
                    text=request.text,
                    frames=picture.frames if picture else (),
                    pixels_sha256=picture.pixels_sha256 if picture else "",
                    exhibits=k,
                    tally=k,
                    alpha=alpha,
                    exclude=exclude,
                    where=where,
                    leave_out_duplicates=request.leave_out_duplicates,
                )
            return wire.SearchPrecedentsResponse(
                precedents=[precedent_of(exhibit) for exhibit in findings.exhibits],
                library=wire.Library(**fields_of(wire.Library, findings.library)),
                alpha=findings.search.alpha,
                notes=findings.notes,
            )

    async def get_library(self, _: wire.GetLibraryRequest, __: Budget) -> wire.GetLibraryResponse:
        """Describes the library."""
        with self._call() as court:
            account = await _finder(court.executor).account()
            of = account.identity
            return wire.GetLibraryResponse(
                library=wire.Library(**fields_of(wire.Library, of)),
                encoder=of.encoder,
                harmful=account.counts.harmful,
                alpha=account.tuning.alpha,
                voters=account.tuning.vote.k,
            )

    async def add_precedent(self, request: wire.AddPrecedentRequest, _: Budget) -> wire.AddPrecedentResponse:
        """Adds a labelled meme."""
        with self._call() as court:
            finder = _finder(court.executor)
            check_namespace(within(request.namespace, _MOST_NAMESPACE, "namespace"), "namespace")
            _check_meme(request.text, request.image)
            id_ = required(request.id, _MOST_ID, "id") if request.id else str(uuid.uuid4())
            label = found_to_be(request.label)
            if request.binding and Scope.REVIEW not in current().scopes:
                raise NotAllowed(
                    "A label that binds the court is a decision: the token needs the scope review as well.",
                    reason="SCOPE_MISSING",
                )
            known: dict[str, Any] = {
                "categories": few(request.categories, _MOST_CATEGORIES, _LONGEST_CATEGORY, "categories"),
                "source": within(request.source, _MOST_SOURCE, "source"),
                "provenance": Provenance(namespace=request.namespace, language=checked_language(request.language)),
                "verified": request.verified or request.binding,
                "binding": request.binding,
                "who": signed(request.who, "who"),
                "why": required(request.why, MOST_WHY, "why"),
            }
            # In this order: while a call waits for a change slot, its picture is not decoded and takes no memory.
            async with self._changing, court.picture(request.image) as picture:
                with changing():
                    change = await changed(
                        self._opened(finder),
                        lambda writer: add_precedent(
                            writer, finder.encoder, id_=id_, label=label, text=request.text, picture=picture, **known
                        )[0],
                    )
            return wire.AddPrecedentResponse(id=change.meme, change=change.number)

    async def remove_precedent(self, request: wire.RemovePrecedentRequest, _: Budget) -> wire.RemovePrecedentResponse:
        """Removes a precedent."""
        who, why = signed(request.who, "who"), required(request.why, MOST_WHY, "why")
        change = await self._changed(request.id, lambda writer: writer.remove(request.id, who=who, why=why))
        return wire.RemovePrecedentResponse(change=change.number)

    async def relabel_precedent(
        self, request: wire.RelabelPrecedentRequest, _: Budget
    ) -> wire.RelabelPrecedentResponse:
        """Changes the label of a precedent."""
        label = found_to_be(request.label)
        who, why = signed(request.who, "who"), required(request.why, MOST_WHY, "why")
        # Only who may decide about content may bind the court.
        binding = Scope.REVIEW in current().scopes
        change = await self._changed(
            request.id, lambda writer: writer.relabel(request.id, label, who=who, why=why, binding=binding)
        )
        return wire.RelabelPrecedentResponse(change=change.number)

    async def _changed(self, id_: str, change: Callable[[Writer], Change]) -> Change:
        """Changes a precedent that exists and that the caller may change.

        Raises:
            NotAllowed: The precedent belongs to no namespace, and the caller is limited to some.
        """
        required(id_, _MOST_ID, "id")
        caller = current()

        def work(writer: Writer) -> Change:
            if caller.namespaces is not None:
                # Checked before the change: within a library an id is never given to a second meme, so it can't have
                # become another caller's in between.
                meme = writer.meme(id_)
                if meme is None or (meme.namespace and not caller.sees(meme.namespace)):
                    raise NoSuchPrecedent(f"There is no precedent with the id {id_}.", field="id")
                check_namespace(meme.namespace, "id")
            return change(writer)

        with self._call() as court, changing():
            async with self._changing:
                return await changed(self._opened(_finder(court.executor)), work)

    def _opened(self, finder: LibraryFinder | PgvectorFinder) -> Opened:
        """Returns the writer that all calls share, so that concurrent changes are written together."""
        # Nothing is awaited here, so that two calls can't both open a writer.
        writer = self._writer = self._writer or self._writing.enter_context(open_writer_of(finder))
        return lambda: nullcontext(writer)


def _finder(executor: TrialExecutor) -> LibraryFinder | PgvectorFinder:
    finder = executor.court.finder
    if not isinstance(finder, LibraryFinder | PgvectorFinder):
        raise NotLoaded("This court has no library that can be searched or changed.", reason="LIBRARY_NOT_LOADED")
    return finder


def _check_meme(text: str, image: bytes) -> None:
    if not text.strip() and not image:
        raise BadRequest("Give a text, an image or both.", reason="NOTHING_TO_COMPARE", field="text")
    check_text(text)
