"""The library of precedents over gRPC: searched, described, and changed one meme at a time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from court.errors import BadRequest, NotLoaded
from court.meme import Picture, check_text
from memecourt.v1 import court_pb2 as wire
from retrieval.library.changes import Change, NoSuchPrecedent
from retrieval.library.edit import Opened, add_precedent, changed
from retrieval.library.ports import Writer
from retrieval.library.sources import Provenance
from retrieval.open import open_writer_of
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder
from serving.access.callers import check_namespace, current
from serving.rpc.calls import Session, changing, unary
from serving.rpc.convert import MOST_WHY, few, found_to_be, language, number, precedent_of, required, signed, within
from serving.rpc.listings import where_of
from serving.runner.decoding import DecodingPool
from serving.runner.executor import TrialExecutor

if TYPE_CHECKING:
    from serving.rpc.flow_control import ReceiveBudget
    from serving.service_call import ServiceCall

SERVICE = wire.DESCRIPTOR.services_by_name["Precedents"].full_name

_FOUND, _MOST_FOUND = 10, 1000
_MOST_LEFT_OUT = 10_000
_MOST_ID, _MOST_SOURCE, _MOST_NAMESPACE = 200, 200, 128
_MOST_CATEGORIES, _LONGEST_CATEGORY = 32, 100
_BESIDE = "\0precedents/"
"""Before a caller's name as a namespace that pictures are decoded for; no trial's holds NUL."""
_CHANGES = 4
"""Changes on their way at once. One may wait ten seconds for another writer, with a thread of those that the docket is
read by; trials must not wait for it."""


@dataclass(frozen=True, slots=True)
class _Open:
    """State of the precedents service while it is open."""

    house: TrialExecutor
    decoders: DecodingPool

    @asynccontextmanager
    async def picture(self, image: bytes) -> AsyncIterator[Picture | None]:
        """The picture in a file, None where there is none. Callers take turns with each other, and with trials."""
        if not image:
            yield None
            return
        async with self.decoders.picture(image, f"{_BESIDE}{current().name}") as picture:
            yield picture


class PrecedentsService:
    """Serves ``memecourt.v1.Precedents``. Until :meth:`open` has been called it answers UNAVAILABLE.

    A caller that is kept to some namespaces finds precedents of theirs and those of none, which are everybody's; it
    changes precedents of its namespaces only, and those of others are, to it, not there.

    A change that was begun is made, also where its caller leaves before it is told so.
    """

    def __init__(self, memory: ReceiveBudget) -> None:
        """Answers nothing yet. ``memory``: where room is waited for before a request is read."""
        self._memory = memory
        self._session: Session[_Open] = Session()
        self._changing = asyncio.Semaphore(_CHANGES)
        self._writing = ExitStack()
        self._writer: Writer | None = None

    def open(self, house: TrialExecutor, decoders: DecodingPool) -> None:
        """From now on, calls are answered; ``decoders``: what decodes their pictures, as those of trials."""
        self._session.open(_Open(house, decoders))

    def close(self) -> None:
        """From now on, calls are turned away; those being answered go on."""
        self._session.close()

    async def empty(self, seconds: float) -> None:
        """Waits until no call is being answered, at most so many seconds, and lets go of the library."""
        await self._session.empty(seconds)
        # Before it is closed: a call that came in between must not be given a writer that is no more.
        self._writer = None
        self._writing.close()

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler for a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "SearchPrecedents": unary(wire.SearchPrecedentsRequest, self.search_precedents, self._memory),
                "AddPrecedent": unary(wire.AddPrecedentRequest, self.add_precedent, self._memory),
                "RemovePrecedent": unary(wire.RemovePrecedentRequest, self.remove_precedent, self._memory),
                "RelabelPrecedent": unary(wire.RelabelPrecedentRequest, self.relabel_precedent, self._memory),
                "GetLibrary": unary(wire.GetLibraryRequest, self.get_library, self._memory),
            },
        )

    async def search_precedents(
        self, request: wire.SearchPrecedentsRequest, _: ServiceCall
    ) -> wire.SearchPrecedentsResponse:
        """The precedents most like a text, a picture or both."""
        with self._session.call() as court:
            finder = _finder(court.house)
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
            searched = findings.library
            return wire.SearchPrecedentsResponse(
                precedents=[precedent_of(exhibit) for exhibit in findings.exhibits],
                library=wire.Library(name=searched.name, digest=searched.digest, size=searched.size),
                alpha=findings.search.alpha,
                notes=findings.notes,
            )

    async def get_library(self, _: wire.GetLibraryRequest, __: ServiceCall) -> wire.GetLibraryResponse:
        """Describes the library."""
        with self._session.call() as court:
            account = await _finder(court.house).account()
            of = account.identity
            return wire.GetLibraryResponse(
                library=wire.Library(name=of.name, digest=of.digest, size=of.size),
                encoder=of.encoder,
                harmful=account.counts.harmful,
                alpha=account.tuning.alpha,
                voters=account.tuning.vote.k,
            )

    async def add_precedent(self, request: wire.AddPrecedentRequest, _: ServiceCall) -> wire.AddPrecedentResponse:
        """Adds a labelled meme."""
        with self._session.call() as court:
            finder = _finder(court.house)
            check_namespace(within(request.namespace, _MOST_NAMESPACE, "namespace"), "namespace")
            _check_meme(request.text, request.image)
            id_ = required(request.id, _MOST_ID, "id") if request.id else str(uuid.uuid4())
            label = found_to_be(request.label)
            known: dict[str, Any] = {
                "categories": few(request.categories, _MOST_CATEGORIES, _LONGEST_CATEGORY, "categories"),
                "source": within(request.source, _MOST_SOURCE, "source"),
                "provenance": Provenance(namespace=request.namespace, language=language(request.language)),
                "verified": request.verified,
                "who": signed(request.who, "who"),
                "why": required(request.why, MOST_WHY, "why"),
            }
            # In this order: while a call waits for its place, its picture is not decoded and takes no memory.
            async with self._changing, court.picture(request.image) as picture:
                with changing():
                    change = await changed(
                        self._opened(finder),
                        lambda writer: add_precedent(
                            writer, finder.encoder, id_=id_, label=label, text=request.text, picture=picture, **known
                        )[0],
                    )
            return wire.AddPrecedentResponse(id=change.meme, change=change.number)

    async def remove_precedent(
        self, request: wire.RemovePrecedentRequest, _: ServiceCall
    ) -> wire.RemovePrecedentResponse:
        """Takes a meme out."""
        who, why = signed(request.who, "who"), required(request.why, MOST_WHY, "why")
        change = await self._changed(request.id, lambda writer: writer.remove(request.id, who=who, why=why))
        return wire.RemovePrecedentResponse(change=change.number)

    async def relabel_precedent(
        self, request: wire.RelabelPrecedentRequest, _: ServiceCall
    ) -> wire.RelabelPrecedentResponse:
        """Gives a meme another label."""
        label = found_to_be(request.label)
        who, why = signed(request.who, "who"), required(request.why, MOST_WHY, "why")
        change = await self._changed(request.id, lambda writer: writer.relabel(request.id, label, who=who, why=why))
        return wire.RelabelPrecedentResponse(change=change.number)

    async def _changed(self, id_: str, change: Callable[[Writer], Change]) -> Change:
        """Changes what is there and the caller's business.

        Raises:
            BadRequest: No id is given, or the change does not fit what is there.
            NoSuchPrecedent: The precedent does not exist, or belongs to another caller.
            NotAllowed: The precedent belongs to no namespace, and the caller is limited to some.
        """
        required(id_, _MOST_ID, "id")
        caller = current()

        def work(writer: Writer) -> Change:
            if caller.namespaces is not None:
                # Looked at before it is changed: within a library an id is never given to a second meme, so that this
                # can't have become another's in between.
                meme = writer.meme(id_)
                if meme is None or (meme.namespace and not caller.sees(meme.namespace)):
                    raise NoSuchPrecedent(f"There is no precedent with the id {id_}.", field="id")
                check_namespace(meme.namespace, "id")
            return change(writer)

        with self._session.call() as court, changing():
            async with self._changing:
                return await changed(self._opened(_finder(court.house)), work)

    def _opened(self, finder: LibraryFinder | PgvectorFinder) -> Opened:
        """One writer for all calls: those that come at once are written together, and nothing is read twice."""
        # Nothing is awaited here, so that two calls can't open two writers.
        writer = self._writer = self._writer or self._writing.enter_context(open_writer_of(finder))
        return lambda: nullcontext(writer)


def _finder(house: TrialExecutor) -> LibraryFinder | PgvectorFinder:
    finder = house.court.finder
    if not isinstance(finder, LibraryFinder | PgvectorFinder):
        raise NotLoaded("This court has no library that can be searched or changed.", reason="LIBRARY_NOT_LOADED")
    return finder


def _check_meme(text: str, image: bytes) -> None:
    if not text.strip() and not image:
        raise BadRequest("Give a text, an image or both.", reason="NOTHING_TO_COMPARE", field="text")
    check_text(text)
