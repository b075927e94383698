"""Protection against SSRF: untrusted host names must not resolve to addresses inside the operator's networks.

A name is resolved once, and the connection is made to the checked address, as a second look-up could give another
answer (DNS rebinding).
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
"""6to4 and Teredo. Such an address embeds the IPv4 address to which routers forward packets."""


class AddressRefused(httpx2.TransportError):
    """A host name resolves to an address that is not public."""


def is_public(address: str) -> bool:
    """True if an IPv4 or IPv6 address is public unicast, including any IPv4 address that it embeds."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        # Routers translate such an address to the IPv4 address in its last four bytes.
        if found in _NAT64:
            return is_public(str(ipaddress.IPv4Address(found.packed[-4:])))
        # Python considers some tunnels and unassigned ranges global.
        return found in _UNICAST and found.is_global and not any(found in tunnel for tunnel in _TUNNELS)
    # Python considers IPv4 multicast global, too.
    return found.is_global and not found.is_multicast and not found.is_reserved


async def public_addresses(host: str, port: int) -> Sequence[str]:
    """Resolves a host to public addresses, preferred one first.

    Raises:
        AddressRefused: One of them is not public. Others don't count, as the owner of the name controls the list.
        OSError: The name can't be resolved.
    """
    found = await resolve(host, port)
    if not found or not all(map(is_public, found)):
        raise AddressRefused("the name leads to an address that is not public")
    return found


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolves a host name with the system's resolver. Raises OSError if that fails."""
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("this is no name") from None
    # In the resolver's order, which is the order of connection attempts.
    return list(dict.fromkeys(str(place[0]) for *_, place in answers))
