from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from rxloop.support.tasks import close_iterator


async def test_referenced_generator_is_closed_immediately() -> None:
    closed: list[str] = []

    async def generate() -> AsyncGenerator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            closed.append("closed")

    generator = generate()
    assert await anext(generator) == "a"
    await close_iterator(generator)
    assert closed == ["closed"]


async def test_iterator_without_aclose_is_not_closed() -> None:
    class Endless(AsyncIterator[str]):
        async def __anext__(self) -> str:
            return "a"

    source = Endless()
    await close_iterator(source)
    assert await anext(source) == "a"
