"""All three services as they are served, over a real socket: docket and library are real, pictures are not decoded.

With ``http`` in the settings they are served over HTTP too.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from court.errors import BadPicture
from court.meme import Picture
from court.ports import PictureReader
from memecourt.v1.court_pb2_grpc import CourtStub, DocketStub, PrecedentsStub
from retrieval.library.library import Library
from retrieval.precedents.finder import LibraryFinder
from serving.access.tokens import Tokens
from serving.docket.open import Docket
from serving.export.notice_links import notice_links
from serving.judging.executor import TrialExecutor
from serving.judging.judge import TrialRunner
from serving.rest.app import open_api
from serving.rpc.docket import DocketService
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.judge import CourtService
from serving.rpc.precedents import PrecedentsService
from serving.rpc.server import Methods, make_server
from serving.settings import Settings
from serving.wiring import corrections_for
from tests.support.encoders import picture_of, png_of
from tests.support.fakes import FakeReader
from tests.support.libraries import ENCODER, drawn_library
from tests.support.trial import a_court

IMAGE = png_of((250, 5, 5), (5, 250, 5))


class OnePicture:
    """Knows one picture and refuses everything else: how files are decoded is tested elsewhere."""

    async def read(self, data: bytes) -> Picture:
        """See the port."""
        if data != IMAGE:
            raise BadPicture("That is no picture.", reason="NOT_A_PICTURE", field="image")
        return picture_of(data)


@dataclass(frozen=True)
class RealCourt:
    """A running server, and channels to it, for asyncio and for threads."""

    address: str
    channel: grpc.aio.Channel
    threads: grpc.Channel
    docket: Docket
    court: CourtService
    finder: LibraryFinder
    tokens: Tokens | None
    reader: FakeReader
    reception: TrialRunner
    http: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "judge", CourtStub(self.channel))
        object.__setattr__(self, "records", DocketStub(self.channel))
        object.__setattr__(self, "precedents", PrecedentsStub(self.channel))


@asynccontextmanager
async def real_court(
    path: Path,
    *,
    library: Library | None = None,
    library_name: str = "drawn",
    pictures: PictureReader | None = None,
    **options: object,
) -> AsyncIterator[RealCourt]:
    """Runs a real court on this folder with these settings."""
    settings = Settings(home=path, **options)
    library = library or drawn_library(path / "library", 7, 40, name=library_name)
    memory = ReceiveBudget(settings.picture_memory, settings.idle)
    court = CourtService(settings, memory=memory)
    docket, precedents = DocketService(memory=memory), PrecedentsService(memory)
    tokens = Tokens.of(settings.tokens) if settings.tokens else None
    methods = Methods(court, docket, precedents, tokens=tokens)
    server, health = await make_server(methods)
    port = server.add_insecure_port("127.0.0.1:0")
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop, 0)
        finder = LibraryFinder(library, ENCODER)
        stack.callback(finder.close)
        records = Docket.open(path / "docket.sqlite")
        stack.push_async_callback(records.close)
        reader = FakeReader("as read")
        bindings = finder if settings.binding == "exact" else None
        judging = replace(a_court(reader=reader), finder=finder, bindings=bindings)
        executor = TrialExecutor(judging, pictures or OnePicture(), records)
        reception = await stack.enter_async_context(TrialRunner(executor, settings))
        court.open(executor, reception)
        docket.open(executor, reception.refresh, corrections_for(executor, settings), notice_links(records, settings))
        precedents.open(executor, reception.decoders)
        for name in health.services:
            health.say(name, serving=True)
        address = f"127.0.0.1:{port}"
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        threads = stack.enter_context(grpc.insecure_channel(address))
        http = ""
        if settings.http:
            http = await stack.enter_async_context(
                open_api(methods, health, settings, settings.http, webhook_keys=("whpk_AAAA",), docket=docket)
            )
        yield RealCourt(address, channel, threads, records, court, finder, tokens, reader, reception, http)
        for service in (court, docket, precedents):
            service.close()
        for service in (court, docket, precedents):
            await service.empty(5)
