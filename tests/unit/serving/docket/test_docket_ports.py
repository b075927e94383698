"""Ports of the docket: each is small, and its store offers nothing else."""

from typing import get_type_hints

import pytest
from typing_extensions import get_protocol_members

from serving.docket.open import Docket
from serving.docket.ports import TrialReader, TrialWriter
from tests.support.dockets import STORES, opened_docket

PORTS = {"trials": TrialReader, "writer": TrialWriter}


@pytest.mark.parametrize(("name", "port"), PORTS.items())
async def test_store_offers_exactly_the_methods_of_its_port(name, port, tmp_path):
    """Callers can't depend on methods that another implementation lacks."""

    assert get_type_hints(Docket)[name] is port and name in STORES
    async with opened_docket(tmp_path / "docket.sqlite") as docket:
        assert {method for method in dir(getattr(docket, name)) if method[0] != "_"} == get_protocol_members(port)
