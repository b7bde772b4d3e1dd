"""Tools made of functions: `@tool`."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, cast, overload

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.seams import Tool
from rxloop.tools import _docstring
from rxloop.tools._calling import caller_of
from rxloop.tools._result import MAX_RESULT
from rxloop.tools._schema import Parameters, plain_function

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", contravariant=True)
Enabled = Callable[[RunContext[Any]], bool]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Function(Protocol):
    """A function, as it may stand among the tools of an agent. A `FunctionTool` is not one: its deps have to fit."""

    @property
    def __name__(self) -> str:
        """What the model calls it."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Carry out one call."""
        ...


class FunctionTool(Generic[C, P, R]):
    """A function that a model can call, and that can still be called as the function.

    Of a function whose first parameter is a `RunContext[Deps]` it is a tool for agents with these deps; any other fits
    every agent.

    The schema of its parameters comes from the type hints; the descriptions come from a Google-style docstring, or
    from `Annotated[..., Field(description=...)]`, which goes before it. A parameter annotated `RunContext` gets the
    context of the run and is not shown to the model.
    """

    definition: ToolDefinition
    """Name, description and schema, as they are offered to the model."""
    timeout: float | None
    """Seconds until a call is cut off; None means no limit."""
    idempotent: bool
    """Whether a call that was interrupted may be made again."""
    read_only: bool
    """Whether a call changes nothing, so that it may be started early, and for nothing."""
    approve: bool | str
    """Whether a person must agree to each call; a text is the question."""
    max_result: int | None
    """Characters of a result that the model reads; None means no limit."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        idempotent: bool = False,
        read_only: bool = False,
        approve: bool | str = False,
        hidden: bool = False,
        enabled: Enabled | None = None,
        strict: bool = False,
        max_result: int | None = MAX_RESULT,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a tool of a function; `tool` is the usual way, and explains the arguments.

        Args:
            function: The function.
            name: See `tool`.
            description: See `tool`.
            timeout: See `tool`.
            idempotent: See `tool`.
            read_only: See `tool`.
            approve: See `tool`.
            hidden: See `tool`.
            enabled: See `tool`.
            strict: See `tool`.
            max_result: See `tool`.
            local_names: Names that annotations written as text may use beside those of the function's module.
        """
        # First, because it copies the attributes of the function.
        functools.update_wrapper(self, function)
        name = name if name is not None else _name_of(function)
        check_name(name)
        if timeout is not None and not (isinstance(cast("Any", timeout), int | float) and timeout > 0):
            raise ConfigurationError(f"tool {name!r}: timeout must be more than 0 seconds, not {timeout!r}")
        if enabled is not None and inspect.iscoroutinefunction(enabled):
            raise ConfigurationError(f"tool {name!r}: enabled= takes a plain function, not an async one")
        given: Any = max_result
        if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
            raise ConfigurationError(f"tool {name!r}: max_result={max_result!r} is not a number of characters")
        docstring = _docstring.parse(_documentation(function))
        self._function = function
        self._parameters = Parameters(function, name, docstring.parameters, local_names, strict=strict)
        if not isinstance(approve, bool):
            # Imported here, because importing rxloop is quicker without.
            from rxloop.tools._approval import check_approve

            check_approve(name, approve, self._parameters.schema.get("properties", {}))
        self._call = caller_of(function, name)
        self._enabled = enabled
        self.definition = ToolDefinition(
            name=name,
            description=inspect.cleandoc(description) if description is not None else docstring.description,
            parameters=self._parameters.schema,
            strict=strict,
            hidden=hidden,
        )
        self.timeout = timeout
        self.idempotent = idempotent or read_only
        self.read_only = read_only
        self.approve = approve
        self.max_result = max_result

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no validation, no thread, no timeout."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.definition.name}>"

    @property
    def asks(self) -> bool:
        """Whether a function of the user's decides if the tool is offered."""
        return self._enabled is not None

    def enabled(self, ctx: RunContext[C]) -> bool:
        """Whether the tool is offered in this run now.

        Raises:
            RxloopError: The function that decides failed, or did not give True or False.
        """
        if self._enabled is None:
            return True
        try:
            found: Any = self._enabled(ctx)
        except Exception as error:
            raise RxloopError(
                f"enabled= of the tool {self.definition.name!r} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, bool):
            if inspect.iscoroutine(found):
                found.close()
            raise RxloopError(
                f"enabled= of the tool {self.definition.name!r} gave {found!r}: it has to give True or False"
            )
        return found

    async def call(self, arguments: dict[str, Any], ctx: RunContext[C]) -> Any:
        """Validate the arguments and carry out one call.

        Raises:
            ToolError: The arguments do not fit; the text names each field and what is wrong with it.
        """
        positional, keyword = self._parameters.bind(arguments, ctx)
        return await self._call(positional, keyword, ctx)

    async def aclose(self) -> None:
        """Close what the tool has opened; a function opens nothing."""


class ToolOptions(TypedDict, total=False):
    """What `tool` takes beside the function."""

    name: str | None
    description: str | None
    timeout: float | None
    idempotent: bool
    read_only: bool
    approve: bool | str
    hidden: bool
    enabled: Enabled | None
    strict: bool
    max_result: int | None


class _MakesTool(Protocol):
    @overload
    def __call__(
        self, function: Callable[Concatenate[RunContext[C], P], R], /
    ) -> FunctionTool[C, Concatenate[RunContext[C], P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTool[object, P, R]: ...


@overload
def tool(
    function: Callable[Concatenate[RunContext[C], P], R], /, **options: Unpack[ToolOptions]
) -> FunctionTool[C, Concatenate[RunContext[C], P], R]: ...
@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> FunctionTool[object, P, R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> _MakesTool: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    idempotent: bool = False,
    read_only: bool = False,
    approve: bool | str = False,
    hidden: bool = False,
    enabled: Enabled | None = None,
    strict: bool = False,
    max_result: int | None = MAX_RESULT,
) -> Any:
    """Make a tool of a function; it stays callable as before.

    An async function runs on the event loop, any other in a thread that has the context variables of the run. A
    generator reports progress: each text that it yields is progress at once, each event goes on the stream at once, and
    any other value becomes progress, as text, when the next one comes. The result is what the generator returns, or
    else the last value that it yielded, not counting events.

    Example::

        @tool(timeout=10)
        async def get_weather(ctx: RunContext[Deps], city: str) -> dict[str, float]:
            \"\"\"Current weather for a city, such as "Oslo".\"\"\"

    Args:
        function: The function; with `tool(name=...)` it follows as a decorator's does.
        name: What the model calls it; the name of the function otherwise.
        description: What it is for; otherwise the docstring without its sections on parameters and results.
        timeout: Seconds until a call is cut off.
        idempotent: A call that was interrupted may be made again.
        read_only: A call changes nothing, here or elsewhere, and tells nobody anything. It may be made again, and with
            `op.run_tools(early=True)` also in vain: before the model has finished its message.
        approve: A person must agree to each call. A text is the question that is put, with parameters in braces, such
            as `"Refund {amount}?"`.
        hidden: Calls of it are not for clients.
        enabled: Decides for each model request whether the tool is offered; a tool that was offered may be called.
        strict: Ask the vendor for arguments that fit the schema; all parameters are then required.
        max_result: Characters of a result that the model reads; of a longer one it gets the beginning, the end and a
            note on what is missing. None means no limit. The value on the stream stays whole.

    Raises:
        ConfigurationError: The name is not one that vendors take, or a parameter cannot be described to a model.
    """
    # Annotations written as text may name what is local to the function in which the decorator stands.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    local_names: Mapping[str, Any] | None = None if frame.f_locals is frame.f_globals else frame.f_locals

    def make(function: Callable[..., Any]) -> FunctionTool[Any, ..., Any]:
        return FunctionTool(
            function,
            name=name,
            description=description,
            timeout=timeout,
            idempotent=idempotent,
            read_only=read_only,
            approve=approve,
            hidden=hidden,
            enabled=enabled,
            strict=strict,
            max_result=max_result,
            local_names=local_names,
        )

    return make if function is None else make(function)


def is_tool(value: object) -> bool:
    """Tell whether a value has what a `Tool` has."""
    return not isinstance(value, type) and hasattr(value, "definition") and callable(getattr(value, "call", None))


def as_tool(value: Callable[..., Any] | Tool) -> Tool:
    """Give the value, if it is a tool, or else a tool made of the function.

    Raises:
        ConfigurationError: It is neither, or the function cannot be described to a model.
    """
    if is_tool(value):
        return cast("Tool", value)
    if isinstance(value, type):
        raise ConfigurationError(f"a tool is a function or an object; {value.__qualname__} is a class: make one of it")
    if callable(value):
        return FunctionTool(value)
    hint = ""
    if isinstance(value, list | tuple):
        hint = ": put a star before it, tools=[*...]"
    elif hasattr(value, "as_tool"):
        hint = ": give its as_tool()"
    raise ConfigurationError(f"a tool is a function or has `definition` and `call`, but this is {value!r}{hint}")


def check_name(name: str) -> None:
    """Refuse a name that vendors refuse.

    Raises:
        ConfigurationError: They would.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the name of tool {name!r} is not one that vendors take: give it name=... of 1 to 64 of a-z, A-Z, 0-9, "
            "_ and -"
        )


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    if isinstance(function, str):
        raise ConfigurationError(f"{function!r} is not a function: give a name as @tool(name={function!r})")
    raise ConfigurationError(f"a tool made of {function!r} needs a name: it has none of its own")


def _documentation(function: Callable[..., Any]) -> str | None:
    # A partial and an object with __call__ have the docstring of their class, which says nothing about the call.
    if inspect.isroutine(function) or hasattr(function, "__wrapped__"):
        return function.__doc__
    return plain_function(function).__doc__
