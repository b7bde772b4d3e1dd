from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from rxloop.support.tasks import close_iterator


async def test_a_generator_that_somebody_still_holds_is_closed_at_once() -> None:
    closed: list[str] = []

    async def letters() -> AsyncGenerator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            closed.append("closed")

    held = letters()
    assert await anext(held) == "a"
    await close_iterator(held)
    assert closed == ["closed"]


async def test_an_iterator_that_cannot_be_closed_is_left_alone() -> None:
    class Once(AsyncIterator[str]):
        async def __anext__(self) -> str:
            return "a"

    source = Once()
    await close_iterator(source)
    assert await anext(source) == "a"
