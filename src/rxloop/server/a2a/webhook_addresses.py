"""Webhook requests, which are restricted to public addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

_NAT64 = IPv6Network("64:ff9b::/96")
_UNKNOWN = (IPv6Network("fec0::/10"), IPv6Network("3fff::/20"), IPv4Network("192.88.99.0/24"))
"""Non-public networks that Python before 3.13 considers public: site-local, documentation and 6to4 relay addresses."""
_FOUND_IN = 10.0
"""DNS timeout in seconds."""


class Unsafe(Exception):
    """Raised for an address that must not receive notifications."""


def is_public(address: str) -> bool:
    """True if an address is public. For an IPv6 address that embeds an IPv4 address, the embedded address counts."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    while isinstance(found, IPv6Address):
        inner = _carried(found)
        if inner is None:
            break
        found = inner
    if any(found in network for network in _UNKNOWN):
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved


def _carried(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])


async def safe_addresses(url: httpx.URL) -> list[str]:
    """Resolve a host to addresses, requiring all of them to be public.

    Raises:
        Unsafe: If the host cannot be resolved, or an address is not public.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_FOUND_IN):
            found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise Unsafe("the host of the url is not known") from None
    addresses = [str(each[4][0]) for each in found]
    if not addresses or not all(map(is_public, addresses)):
        raise Unsafe("the host of the url is not on the public internet")
    return addresses


def read_url(text: str) -> httpx.URL:
    """Parse and validate a webhook URL.

    Raises:
        Unsafe: If it is not a valid HTTP URL.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        raise Unsafe("that is not a url") from None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or len(text) > 2000:
        raise Unsafe("a webhook has a url that begins with http:// or https://, without a user")
    return url


async def post(client: httpx.AsyncClient, text: str, body: bytes, headers: Mapping[str, str], *, anywhere: bool) -> int:
    """Send a POST request to a webhook and return the status code. Redirects are not followed.

    The request uses a validated IP address, so that a later DNS change has no effect.

    Args:
        client: HTTP client.
        text: Webhook URL.
        body: Request body.
        headers: Request headers.
        anywhere: Whether to allow private addresses.

    Raises:
        Unsafe: If the URL is invalid or the host is not public.
        httpx.HTTPError: If the request fails.
    """
    url = read_url(text)
    if anywhere:
        return await _sent(client, client.build_request("POST", url, content=body, headers=headers))
    addresses = await safe_addresses(url)
    headers = {**headers, "host": url.netloc.decode("ascii")}
    while True:
        request = client.build_request("POST", url.copy_with(host=addresses.pop(0)), content=body, headers=headers)
        # The certificate must match the host name instead of the IP address.
        request.extensions["sni_hostname"] = url.raw_host.decode("ascii")
        try:
            return await _sent(client, request)
        except httpx.ConnectError:
            if not addresses:
                raise


async def _sent(client: httpx.AsyncClient, request: httpx.Request) -> int:
    response = await client.send(request, stream=True, follow_redirects=False)
    await response.aclose()
    return response.status_code
