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
from rxloop.support.json_schema import explain_schema_error

T = TypeVar("T")

log = logging.getLogger("rxloop")


class Asked(Coroutine[Any, Any, T]):
    """A question that is put when it is awaited. `if not ctx.ask(...)`, with no await, is an error and not a yes.

    Args:
        prompt: The question.
        put: Puts it, and waits for the answer.
        method: What was called to make it.
    """

    __slots__ = ("_coroutine", "_put", "method", "prompt", "reported")

    def __init__(self, prompt: str, put: Callable[[], Coroutine[Any, Any, T]], method: str = "ctx.ask") -> None:
        self.prompt = prompt
        self.method = method
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
        method = self.method
        raise RxloopError(
            f"{method}({self.prompt!r}) was not awaited: write `await {method}(...)`, in an async function"
        )

    def __del__(self) -> None:
        if self._coroutine is None and not self.reported:
            words = "nobody awaited %s(%r), so that it was never put: write `await %s(...)`"
            log.error(words, self.method, self.prompt, self.method)


Read = Callable[[Any], Any]
"""Makes of an answer what whoever asks is to get; raises ValueError if it does not fit."""

_LONGEST = 8_000

_KINDS: dict[Any, Any] = {bool: "confirmation", str: "text"}


def question_of(prompt: str, answer: Any, options: Sequence[Any] | None) -> tuple[PendingInput, Read]:
    """Make a question whose answer has a type, and what reads the answer.

    Args:
        prompt: The question.
        answer: The type; anything that pydantic validates.
        options: The values to choose from.

    Raises:
        ConfigurationError: Answers of the type cannot be checked.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(answer)
    except SchemaError as error:
        raise ConfigurationError(f"answer={answer!r} cannot be checked: {explain_schema_error(error)}") from error

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


def sign_in(provider: str, url: str | None, public_key: str | None) -> PendingInput:
    """Make the question for a credential.

    Raises:
        ConfigurationError: It cannot be put so to a person.
    """
    for name, value in (("provider", provider), ("url", url), ("public_key", public_key)):
        given: Any = value
        if (given is not None or name == "provider") and not (isinstance(given, str) and 0 < len(given) <= _LONGEST):
            raise ConfigurationError(f"require_auth({name}={given!r}): give a text of {_LONGEST:,} characters at most")
    if url is not None and not url.startswith(("https://", "http://")):
        # A person is going to click on it.
        raise ConfigurationError(f"require_auth(url={url!r}): give one that begins with https://")
    asked = AuthRequiredEvent(input_id="", provider=provider, url=url, public_key=public_key)
    return asked.input


def given_credential(provider: str, credential: Any) -> Any:
    """Give the credential, unless there is none.

    Raises:
        ToolError: The person has declined.
    """
    if credential is None:
        raise ToolError(f"The user declined to sign in to {provider}.")
    return credential
