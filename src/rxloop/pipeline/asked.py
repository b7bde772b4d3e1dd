"""What `ctx.ask` gives: a question that has to be awaited, and says so where it is not; and how questions are made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from rxloop.errors import RxloopError
from rxloop.protocol.questions import PendingInput

T = TypeVar("T")
log = logging.getLogger("rxloop")


class Asked(Coroutine[Any, Any, T]):
    """A question that is put when it is awaited. `if not ctx.ask(...)`, with no await, is an error and not a yes.

    Args:
        prompt: The question.
        put: Puts it, and waits for the answer.
    """

    __slots__ = ("_coroutine", "_put", "prompt", "reported")

    def __init__(self, prompt: str, put: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.prompt = prompt
        self.reported = False
        """Whether somebody has said that nobody awaited it."""
        self._put = put
        self._coroutine: Coroutine[Any, Any, T] | None = None

    @property
    def forgotten(self) -> bool:
        """Whether nobody has awaited it."""
        return self._coroutine is None

    def _begun(self) -> Coroutine[Any, Any, T]:
        if self._coroutine is None:
            self._coroutine = self._put()
        return self._coroutine

    @override
    def __await__(self) -> Generator[Any, Any, T]:
        return self._begun().__await__()

    @override
    def send(self, value: Any, /) -> Any:
        """Go on, as a task does."""
        return self._begun().send(value)

    @override
    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        """Raise something in it, as a task that is cancelled does."""
        return self._begun().throw(typ if val is None else val)

    @override
    def close(self) -> None:
        """Stop waiting."""
        self._begun().close()

    def __bool__(self) -> NoReturn:
        self.reported = True
        raise RxloopError(f"ctx.ask({self.prompt!r}) was not awaited: write `await ctx.ask(...)`, in an async function")

    def __del__(self) -> None:
        if self._coroutine is None and not self.reported:
            log.error("nobody awaited ctx.ask(%r), so that it was never put: write `await ctx.ask(...)`", self.prompt)


Read = Callable[[Any], Any]
"""Makes of an answer what whoever asks is to get; raises ValueError if it does not fit."""
_KINDS: dict[Any, Any] = {bool: "confirmation", str: "text"}


def question_of(prompt: str, answer: Any, options: Sequence[Any] | None) -> tuple[PendingInput, Read]:
    """Make a question whose answer has a type, and what reads the answer.

    Args:
        prompt: The question.
        answer: The type; anything that pydantic validates.
        options: The values to choose from.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(answer)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from error

    question = PendingInput(
        input_id="",
        prompt=prompt,
        input_kind="selection" if options is not None else _KINDS.get(answer, "data"),
        options=None if options is None else list(options),
        answer_schema=adapter.json_schema(),
    )
    return question, read
