"""Ports of the docket: each is small, and its store offers nothing else."""

from typing import get_type_hints

import pytest
from typing_extensions import get_protocol_members

from serving.docket.open import Docket
from serving.docket.ports import TrialReader, TrialWriter
from tests.support.dockets import STORES, with_docket

PORTS = {"trials": TrialReader, "writer": TrialWriter}


@pytest.mark.parametrize(("name", "port"), PORTS.items())
def test_store_offers_exactly_the_methods_of_its_port(name, port, tmp_path):
    """Callers can't depend on methods that another implementation lacks."""

    async def offered(docket):
        return {method for method in dir(getattr(docket, name)) if method[0] != "_"}

    assert get_type_hints(Docket)[name] is port and name in STORES
    assert with_docket(tmp_path / "docket.sqlite", offered) == get_protocol_members(port)
