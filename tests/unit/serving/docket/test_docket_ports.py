"""Ports of the docket: each is small, and implemented by a store that offers nothing else."""

from typing import get_type_hints

import pytest
from typing_extensions import get_protocol_members, is_protocol

from serving.docket import ports
from serving.docket.open import Docket
from tests.support.dockets import STORES, with_docket

PORTS = [kind for kind in vars(ports).values() if is_protocol(kind)]


def test_each_port_is_one_store_of_the_docket():
    fields = get_type_hints(Docket)
    assert len(PORTS) == 13
    assert {fields[name] for name in STORES} == set(PORTS) and len(STORES) == len(PORTS)


@pytest.mark.parametrize("port", PORTS)
def test_port_is_small_enough_to_fake(port):
    assert 0 < len(get_protocol_members(port)) <= 8


def test_stores_offer_exactly_the_methods_of_their_ports(tmp_path):
    """A store offers only the methods of its port, so callers can't depend on methods that a fake lacks."""

    async def offered(docket):
        stores = {name: getattr(docket, name) for name in STORES}
        return {name: {method for method in dir(store) if method[0] != "_"} for name, store in stores.items()}

    fields = get_type_hints(Docket)
    methods = with_docket(tmp_path / "docket.sqlite", offered)
    assert methods == {name: get_protocol_members(fields[name]) for name in STORES}
