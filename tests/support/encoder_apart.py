"""Helpers of tests of encoder apart."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from retrieval.embed.encoder import Encoder, TextEmbeddings
from retrieval.embed.process import EncoderProcess
from tests.support.encoders import WordEncoder
from tests.support.playing import wait_until


class ControllableEncoder(WordEncoder):
    """An encoder that misbehaves as the text tells it to."""

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        match texts:
            case ["wait", seconds]:
                time.sleep(float(seconds))
            case ["until", path]:
                wait_until(Path(path).exists)
            case ["spin"]:
                while True:
                    pass
            case ["die"]:
                os._exit(3)
            case ["fail"]:
                raise ValueError("requested failure")
            case ["fail", "oddly"]:
                raise UnpicklableError(threading.Lock())
            case ["answer", "oddly"]:
                return threading.Lock()  # type: ignore[return-value]
            case ["answer", "unreadably"]:
                return FailsOnUnpickling(_refuse)  # type: ignore[return-value]
            case ["pid"]:
                return TextEmbeddings(np.array([[os.getpid()]], dtype=np.float32), (False,))
        return super().embed_texts(texts)

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        if not all(pictures):
            raise ValueError("picture 0 has no frame")
        return super().embed_pictures(pictures)


class UnpicklableError(Exception):
    """Holds an object that can't be pickled."""


class FailsOnUnpickling:
    """Calls a function when it is unpickled in the other process."""

    def __init__(self, how: Callable[[], object]) -> None:
        self.how = how

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return self.how, ()


def _refuse() -> object:
    raise KeyError("refused")


def _load_slowly(pid_file: Path) -> Encoder:
    pid_file.write_text(str(os.getpid()))
    time.sleep(60)
    return ControllableEncoder()


@pytest.fixture
def encoder() -> Iterator[EncoderProcess]:
    encoder = EncoderProcess(ControllableEncoder)
    yield encoder
    encoder.close()


def pid_of(encoder: EncoderProcess) -> int:
    return int(encoder.embed_texts(["pid"]).vectors[0, 0])
