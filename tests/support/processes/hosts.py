"""Hosts as network namespaces, connected by a network that can lose and delay packets.

The kernel module netem does the same, but not every kernel has it. Here, the network interface of each host ends in a
file of this process.
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
def is_supported() -> bool:
    """Return True if hosts can be created."""
    try:
        with network("a") as (host,):
            return subprocess.run([*host.command_prefix, "true"], check=False).returncode == 0
    except (OSError, subprocess.CalledProcessError):
        return False


@dataclass(eq=False)
class Host:
    """Host with its own network.

    Attributes:
        name: Network namespace. None is the namespace of this process.
        address: IP address.
        cable: File descriptor of its network interface.
        outgoing_loss: Share of lost outgoing packets, from 0 to 1.
        incoming_loss: Share of lost incoming packets, from 0 to 1.
        delay: Delay of each outgoing packet, in seconds.
    """

    name: str | None
    address: str
    cable: int
    outgoing_loss: float = 0.0
    incoming_loss: float = 0.0
    delay: float = 0.0

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """Prefix of commands that run on the host."""
        return ("nsenter", f"--net=/run/netns/{self.name}") if self.name else ()

    def isolate(self) -> None:
        """Drop all packets from and to the host."""
        self.outgoing_loss = self.incoming_loss = 1.0

    def set_link(self, state: Literal["up", "down"]) -> None:
        """Disable or enable the network interface. Unlike packet loss, processes on the host notice it."""
        _run_ip(*(("-n", self.name) if self.name else ()), "link", "set", "eth0", state)

    def heal(self) -> None:
        """Stop losing and delaying packets."""
        self.outgoing_loss = self.incoming_loss = self.delay = 0.0


HERE = Host(None, "127.0.0.1", -1)
"""Host of this process."""


@contextmanager
def network(*names: str) -> Generator[list[Host]]:
    """Create connected hosts for the duration of the block."""
    subnet = f"198.18.{os.getpid() % 256}"
    with ExitStack() as stack:
        hosts: list[Host] = []
        for number, name in enumerate(("", *names), 1):
            space = f"rxloop-{os.getpid()}-{name}" if name else None
            if space:
                _run_ip("netns", "add", space)
                stack.callback(_run_ip, "netns", "delete", space)
            cable = os.open("/dev/net/tun", os.O_RDWR)
            stack.callback(os.close, cable)
            hosts.append(Host(space, f"{subnet}.{number}", cable))
            _attach_cable(hosts[-1])
        done = threading.Event()
        carrier = threading.Thread(target=_forward_packets, args=(hosts, done), name="network", daemon=True)
        carrier.start()
        stack.callback(carrier.join)
        stack.callback(done.set)
        yield hosts[1:]


def _attach_cable(host: Host) -> None:
    """Create a host's network interface."""
    interface = f"rx{os.getpid()}-{host.address.rpartition('.')[2]}"
    fcntl.ioctl(host.cable, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _TUN | _BARE_PACKETS))
    namespace: tuple[str, ...] = ()
    if host.name:
        _run_ip("link", "set", interface, "netns", host.name, "name", "eth0")
        namespace, interface = ("-n", host.name), "eth0"
        _run_ip(*namespace, "link", "set", "lo", "up")
    _run_ip(*namespace, "address", "add", f"{host.address}/24", "dev", interface)
    _run_ip(*namespace, "link", "set", interface, "up")


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _forward_packets(hosts: list[Host], done: threading.Event) -> None:
    """Forward packets between hosts until `done` is set."""
    cables = {host.cable: host for host in hosts}
    addresses = {bytes(map(int, host.address.split("."))): host for host in hosts}
    in_flight: list[tuple[float, int, Host, bytes]] = []
    numbers, dice = count(), random.Random(1)
    with epoll() as ready:
        for cable in cables:
            ready.register(cable, EPOLLIN)
        while not done.is_set():
            due = in_flight[0][0] - time.monotonic() if in_flight else _LOOK_EVERY
            for cable, _ in ready.poll(max(0.0, min(due, _LOOK_EVERY))):
                packet, sender = os.read(cable, 1 << 16), cables[cable]
                # Destination address of an IPv4 packet.
                receiver = addresses.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if (
                    receiver is not None
                    and dice.random() >= sender.outgoing_loss
                    and dice.random() >= receiver.incoming_loss
                ):
                    heappush(in_flight, (time.monotonic() + sender.delay, next(numbers), receiver, packet))
            while in_flight and in_flight[0][0] <= time.monotonic():
                _, _, receiver, packet = heappop(in_flight)
                # A disabled interface drops its packets.
                with suppress(OSError):
                    os.write(receiver.cable, packet)
