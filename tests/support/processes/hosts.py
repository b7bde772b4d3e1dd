"""Hosts on one machine: network namespaces, and a network of this process, which loses and delays what it is told to.

The kernel has both (netem), but not every kernel. Here the cable of each host ends in a file of this process.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import count
from select import EPOLLIN, epoll
from typing import Literal

_TUNSETIFF, _TUN, _BARE_PACKETS = 0x400454CA, 0x0001, 0x1000
_LOOK_EVERY = 0.05


@cache
def possible() -> bool:
    """Whether there may be hosts."""
    try:
        with network("a") as (host,):
            return subprocess.run([*host.within, "true"], check=False).returncode == 0
    except (OSError, subprocess.CalledProcessError):
        return False


@dataclass(eq=False)
class Host:
    """A host: what runs there has only its network.

    Attributes:
        name: Its network namespace; None is that of this process.
        address: Where the others reach it.
        cable: Where its packets come out and go in.
        lost_out: The share of the packets from it that get lost, from 0 to 1.
        lost_in: The share of those to it.
        delay: Seconds that each packet from it takes.
    """

    name: str | None
    address: str
    cable: int
    lost_out: float = 0.0
    lost_in: float = 0.0
    delay: float = 0.0

    @property
    def within(self) -> tuple[str, ...]:
        """What is put before a command that is to run there."""
        return ("nsenter", f"--net=/run/netns/{self.name}") if self.name else ()

    def cut_off(self) -> None:
        """Lose all that it sends, and all that is sent to it: nobody is told."""
        self.lost_out = self.lost_in = 1.0

    def link(self, state: Literal["up", "down"]) -> None:
        """Have it lose its own network, as those who are there are told; or have it again."""
        _ip(*(("-n", self.name) if self.name else ()), "link", "set", "eth0", state)

    def heal(self) -> None:
        """Lose and delay nothing any more."""
        self.lost_out = self.lost_in = self.delay = 0.0


HERE = Host(None, "127.0.0.1", -1)
"""Where this process is."""


@contextmanager
def network(*names: str) -> Generator[list[Host]]:
    """Hosts of these names, which reach each other and this process, for the length of the block."""
    subnet = f"198.18.{os.getpid() % 256}"
    with ExitStack() as stack:
        hosts: list[Host] = []
        for number, name in enumerate(("", *names), 1):
            space = f"rxloop-{os.getpid()}-{name}" if name else None
            if space:
                _ip("netns", "add", space)
                stack.callback(_ip, "netns", "delete", space)
            cable = os.open("/dev/net/tun", os.O_RDWR)
            stack.callback(os.close, cable)
            hosts.append(Host(space, f"{subnet}.{number}", cable))
            _plug_in(hosts[-1])
        done = threading.Event()
        carrier = threading.Thread(target=_carry, args=(hosts, done), name="network", daemon=True)
        carrier.start()
        stack.callback(carrier.join)
        stack.callback(done.set)
        yield hosts[1:]


def _plug_in(host: Host) -> None:
    """Give a host the other end of its cable."""
    called = f"rx{os.getpid()}-{host.address.rpartition('.')[2]}"
    fcntl.ioctl(host.cable, _TUNSETIFF, struct.pack("16sH22x", called.encode(), _TUN | _BARE_PACKETS))
    there: tuple[str, ...] = ()
    if host.name:
        _ip("link", "set", called, "netns", host.name, "name", "eth0")
        there, called = ("-n", host.name), "eth0"
        _ip(*there, "link", "set", "lo", "up")
    _ip(*there, "address", "add", f"{host.address}/24", "dev", called)
    _ip(*there, "link", "set", called, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _carry(hosts: list[Host], done: threading.Event) -> None:
    """Carry packets from host to host until it is done."""
    cables = {host.cable: host for host in hosts}
    addresses = {bytes(map(int, host.address.split("."))): host for host in hosts}
    on_their_way: list[tuple[float, int, Host, bytes]] = []
    numbers, dice = count(), random.Random(1)
    with epoll() as ready:
        for cable in cables:
            ready.register(cable, EPOLLIN)
        while not done.is_set():
            due = on_their_way[0][0] - time.monotonic() if on_their_way else _LOOK_EVERY
            for cable, _ in ready.poll(max(0.0, min(due, _LOOK_EVERY))):
                packet, sender = os.read(cable, 1 << 16), cables[cable]
                # The address of a packet of IPv4; others there are none.
                to = addresses.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if to is not None and dice.random() >= sender.lost_out and dice.random() >= to.lost_in:
                    heappush(on_their_way, (time.monotonic() + sender.delay, next(numbers), to, packet))
            while on_their_way and on_their_way[0][0] <= time.monotonic():
                _, _, to, packet = heappop(on_their_way)
                # What comes to one whose link is down is lost.
                with suppress(OSError):
                    os.write(to.cable, packet)
