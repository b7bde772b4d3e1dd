"""Delivery gate tests: events are held while lease ownership is uncertain."""

from __future__ import annotations

from rxloop.coordination.lease import DeliveryGate
from rxloop.protocol.events import CustomEvent, Event
from support.fake_clock import FakeClock


def make_event(name: str) -> Event:
    return CustomEvent(name=name, data={})


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events if isinstance(event, CustomEvent)]


class Guarded:
    """A guarded gate, its delivered events and the number of doubts."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.delivered: list[Event] = []
        self.doubts = 0
        self.gate = DeliveryGate(self.delivered.append, self.clock)
        self.now = self.gate.guard(1_000, self.doubt)

    def doubt(self) -> None:
        self.doubts += 1

    def publish(self, name: str, after: int = 0) -> None:
        self.clock.time += after
        self.now()
        self.gate.deliver(make_event(name))


def test_gate_delivers_events_without_a_long_silence() -> None:
    guarded = Guarded()

    for name in "ab":
        guarded.publish(name, after=1_000)

    assert names(guarded.delivered) == ["a", "b"]
    assert guarded.doubts == 0


def test_gate_holds_events_after_a_long_silence_until_it_is_opened() -> None:
    guarded = Guarded()
    guarded.publish("a")
    guarded.publish("b", after=1_500)
    guarded.publish("c", after=1_500)
    assert names(guarded.delivered) == ["a"]
    assert guarded.doubts == 1

    guarded.gate.open()
    guarded.publish("d")

    assert names(guarded.delivered) == ["a", "b", "c", "d"]


def test_gate_keeps_the_order_of_events_published_while_it_opens() -> None:
    guarded = Guarded()
    order: list[Event] = []

    def publish(event: Event) -> None:
        order.append(event)
        if names([event]) == ["a"]:
            gate.deliver(make_event("c"))

    gate = DeliveryGate(publish, guarded.clock)
    now = gate.guard(1_000, guarded.doubt)
    guarded.clock.time += 2_000
    now()
    gate.deliver(make_event("a"))
    gate.deliver(make_event("b"))

    gate.open()

    assert names(order) == ["a", "b", "c"]


def test_gate_drops_held_and_later_events_once_the_lease_is_lost() -> None:
    guarded = Guarded()
    guarded.publish("a", after=2_000)

    guarded.gate.drop()
    guarded.publish("b", after=2_000)
    guarded.gate.open()
    guarded.publish("c")

    assert guarded.delivered == []
    assert guarded.doubts == 1
