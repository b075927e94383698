"""Opens encoders by name or for a library, corpora of facts, and writers of libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from court.errors import BadLibrary, BadRequest
from retrieval.embed import clip_names as clip_source
from retrieval.embed import onnx_texts
from retrieval.embed.clip import TextChoice
from retrieval.embed.encoder import Encoder, EncoderIdentity
from retrieval.facts.corpus import FactCorpus, open_corpus, read_corpus_manifest
from retrieval.library import storage, verify
from retrieval.library.ports import Writer
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.writer import PostgresWriter
from retrieval.library.writer import LibraryWriter
from retrieval.precedents import postgres_finder as pgvector
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder

BUILTIN = "builtin"
_BUILTIN = "builtin/all-MiniLM-L6-v2"
"""Name of the built-in encoder in libraries."""


def load_encoder(name: str = BUILTIN, *, texts: TextChoice = "auto") -> Encoder:
    """Loads and warms the encoder of this name.

    Args:
        name: ``builtin``; ``onnx:FOLDER`` with a sentence encoder as ONNX; or a CLIP model as
            :mod:`retrieval.embed.clip_names` has them.

    Raises:
        BadRequest: The name is unknown, or the weights can't be used.
        NotLoaded: The required packages are not installed.
        Unavailable: The weights can't be downloaded.
    """
    if not clip_source.is_clip(name):
        # Only to reject unknown names.
        name_of(name)
        if texts == "clip":
            raise BadRequest("This encoder has no CLIP to embed texts with. Name one with --encoder.")
        if name.startswith(onnx_texts.PREFIX):
            return onnx_texts.OnnxTextEncoder(Path(name.removeprefix(onnx_texts.PREFIX)).expanduser())
        # Imported lazily, as most importers of this module never load an encoder.
        from retrieval.embed.builtin import BuiltinEncoder

        return BuiltinEncoder()
    source = clip_source.parse_clip(name)
    from retrieval.embed.clip import OpenClipEncoder

    return OpenClipEncoder.load(source, texts=texts)


def load_encoder_for(library: Path | Address | None, requested: str | None = None) -> Encoder:
    """Loads and warms a library's encoder; see :func:`choose_encoder`. Raises also as :func:`load_encoder`."""
    return choose_encoder(library, requested)()


def choose_encoder(library: Path | Address | None, requested: str | None = None) -> Callable[[], Encoder]:
    """Chooses the encoder of a library, and returns a function that loads it; nothing heavy happens before.

    Raises:
        BadLibrary: The library is missing or damaged, or was built with another encoder or with local weights.
        BadRequest: The name is unknown.
    """
    # The exact identity is checked when the library is opened.
    if library is None:
        name_of(requested or BUILTIN)
        return partial(load_encoder, requested or BUILTIN)
    made_with = encoder_of(library)
    # By name alone, which is cheap. The full identity is compared when the library is opened.
    if requested is not None and name_of(requested) != made_with.name:
        raise BadLibrary(
            f"The precedent library was made with the encoder {made_with}, but {requested} is asked for: their "
            "similarities can't be compared. Ask for the former or for none, or build it again with the latter.",
            reason="LIBRARY_FOREIGN",
        )
    # A library records the identity of the weights, not their path, which differs between machines.
    if requested is None and clip_source.is_local(made_with.name):
        raise BadLibrary(
            f"The precedent library was made with weights of this machine, {made_with}. It does not say where "
            "they are: name them with --encoder, or in the settings as encoder.",
            reason="ENCODER_NOT_NAMED",
        )
    if not made_with.name.startswith(clip_source.PREFIX):
        return partial(load_encoder, requested or BUILTIN)
    # ``texts_by`` is only set if the texts were not embedded by the CLIP model.
    return partial(load_encoder, requested or made_with.name, texts="builtin" if made_with.texts_by else "clip")


def open_facts(place: Path, name: str | None = None, *, at_hand: Encoder | None = None) -> FactCorpus:
    """Opens a corpus of facts with its encoder, which is loaded unless already at hand.

    Raises:
        BadLibrary: The corpus is missing or damaged, or was built with another encoder.
        BadRequest, NotLoaded, Unavailable: The encoder can't be loaded, or bm25s is not installed.
    """
    made_with = read_corpus_manifest(place).encoder
    if made_with is None:
        return open_corpus(place)
    # Reuses the court's encoder if it is the same, as a second one would load the weights twice.
    if at_hand is not None and at_hand.identity == made_with:
        return open_corpus(place, at_hand)
    return open_corpus(place, load_text_encoder(name or BUILTIN))


def load_text_encoder(name: str) -> Encoder | None:
    """Loads and warms the text encoder of this name, for documents; None for ``none``.

    Raises:
        BadRequest: The name is unknown or unsuitable for documents, or the weights can't be used.
        NotLoaded, Unavailable: As for :func:`load_encoder`.
    """
    if name == "none":
        return None
    if name != BUILTIN and not name.startswith(onnx_texts.PREFIX):
        raise BadRequest(
            f"There is no encoder {name!r} for documents. There are builtin, onnx:FOLDER and none.",
            reason="ENCODER_UNKNOWN",
            field="encoder",
        )
    return load_encoder(name)


def require_library(library: Path | Address | None) -> None:
    """Raises BadLibrary if a library on disk is missing or obviously damaged; a check before anything is loaded."""
    # A database is not checked here, as that would need a connection; its first call will show.
    if isinstance(library, Path):
        encoder_of(library)


def name_of(requested: str) -> str:
    """Returns the full name of the encoder of that name. Raises BadRequest if there is none."""
    if clip_source.is_clip(requested):
        return clip_source.parse_clip(requested).name
    if requested.startswith(onnx_texts.PREFIX):
        return onnx_texts.NAME
    if requested not in (BUILTIN, _BUILTIN):
        raise BadRequest(
            f"There is no encoder {requested!r}. There are builtin, onnx:FOLDER, and CLIP models: open_clip:MODEL/TAG, "
            "hf-hub:ORG/NAME and local-dir:DIRECTORY.",
            reason="ENCODER_UNKNOWN",
            field="encoder",
        )
    return _BUILTIN


def encoder_of(library: Path | Address) -> EncoderIdentity:
    """Returns the identity of a library's encoder. Raises BadLibrary if the library is missing or damaged."""
    if isinstance(library, Address):
        return pgvector.encoder_of(library)
    # Without the writer's lock, as readers must not wait for an import that takes minutes.
    while True:
        pointer = storage.read_pointer(library)
        try:
            return verify.read_manifest(library / storage.GENERATIONS / pointer.generation, pointer).encoder
        except BadLibrary:
            # Two writes since CURRENT was read would have removed the generation that it named.
            if storage.read_pointer(library) == pointer:
                raise


@contextmanager
def open_writer(place: Path | Address) -> Iterator[Writer]:
    """Opens the writer of the library in this directory or database.

    Raises:
        BadLibrary: The library on disk is missing or damaged. For a database, the first call shows that.
        NotLoaded: The library is in a database, and the driver is not installed.
    """
    if isinstance(place, Address):
        with PostgresWriter(place) as writer:
            yield writer
    else:
        yield LibraryWriter.open(place)


@contextmanager
def open_writer_of(finder: LibraryFinder | PgvectorFinder) -> Iterator[Writer]:
    """Opens the writer of a finder's library, without reading anything twice.

    Raises:
        NotLoaded: The library is in a database, and the driver is not installed.
    """
    if isinstance(finder, PgvectorFinder):
        with PostgresWriter(finder.address) as writer:
            yield writer
    else:
        yield LibraryWriter(finder.searched)
