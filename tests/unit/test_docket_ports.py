"""The ports of the docket: each small, each with a class of its own that offers nothing else."""

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
def test_a_port_is_small_enough_for_a_stand_in(port):
    assert 0 < len(get_protocol_members(port)) <= 8


def test_what_has_the_methods_of_a_port_can_stand_in_for_its_store(tmp_path):
    """A store offers what its port names and nothing more: nobody can come to lean on what a stand-in lacks."""

    async def offered(docket):
        stores = {name: getattr(docket, name) for name in STORES}
        return {name: {method for method in dir(store) if method[0] != "_"} for name, store in stores.items()}

    fields = get_type_hints(Docket)
    methods = with_docket(tmp_path / "docket.sqlite", offered)
    assert methods == {name: get_protocol_members(fields[name]) for name in STORES}
