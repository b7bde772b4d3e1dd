"""Webhook requests, which are restricted to public addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

from rxloop.errors import RxloopError
from rxloop.support.threads import Threads, run_in_thread

_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""Addresses that are assigned to networks of the internet. Special-purpose networks are inside and outside of it."""
_SPECIAL_IPV4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
    )
)
"""Networks of the IPv4 special-purpose registry of IANA, and multicast."""
_SPECIAL_IPV6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")))
"""Networks of the IPv6 special-purpose registry of IANA within `_GLOBAL_IPV6`, except for 6to4."""
_DNS_TIMEOUT = 10.0
"""DNS timeout in seconds."""
_LOOKUPS = Threads(max_running=32, max_stuck=64, max_per_owner=2)
"""Threads for DNS lookups. Clients choose the names, so a dead name server must neither block other work of the
process nor the lookups of other principals."""


class UnsafeAddress(Exception):
    """Raised for an invalid or private webhook address."""


def is_public(address: str) -> bool:
    """Return True if an address is public. An embedded IPv4 address is checked instead of its IPv6 address.

    `is_global` of the standard library differs between versions of Python, so the networks are listed here.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address):
        ipv4 = _extract_ipv4(parsed)
        if ipv4 is None:
            return parsed in _GLOBAL_IPV6 and not any(parsed in network for network in _SPECIAL_IPV6)
        parsed = ipv4
    return not any(parsed in network for network in _SPECIAL_IPV4)


def _extract_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


async def resolve_addresses(url: httpx.URL, *, owner: str | None, allow_private: bool = False) -> list[str]:
    """Resolve the host of a URL.

    Args:
        url: The URL.
        owner: Principal whose lookups share two threads. None for no limit.
        allow_private: Whether to allow private addresses.

    Raises:
        UnsafeAddress: If the host cannot be resolved, or an address is not public and private ones are not allowed.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_DNS_TIMEOUT):
            infos = await run_in_thread(
                lambda: socket.getaddrinfo(url.host, port, type=socket.SOCK_STREAM), threads=_LOOKUPS, owner=owner
            )
    except (OSError, UnicodeError, TimeoutError, RxloopError):
        raise UnsafeAddress(f"cannot resolve the host {url.host!r}") from None
    addresses = [str(each[4][0]) for each in infos]
    if not addresses or not (allow_private or all(map(is_public, addresses))):
        raise UnsafeAddress("the host must have a public address")
    return addresses


def read_url(text: str) -> httpx.URL:
    """Parse and validate a webhook URL.

    Raises:
        UnsafeAddress: If it is not a valid HTTP URL.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError):
        raise UnsafeAddress("malformed url") from None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or len(text) > 2000:
        raise UnsafeAddress("the url must be an http or https url without credentials, of at most 2000 characters")
    return url


async def post(
    client: httpx.AsyncClient,
    text: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    owner: str | None,
    allow_private: bool,
) -> int:
    """Send a POST request to a webhook and return the status code. Redirects are not followed.

    The request uses a validated IP address, so that a later DNS change has no effect, and httpx does not resolve the
    host in the default executor.

    Args:
        client: HTTP client.
        text: Webhook URL.
        body: Request body.
        headers: Request headers.
        owner: As for `resolve_addresses`.
        allow_private: Whether to allow private addresses.

    Raises:
        UnsafeAddress: If the URL is invalid or the host is not public.
        httpx.HTTPError: If the request fails.
    """
    url = read_url(text)
    addresses = await resolve_addresses(url, owner=owner, allow_private=allow_private)
    headers = {**headers, "host": url.netloc.decode("ascii")}
    while True:
        request = client.build_request("POST", url.copy_with(host=addresses.pop(0)), content=body, headers=headers)
        # The certificate must match the host name instead of the IP address.
        request.extensions["sni_hostname"] = url.raw_host.decode("ascii")
        try:
            return await _send(client, request)
        except httpx.ConnectError:
            if not addresses:
                raise


async def _send(client: httpx.AsyncClient, request: httpx.Request) -> int:
    response = await client.send(request, stream=True, follow_redirects=False)
    await response.aclose()
    return response.status_code
