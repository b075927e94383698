"""Which encoder is meant: by the name that somebody gives, or by the library that is to be searched."""

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
from retrieval.embed.onnx_folder import PREFIX
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
"""What the built-in encoder calls itself."""


def load_encoder(name: str = BUILTIN, *, texts: TextChoice = "auto") -> Encoder:
    """The encoder of this name, warm.

    Args:
        name: ``builtin``; ``onnx:FOLDER`` with a sentence encoder as ONNX; or a CLIP model as
            :mod:`retrieval.embed.clip_names` has them.
        texts: Encoder of the texts beside a CLIP model.

    Raises:
        BadRequest: There is none of this name, or its weights can't be used.
        NotLoaded: The packages that run it are not installed.
        Unavailable: Its weights have to be fetched, and can't be.
    """
    if not clip_source.is_clip(name):
        # Only to refuse a name that is none.
        name_of(name)
        if texts == "clip":
            raise BadRequest("This encoder has no CLIP to embed texts with. Name one with --encoder.")
        if name.startswith(PREFIX):
            return onnx_texts.OnnxTextEncoder(Path(name.removeprefix(PREFIX)).expanduser())
        # Imported when it is needed: most of what imports this module never loads an encoder.
        from retrieval.embed.builtin import BuiltinEncoder

        return BuiltinEncoder()
    source = clip_source.parse_clip(name)
    from retrieval.embed.clip import OpenClipEncoder

    return OpenClipEncoder.load(source, texts=texts)


def load_encoder_for(library: Path | Address | None, requested: str | None = None) -> Encoder:
    """The encoder that a library was made with, warm; as :func:`choose_encoder`, and raises as :func:`load_encoder`."""
    return choose_encoder(library, requested)()


def choose_encoder(library: Path | Address | None, requested: str | None = None) -> Callable[[], Encoder]:
    """Chooses the encoder that a library was made with, and returns what loads it: nothing heavy happens before.

    Which of its kind exactly it was made with is checked when the library is opened.

    Args:
        library: Its directory, or the address of its database; None where there is none yet.
        requested: Name of an encoder, if any: a library that another made is refused before anything is loaded.

    Raises:
        BadLibrary: The library is missing or damaged, was made with another encoder than is asked for, or with
            weights that it can't name.
        BadRequest: There is no encoder of that name.
    """
    if library is None:
        name_of(requested or BUILTIN)
        return partial(load_encoder, requested or BUILTIN)
    made_with = encoder_of(library)
    # By name alone, which costs nothing. The whole identity is compared when the library is opened.
    if requested is not None and name_of(requested) != made_with.name:
        raise BadLibrary(
            f"The precedent library was made with the encoder {made_with}, but {requested} is asked for: their "
            "similarities can't be compared. Ask for the former or for none, or build it again with the latter.",
            reason="LIBRARY_FOREIGN",
        )
    # A library records what the weights are and not where they lie, which is another place on each machine.
    if requested is None and clip_source.is_local(made_with.name):
        raise BadLibrary(
            f"The precedent library was made with weights of this machine, {made_with}. It does not say where "
            "they are: name them with --encoder, or in the settings as encoder.",
            reason="ENCODER_NOT_NAMED",
        )
    if not made_with.name.startswith(clip_source.PREFIX):
        return partial(load_encoder, requested or BUILTIN)
    # Texts by the encoder that they were made with: ``texts_by`` is only set where that was not the CLIP model.
    return partial(load_encoder, requested or made_with.name, texts="builtin" if made_with.texts_by else "clip")


def open_facts(place: Path, name: str | None = None, *, at_hand: Encoder | None = None) -> FactCorpus:
    """Opens a corpus of facts with the encoder that it was built with, loaded where it is not at hand.

    Args:
        place: Directory of the corpus.
        name: Name of the encoder, for one that is not the built-in one.
        at_hand: An encoder that is loaded already.

    Raises:
        BadLibrary: The corpus is missing, damaged or was built with another encoder.
        BadRequest, NotLoaded, Unavailable: The encoder can't be loaded, or bm25s is not installed.
    """
    made_with = read_corpus_manifest(place).encoder
    if made_with is None:
        return open_corpus(place)
    # The court's encoder serves for documents too where it is the same: a second one would hold the weights twice.
    if at_hand is not None and at_hand.identity == made_with:
        return open_corpus(place, at_hand)
    return open_corpus(place, load_text_encoder(name or BUILTIN))


def load_text_encoder(name: str) -> Encoder | None:
    """The encoder of this name for documents, which have no pictures, warm; None for ``none``.

    Raises:
        BadRequest: There is none of this name for documents, or its weights can't be used.
        NotLoaded, Unavailable: As for :func:`load_encoder`.
    """
    if name == "none":
        return None
    if name != BUILTIN and not name.startswith(PREFIX):
        raise BadRequest(
            f"There is no encoder {name!r} for documents. There are builtin, onnx:FOLDER and none.",
            reason="ENCODER_UNKNOWN",
            field="encoder",
        )
    return load_encoder(name)


def require_library(library: Path | Address | None) -> None:
    """Before anything is loaded: raises BadLibrary where a library on disk is missing or damaged at first sight."""
    # A database is not asked here: its first call finds out, and may have to wait for the connection.
    if isinstance(library, Path):
        encoder_of(library)


def name_of(requested: str) -> str:
    """Returns the full name of the encoder of that name. Raises BadRequest if there is none."""
    if clip_source.is_clip(requested):
        return clip_source.parse_clip(requested).name
    if requested.startswith(PREFIX):
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
    # Without the writer's lock: a reader must not wait for an import that takes minutes.
    while True:
        pointer = storage.read_pointer(library)
        try:
            return verify.read_manifest(library / storage.GENERATIONS / pointer.generation, pointer).encoder
        except BadLibrary:
            # Two writes since we read CURRENT would have removed what it named.
            if storage.read_pointer(library) == pointer:
                raise


@contextmanager
def open_writer(place: Path | Address) -> Iterator[Writer]:
    """Opens the writer of the library in this directory or database.

    Raises:
        BadLibrary: On disk there is none, or it is damaged. In a database that is found by the first call.
        NotLoaded: The library lies in a database, and the driver is not installed.
    """
    if isinstance(place, Address):
        with PostgresWriter(place) as writer:
            yield writer
    else:
        yield LibraryWriter.open(place)


@contextmanager
def open_writer_of(finder: LibraryFinder | PgvectorFinder) -> Iterator[Writer]:
    """Opens the writer of the library that is searched here, without reading anything twice.

    Raises:
        NotLoaded: The library lies in a database, and the driver is not installed.
    """
    if isinstance(finder, PgvectorFinder):
        with PostgresWriter(finder.address) as writer:
            yield writer
    else:
        yield LibraryWriter(finder.searched)
