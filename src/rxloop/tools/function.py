"""Tools made of functions."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, cast, overload

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.tools.execution import caller_of, label
from rxloop.tools.result import MAX_RESULT

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


class CallOptions(TypedDict, total=False):
    """Options of function tools and agent tools."""

    timeout: float | None
    """Time limit of a call in seconds. Unlimited by default."""
    approve: bool | str
    """True if calls require approval. A string is the question, formatted with the arguments: `"Refund {amount}?"`."""
    hidden: bool
    """True if calls are not visible to clients."""
    enabled: Enabled | None
    """Function that decides for each model request whether to offer the tool. The model may call an offered tool."""
    max_result: int | None
    """Maximum number of characters that the model reads of a result. The default is 100,000, None disables the limit.
    Longer results are truncated in the middle and contain a note. Events always contain the full value."""


class ToolOptions(CallOptions, total=False):
    """Options of `tool` and `FunctionTool`."""

    name: str | None
    """Name of the tool. Defaults to the name of the function."""
    description: str | None
    """Description of the tool. Defaults to the docstring without the sections for parameters and results."""
    idempotent: bool
    """True if an interrupted call may be repeated."""
    read_only: bool
    """True if calls have no side effects and disclose no data. They can be repeated, and `op.run_tools(early=True)` can
    start them before the message is complete and discard their results."""
    strict: bool
    """True if the vendor should enforce the schema of the arguments; all parameters are then required."""


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
    takes_context: bool
    """True if a call gets the context of the run, without which it cannot ask a person."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        local_names: Mapping[str, Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        """Make a tool of a function; `tool` is the usual way.

        Args:
            function: The function.
            local_names: Names that annotations written as text may use beside those of the function's module.
            **options: See `ToolOptions`.

        Raises:
            ConfigurationError: As for `tool`.
            TypeError: An option is unknown.
        """
        # Imported here: a program without tools need not load what reads signatures and docstrings.
        from rxloop.tools.signature import Parameters

        _check_names("FunctionTool.__init__", options)
        # First, because it copies the attributes of the function.
        functools.update_wrapper(self, function)
        name = options.get("name")
        name = name if name is not None else _name_of(function)
        check_name(name)
        _check_options(name, options)
        description = options.get("description")
        strict = options.get("strict", False)
        self._function = function
        self._parameters = Parameters(function, name, local_names, strict=strict)
        self.approve = options.get("approve", False)
        if not isinstance(self.approve, bool):
            # Imported here, because importing rxloop is quicker without.
            from rxloop.tools.approval import check_approve

            check_approve(name, self.approve, self._parameters.schema.get("properties", {}))
        self._call = caller_of(function, name)
        self._enabled = options.get("enabled")
        self.definition = ToolDefinition(
            name=name,
            description=inspect.cleandoc(description) if description is not None else self._parameters.description,
            parameters=self._parameters.schema,
            strict=strict,
            hidden=options.get("hidden", False),
        )
        self.timeout = options.get("timeout")
        self.read_only = options.get("read_only", False)
        self.idempotent = options.get("idempotent", False) or self.read_only
        self.max_result = options.get("max_result", MAX_RESULT)
        self.takes_context = self._parameters.takes_context

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


def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
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
        **options: See `ToolOptions`.

    Raises:
        ConfigurationError: The name is not one that vendors take, or a parameter cannot be described to a model.
        TypeError: An option is unknown.
    """
    _check_names("tool", options)
    # Annotations written as text may name what is local to the function in which the decorator stands.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    local_names: Mapping[str, Any] | None = None if frame.f_locals is frame.f_globals else frame.f_locals

    make = functools.partial(FunctionTool[Any, ..., Any], local_names=local_names, **options)
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


def _check_names(callee: str, options: ToolOptions) -> None:
    """Raise an error for unknown options.

    Raises:
        TypeError: If an option is unknown.
    """
    for name in options:
        if name not in ToolOptions.__annotations__:
            raise TypeError(f"{callee}() got an unexpected keyword argument {name!r}")


def _check_options(name: str, options: ToolOptions) -> None:
    """Validate the values of options.

    Raises:
        ConfigurationError: If a value is invalid.
    """
    timeout: Any = options.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ConfigurationError(f"tool {name!r}: timeout must be more than 0 seconds, not {timeout!r}")
    enabled = options.get("enabled")
    if enabled is not None and inspect.iscoroutinefunction(enabled):
        raise ConfigurationError(f"tool {name!r}: enabled= takes a plain function, not an async one")
    size: Any = options.get("max_result")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ConfigurationError(f"tool {name!r}: max_result={size!r} is not a number of characters")


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    if isinstance(function, str):
        raise ConfigurationError(f"{function!r} is not a function: give a name as @tool(name={function!r})")
    raise ConfigurationError(f"a tool made of {label(function)} needs a name: it has none of its own")
