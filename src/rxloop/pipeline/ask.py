"""Awaitable questions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaError
from typing_extensions import override

from rxloop.errors import ConfigurationError, RxloopError, ToolError
from rxloop.protocol.events import AuthRequiredEvent, PendingInput
from rxloop.protocol.links import find_link_fault
from rxloop.support.json_schema import explain_schema_error, find_mismatch

T = TypeVar("T")

log = logging.getLogger("rxloop")


class Question(Coroutine[Any, Any, T]):
    """Awaitable question. Using it in a condition without `await` raises an error.

    Args:
        prompt: Question text.
        ask: Function that asks the question and waits for the answer.
        method: Name of the calling method, for messages.
    """

    __slots__ = ("_ask", "_coroutine", "method", "prompt", "reported")

    def __init__(self, prompt: str, ask: Callable[[], Coroutine[Any, Any, T]], method: str = "ctx.ask") -> None:
        self.prompt = prompt
        self.method = method
        self.reported = False
        """True if the missing `await` was reported."""
        self._ask: Callable[[], Coroutine[Any, Any, T]] | None = ask
        self._coroutine: Coroutine[Any, Any, T] | None = None

    @property
    def forgotten(self) -> bool:
        """True if the question was never awaited."""
        return self._coroutine is None

    def _start(self) -> Coroutine[Any, Any, T]:
        if self._ask is not None:
            # The function refers to its context, which refers to this question.
            self._coroutine, self._ask = self._ask(), None
        assert self._coroutine is not None
        return self._coroutine

    @override
    def __await__(self) -> Generator[Any, Any, T]:
        return self._start().__await__()

    @override
    def send(self, value: Any, /) -> Any:
        """Implement the coroutine protocol."""
        return self._start().send(value)

    @override
    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        """Implement the coroutine protocol, for example to cancel the question."""
        return self._start().throw(typ if val is None else val)

    @override
    def close(self) -> None:
        """Implement the coroutine protocol."""
        self._start().close()

    def __bool__(self) -> NoReturn:
        self.reported = True
        method = self.method
        raise RxloopError(f"{method}({self.prompt!r}) was not awaited; use `await {method}(...)` in an async function")

    def __del__(self) -> None:
        if self._coroutine is None and not self.reported:
            log.error("%s(%r) was never awaited; use `await %s(...)`", self.method, self.prompt, self.method)


Read = Callable[[Any], Any]
"""Function that converts an answer. It raises `ValueError` for invalid answers."""

_MAX_LENGTH = 8_000

_KINDS: dict[Any, Any] = {bool: "confirmation", str: "text"}


def make_question(prompt: str, answer: Any, options: Sequence[Any] | None) -> tuple[PendingInput, Read]:
    """Return a typed question, with a function that validates its answer.

    Args:
        prompt: Question text.
        answer: Any type supported by pydantic.
        options: Allowed answers.

    Raises:
        ConfigurationError: If pydantic does not support the type, or an option has another type, so that no answer
            would be valid.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(answer)
    except SchemaError as error:
        raise ConfigurationError(f"cannot validate answer={answer!r}: {explain_schema_error(error)}") from error

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
    for option in question.options or ():
        # Options that are not JSON, such as dates, are only compared with the values of `on_input`.
        if isinstance(option, str | int | float) and (mismatch := find_mismatch(option, question.answer_schema)):
            hint = "pass their type, as in ctx.ask(prompt, str, options=[...])"
            raise ConfigurationError(f"the option {option!r} cannot answer {prompt!r}: {mismatch}; {hint}")
    return question, read


def make_auth_question(provider: str, url: str | None, public_key: str | None) -> PendingInput:
    """Return a question for a credential.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    for name, value in (("provider", provider), ("public_key", public_key)):
        item: Any = value
        if (item is not None or name == "provider") and not (isinstance(item, str) and 0 < len(item) <= _MAX_LENGTH):
            raise ConfigurationError(f"{name} must be a string of at most {_MAX_LENGTH:,} characters, got {item!r}")
    fault = None if url is None else find_link_fault(url, _MAX_LENGTH)
    if fault is not None:
        raise ConfigurationError(f"url is not a page that a person can open: {fault}")
    event = AuthRequiredEvent(input_id="", provider=provider, url=url, public_key=public_key)
    return event.input


def check_credential(provider: str, credential: Any) -> Any:
    """Return the credential.

    Raises:
        ToolError: If the user declined.
    """
    if credential is None:
        raise ToolError(f"The user declined to sign in to {provider}.")
    return credential
