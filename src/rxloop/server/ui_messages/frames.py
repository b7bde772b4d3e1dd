"""Chunks as the bytes of a stream of server-sent events."""

from __future__ import annotations

from typing import Any, cast

import orjson
from reactivex import Observable, abc

from rxloop.operators.views._types import View
from rxloop.server.ui_messages.chunks import Chunk


def with_done() -> View[Chunk, Chunk | None]:
    """Put the end of the stream behind the last chunk: None, which `encode` writes as `[DONE]`.

    ::

        source         --a--b--|
        with_done()    --a--b--(N|)      N None
    """

    def operator(source: Observable[Chunk]) -> Observable[Chunk | None]:
        def subscribe(
            observer: abc.ObserverBase[Chunk | None], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_completed() -> None:
                observer.on_next(None)
                observer.on_completed()

            return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def encode(chunk: Chunk | None) -> bytes:
    """Write a chunk as a frame; None is the `[DONE]` behind the last one."""
    if chunk is None:
        return b"data: [DONE]\n\n"
    data = orjson.dumps(chunk)
    if b'"__proto__"' in data or b'"prototype"' in data:
        # A client refuses the stream for them, and they may come from anywhere, such as the result of a tool.
        data = orjson.dumps(_without_prototypes(chunk))
    return b"data: %b\n\n" % data


def _without_prototypes(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_prototypes(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    kept = {key: _without_prototypes(each) for key, each in given.items() if key != "__proto__"}
    if isinstance(made := kept.get("constructor"), dict):
        cast("dict[str, Any]", made).pop("prototype", None)
    return kept
