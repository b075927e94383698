"""Stand-ins of a model server, served from a thread of their own."""

from contextlib import contextmanager

from anyio.from_thread import start_blocking_portal

from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings


@contextmanager
def listening(server):
    """Serves a fake server; yields its address."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(server)) as port:
        yield f"http://127.0.0.1:{port}/v1"


def served(stand_in, model="planted", **settings):
    """Serves a model that answers as this object does; yields its address."""
    own = Settings(model=model, capacity=64, **settings)
    return listening(FakeModelServer(own, answer=stand_in.answer, odds=stand_in.odds))
