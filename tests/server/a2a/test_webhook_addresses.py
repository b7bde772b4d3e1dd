"""Public addresses, as in the registries of IANA and independent of the version of Python."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest

from rxloop.server.a2a.webhook_addresses import is_public


def test_private_addresses_are_recognised() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1::1")
    for address in (
        "fe80::1%eth0",
        "fd00::1",
        "::",
        "192.168.1.1",
        "198.18.0.1",
        "255.255.255.255",
        "fec0::1",
        "192.0.0.8",
        "::ffff:192.0.0.8",
        "64:ff9b:1::7f00:1",
        "nonsense",
    ):
        assert not is_public(address), address


SPECIAL_NETWORKS = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
    *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    *("::1/128", "::/128", "::ffff:0:0/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23"),
    *("2001::/32", "2001:1::1/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28"),
    *("2001:20::/28", "2001:30::/28", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "5f00::/16"),
    *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
]
"""Networks of the special-purpose address registries of IANA, and multicast."""


@pytest.mark.parametrize("text", SPECIAL_NETWORKS)
def test_special_purpose_address_is_not_public(text: str) -> None:
    network = ip_network(text)
    for address in (network[0], network[network.num_addresses // 2], network[-1]):
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            continue
        assert not is_public(str(address)), address
        if isinstance(address, IPv4Address):
            embedded = [IPv6Address((prefix << shift) + (int(address) << place)) for prefix, shift, place in EMBEDDING]
            assert not any(is_public(str(each)) for each in embedded), address


EMBEDDING = ((0xFFFF, 32, 0), (0x64FF9B, 96, 0), (0x2002, 112, 80))
"""Prefixes of mapped, translated and 6to4 addresses, and the position of the IPv4 address."""


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "9.255.255.255", "11.0.0.0", "100.128.0.0", "172.32.0.1", "191.255.255.255", "192.0.1.1"),
        *("198.20.0.1", "223.255.255.255", "2001:200::1", "2001:4860:4860::8888", "2a00::1", "3ffe::1"),
        *("::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"),
    ],
)
def test_address_next_to_special_purpose_networks_is_public(address: str) -> None:
    assert is_public(address)


def test_public_addresses_do_not_depend_on_the_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (IPv4Address, IPv6Address):
        for name in ("is_global", "is_private", "is_reserved"):
            monkeypatch.setattr(cls, name, property(lambda _: pytest.fail("differs between versions")))
    assert is_public("1.1.1.1")
    assert not is_public("192.0.0.8")
    assert is_public("2a00::1")
