"""Internet addresses that anybody may name: where a name leads into a network of the operator, nothing is sent.

A name is resolved here and the connection is made to an address that was checked: asked twice, a name server may give
two answers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import httpx2

# All of IPv6 that is assigned to hosts on the internet.
_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_TUNNELS = (ipaddress.IPv6Network("2002::/16"), ipaddress.IPv6Network("2001::/32"))
"""6to4 and Teredo. Whoever has such an address says by it which IPv4 address a router is to send packets to."""


class AddressRefused(httpx2.TransportError):
    """A name that leads to an address which is not public."""


def is_public(address: str) -> bool:
    """True if an IPv4 or IPv6 address is a single host's on the internet, also where it stands for another one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        # A router translates such an address to the IPv4 address in its last four bytes: that is where it leads.
        if found in _NAT64:
            return is_public(str(ipaddress.IPv4Address(found.packed[-4:])))
        # Python calls some tunnels global, and what nobody has assigned.
        return found in _UNICAST and found.is_global and not any(found in tunnel for tunnel in _TUNNELS)
    # Python calls IPv4 multicast global, too.
    return found.is_global and not found.is_multicast and not found.is_reserved


async def public_addresses(host: str, port: int) -> Sequence[str]:
    """Resolves a name or an address to numbers that may be connected to, the preferred one first.

    Raises:
        AddressRefused: One of them is not public. That others are says nothing: whoever owns the name wrote the list.
        OSError: The name can't be resolved.
    """
    found = await resolve(host, port)
    if not found or not all(map(is_public, found)):
        raise AddressRefused("the name leads to an address that is not public")
    return found


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolves a name to addresses as this machine does it. Raises OSError where it can't be."""
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("this is no name") from None
    # In the resolver's order, which is the order to try them in.
    return list(dict.fromkeys(str(place[0]) for *_, place in answers))
