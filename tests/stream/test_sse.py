from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import orjson
import pytest
import reactivex as rx
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, CustomEvent, Event, StatusUpdateEvent
from rxloop.protocol.messages import ErrorInfo
from rxloop.recorded.follow import RecordedStream
from rxloop.stream.readers import HEARTBEAT, Frames, encode_frame
from rxloop.testing import virtual_time
from support.run_checks import assert_no_tasks, run_ready_tasks


def add_envelope(event: Event, seq: int = 1, sub: int = 0) -> Event:
    stamp = {"task_id": "run", "context_id": "c", "attempt": 1, "seq": seq, "sub": sub, "timestamp": 1_700_000_000_123}
    return event.model_copy(update=stamp)


def parse_frame(data: bytes) -> dict[str, str]:
    """Parse a frame as specified for server-sent events."""
    assert data.endswith(b"\n\n")
    assert data.count(b"\n\n") == 1
    fields: dict[str, str] = {}
    for line in data.decode().split("\n")[:-2]:
        name, _, value = line.partition(": ")
        assert name not in fields
        fields[name] = value
    return fields


def test_frame_has_the_cursor_the_kind_and_the_event() -> None:
    event = add_envelope(ContentDeltaEvent(delta="Hi", step="1"), 3, 2)
    fields = parse_frame(encode_frame(event))
    assert fields["id"] == "run/1.3.2"
    assert fields["event"] == "content-delta"
    assert Event.from_json(fields["data"], strict=True) == event


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb", "a\rb", "data: x\n\ndata: y", "\u2028\u2029\x85", "\x00", "🙂", ": no"]
)
def test_no_text_breaks_a_frame(text: str) -> None:  # L139
    event = add_envelope(CustomEvent(name=text, data={text: [text]}, metadata={"public": {"k": text}}))
    assert Event.from_json(parse_frame(encode_frame(event))["data"], strict=True) == event


@given(st.text(), st.text(min_size=1))
def test_event_in_a_frame_is_unchanged_for_any_text(delta: str, name: str) -> None:  # L139
    for event in (
        add_envelope(ContentDeltaEvent(delta=delta, step="1")),
        add_envelope(CustomEvent(name=name, data=delta)),
    ):
        data = encode_frame(event)
        assert Event.from_json(parse_frame(data)["data"], strict=True) == event
        assert b"\r" not in data


def test_private_fields_are_omitted() -> None:
    event = add_envelope(ContentCompleteEvent(content="x", provider_state={"signature": "secret"}))
    assert b"secret" not in encode_frame(event)
    assert b"providerState" not in encode_frame(event)
    assert b"secret" in event.to_json()


def test_event_is_encoded_once_for_all_readers() -> None:
    event = add_envelope(CustomEvent(name="x"))
    assert encode_frame(event) is encode_frame(event)


def test_final_event_can_be_read_as_plain_json() -> None:
    info = ErrorInfo(code="canceled", message="no\nroom")
    event = add_envelope(StatusUpdateEvent(state="canceled", final=True, reason="canceled", error=info))
    data = orjson.loads(parse_frame(encode_frame(event))["data"])
    assert data["final"] is True
    assert data["error"]["message"] == "no\nroom"
    assert data["timestamp"] == "2023-11-14T22:13:20.123Z"


async def test_frames_end_with_the_events() -> None:  # L136
    events = rx.of(*(add_envelope(CustomEvent(name="x"), seq) for seq in (1, 2, 3)))
    frames = [data async for data in Frames(aiter(RecordedStream(events)), None)]
    assert [parse_frame(data)["id"] for data in frames] == ["run/1.1.0", "run/1.2.0", "run/1.3.0"]
    await assert_no_tasks()


@pytest.mark.parametrize("error", [ZeroDivisionError, TimeoutError])
async def test_error_of_the_source_is_raised(error: type[Exception]) -> None:
    broken = rx.concat(rx.of(add_envelope(CustomEvent(name="x"))), rx.throw(error()))
    stream = Frames(aiter(RecordedStream(broken)), 15)
    assert b"custom" in await anext(stream)
    # Do not mistake a timeout of the log for silence.
    with pytest.raises(error):
        await anext(stream)
    await assert_no_tasks()


