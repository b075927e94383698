"""An empty file in the place of a docket: a server fills it, and commands that only read refuse it untouched."""

import asyncio

import pytest

from serving.docket.errors import DocketError
from serving.docket.open import Docket


@pytest.mark.parametrize("read_only", [False, True])
def test_reading_an_empty_file_is_refused_and_leaves_it_empty(tmp_path, read_only):
    path = tmp_path / "records.sqlite"
    path.touch()
    with pytest.raises(DocketError, match="empty"):
        Docket.open(path, create=False, read_only=read_only)
    assert path.stat().st_size == 0


def test_a_server_makes_its_docket_in_an_empty_file(tmp_path):
    path = tmp_path / "records.sqlite"
    path.touch()

    async def open_twice():
        await Docket.open(path).close()
        await Docket.open(path, create=False).close()

    asyncio.run(open_twice())
