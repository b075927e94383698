"""Opens the configured source of evidence for the expert witness."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from court.errors import BadRequest
from court.ports import EvidenceSource
from retrieval.embed.encoder import Encoder
from retrieval.facts.endpoint import Endpoint, EndpointEvidence, ResultPaths
from retrieval.facts.pages import PageFetcher
from retrieval.facts.source import CorpusEvidence
from retrieval.open import open_facts
from serving.settings import EvidenceSettings, Settings


async def open_evidence(
    settings: Settings, stack: AsyncExitStack, encoder: Encoder | None = None
) -> EvidenceSource | None:
    """Opens the source of evidence in the settings; None if there is none.

    Args:
        encoder: The court's encoder, which a corpus may have been built with.

    Raises:
        BadLibrary: The corpus is missing, damaged or was built with another encoder.
        BadRequest: The encoder can't be used, or the key of the endpoint is not set.
        NotLoaded: The packages that search a corpus, or run the encoder, are not installed.
    """
    named = settings.expert
    if named.corpus is not None:
        corpus, name = named.corpus, named.encoder
        return CorpusEvidence(await asyncio.to_thread(lambda: open_facts(corpus, name, at_hand=encoder)))
    if named.url is None:
        return None
    paths = ResultPaths(**named.paths.model_dump())
    endpoint = Endpoint(named.url, named.shape, key=_key(named), paths=paths, query=named.query)
    source = EndpointEvidence(endpoint, PageFetcher() if named.fetch else None)
    stack.push_async_callback(source.aclose)
    return source


def _key(named: EvidenceSettings) -> str | None:
    if named.key_env is None:
        return None
    key = os.environ.get(named.key_env)
    if not key:
        raise BadRequest(
            f"The key of the search endpoint is to be in the environment variable {named.key_env}, which is not set.",
            reason="KEY_MISSING",
            field="expert.key_env",
        )
    return key