class Source:
    """Event source with a counter of its subscriptions and disposals."""

    def __init__(self) -> None:
        self.subject: Subject[Event] = Subject()
        self.subscribed = self.closed = 0

    def frames(self, heartbeat: float | None) -> AsyncIterator[bytes]:
        def subscribe(observer: rx.abc.ObserverBase[Event], scheduler: object = None) -> rx.abc.DisposableBase:
            self.subscribed += 1
            return CompositeDisposable(self.subject.subscribe(observer), Disposable(close))

        def close() -> None:
            self.closed += 1

        return Frames(aiter(RecordedStream(rx.Observable(subscribe))), heartbeat)


def receive(heartbeat: float | None, pauses: list[float]) -> list[tuple[float, bytes]]:
    """Return the arrival times and data of frames, for events with these pauses before them."""
    with virtual_time() as time:

        async def main() -> list[tuple[float, bytes]]:
            source = Source()

            async def feed() -> None:
                for seq, pause in enumerate(pauses, start=1):
                    await asyncio.sleep(pause)
                    source.subject.on_next(add_envelope(CustomEvent(name="x"), seq))
                source.subject.on_completed()

            feeding = asyncio.ensure_future(feed())
            arrivals = [(time.now, data[:9]) async for data in source.frames(heartbeat)]
            await feeding
            return arrivals

        return time.run(main())


def test_heartbeat_is_sent_after_each_silence() -> None:  # L135
    beat = HEARTBEAT[:9]
    assert receive(15, [40, 1, 14]) == [
        (15, beat),
        (30, beat),
        (40, b"id: run/1"),
        (41, b"id: run/1"),
        (55, b"id: run/1"),
    ]


def test_no_heartbeat_is_sent_when_disabled() -> None:  # L135
    assert receive(None, [100]) == [(100, b"id: run/1")]


def test_heartbeat_is_a_comment() -> None:
    assert HEARTBEAT.startswith(b":")
    assert HEARTBEAT.endswith(b"\n\n")


async def test_client_that_disconnects_while_waiting_closes_the_source() -> None:  # L137
    source = Source()

    async def body() -> None:
        async for _ in source.frames(None):
            pass

    reader = asyncio.ensure_future(body())
    await run_ready_tasks()
    reader.cancel()
    await asyncio.wait([reader])
    await assert_no_tasks()
    assert source.closed == 1


async def test_cancelled_read_of_frames_can_be_repeated() -> None:  # P24
    source = Source()
    stream = source.frames(None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.001)
    assert source.closed == 0
    source.subject.on_next(add_envelope(CustomEvent(name="x"), 9))
    assert parse_frame(await asyncio.wait_for(anext(stream), 1))["id"] == "run/1.9.0"
    await stream.aclose()  # type: ignore[attr-defined]
    assert source.closed == 1


async def test_disconnect_at_a_heartbeat_during_the_end_logs_no_error() -> None:
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    source = Source()
    stream = source.frames(0.001)
    assert await anext(stream) == HEARTBEAT
    source.subject.on_completed()
    await run_ready_tasks()
    await stream.aclose()  # type: ignore[attr-defined]
    del stream
    gc.collect()
    await assert_no_tasks()
    assert logged == []
    assert source.closed == 1


async def test_unread_frames_subscribe_to_nothing() -> None:
    source = Source()
    stream = source.frames(None)
    await run_ready_tasks()
    await stream.aclose()  # type: ignore[attr-defined]
    await assert_no_tasks()
    assert source.subscribed == 0


async def test_event_during_a_heartbeat_is_not_lost() -> None:
    source = Source()
    stream = source.frames(0.001)
    assert await anext(stream) == HEARTBEAT
    source.subject.on_next(add_envelope(CustomEvent(name="x"), 9))
    assert parse_frame(await anext(stream))["id"] == "run/1.9.0"
    await stream.aclose()  # type: ignore[attr-defined]
    await assert_no_tasks()


async def test_timer_is_started_only_for_a_wait() -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at
    events = [add_envelope(CustomEvent(name="x"), seq) for seq in range(1, 21)]
    source = Source()
    stream = source.frames(15)
    first = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]
    await run_ready_tasks()
    loop.call_at = lambda when, *more, **kw: timers.append(when) or call_at(when, *more, **kw)  # type: ignore[method-assign]
    try:
        for event in events:
            source.subject.on_next(event)
        received = [await first, *[await anext(stream) for _ in events[1:]]]
        assert timers == []
    finally:
        del loop.call_at
    assert received == [encode_frame(event) for event in events]
    await stream.aclose()  # type: ignore[attr-defined]
    await assert_no_tasks()
