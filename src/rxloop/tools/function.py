"""Tools created from functions."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, cast, overload

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.support.misuse import check_minimum, check_positive, check_type
from rxloop.tools.execution import describe, make_caller
from rxloop.tools.result import MAX_RESULT_CHARS

P = ParamSpec("P")

R = TypeVar("R")

C = TypeVar("C", contravariant=True)

Enabled = Callable[[RunContext[Any]], bool]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Function(Protocol):
    """Function type for agent tools. Excludes `FunctionTool`, because its dependencies are checked separately."""

    @property
    def __name__(self) -> str:
        """Name of the tool."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a call."""
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
    """A function that a model can call. It is still callable as a function.

    If the first parameter is a `RunContext[Deps]`, the tool is for agents with these deps. Other tools fit every agent.

    The schema of the parameters is created from the type hints. Descriptions come from a Google-style docstring or from
    `Annotated[..., Field(description=...)]`, which takes precedence. A parameter annotated with `RunContext` receives
    the context of the run and is not shown to the model.
    """

    definition: ToolDefinition
    """Name, description and schema for the model."""
    timeout: float | None
    """Call timeout in seconds, or None for no limit."""
    idempotent: bool
    """True if an interrupted call may be repeated."""
    read_only: bool
    """True if calls have no side effects, so that they may be started early and discarded."""
    approve: bool | str
    """True if calls require approval. A string is the question."""
    max_result: int | None
    """Maximum result length for the model in characters, or None for no limit."""
    takes_context: bool
    """True if the function receives the context of the run, which it needs to ask questions."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        local_names: Mapping[str, Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        """Create a tool from a function. Prefer `tool`.

        Args:
            function: The function.
            local_names: Local names for annotations that are strings, in addition to the names of the function's
                module.
            **options: See `ToolOptions`.

        Raises:
            ConfigurationError: As for `tool`.
            TypeError: If an option is unknown.
        """
        # Imported lazily, because programs without tools do not need the parsers for signatures and docstrings.
        from rxloop.tools.signature import Parameters

        _check_names("FunctionTool.__init__", options)
        if isinstance(function, type):
            raise ConfigurationError(
                f"a tool must be a function, got class {function.__qualname__}; pass a method of an instance"
            )
        # Called first, because it copies function attributes.
        functools.update_wrapper(self, function)
        name = options.get("name")
        name = name if name is not None else _get_function_name(function)
        check_name(name)
        _check_options(name, options)
        description = options.get("description")
        strict = options.get("strict", False)
        self._function = function
        self._parameters = Parameters(function, name, local_names, strict=strict)
        self.approve = options.get("approve", False)
        if not isinstance(self.approve, bool):
            # Imported lazily to speed up the import of rxloop.
            from rxloop.tools.approval import check_approve

            check_approve(name, self.approve, self._parameters.schema.get("properties", {}))
        self._call = make_caller(function, name)
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
        self.max_result = options.get("max_result", MAX_RESULT_CHARS)
        self.takes_context = self._parameters.takes_context

    if not TYPE_CHECKING:
        # Type checkers find unknown attributes on their own if this method is missing.

        def __setattr__(self, name: str, value: Any) -> None:
            # The definition contains these options, so an attribute would have no effect.
            if name in ("name", "description", "hidden", "strict") and not hasattr(type(self), name):
                raise AttributeError(f"cannot set {name!r} of a tool; create the tool with @tool({name}=...)")
            super().__setattr__(name, value)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without validation, thread or timeout."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.definition.name}>"

    @property
    def is_conditional(self) -> bool:
        """True if a function of the user decides whether the tool is offered."""
        return self._enabled is not None

    def enabled(self, ctx: RunContext[C]) -> bool:
        """Return True if the tool is currently offered in this run.

        Raises:
            RxloopError: If the function of the user fails or does not return a bool.
        """
        if self._enabled is None:
            return True
        try:
            is_enabled: Any = self._enabled(ctx)
        except Exception as error:
            raise RxloopError(
                f"enabled= of the tool {self.definition.name!r} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(is_enabled, bool):
            if inspect.iscoroutine(is_enabled):
                is_enabled.close()
            raise RxloopError(f"enabled= of the tool {self.definition.name!r} must return a bool, got {is_enabled!r}")
        return is_enabled

    async def call(self, arguments: dict[str, Any], ctx: RunContext[C]) -> Any:
        """Validate the arguments and execute a call.

        Raises:
            ToolError: If the arguments are invalid. The message lists the invalid fields.
        """
        positional, keyword = self._parameters.bind(arguments, ctx)
        return await self._call(positional, keyword, ctx)

    async def aclose(self) -> None:
        """Do nothing, because functions have no resources."""


class _ToolDecorator(Protocol):
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
def tool(**options: Unpack[ToolOptions]) -> _ToolDecorator: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Create a tool from a function, which is still callable as before.

    An async function runs on the event loop, any other function in a thread with the context variables of the run. The
    values that a generator yields are published: events and strings (as progress) immediately, other values as progress
    when the next value is yielded. The result is the value that the generator returns, or otherwise the last value that
    it yielded, not counting events.

    Example::

        @tool(timeout=10)
        async def get_weather(ctx: RunContext[Deps], city: str) -> dict[str, float]:
            \"\"\"Current weather for a city, such as "Oslo".\"\"\"

    Args:
        function: The function. Omitted if `tool(name=...)` is used as a decorator.
        **options: See `ToolOptions`.

    Raises:
        ConfigurationError: If vendors do not accept the name, or a parameter cannot be described to a model.
        TypeError: If an option is unknown.
    """
    _check_names("tool", options)
    # Annotations that are strings may refer to names that are local to the decorated function's scope.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    local_names: Mapping[str, Any] | None = None if frame.f_locals is frame.f_globals else frame.f_locals

    make = functools.partial(FunctionTool[Any, ..., Any], local_names=local_names, **options)
    return make if function is None else make(function)


def is_tool(value: object) -> bool:
    """Return True if a value implements the `Tool` protocol."""
    return not isinstance(value, type) and hasattr(value, "definition") and callable(getattr(value, "call", None))


def as_tool(value: Callable[..., Any] | Tool) -> Tool:
    """Convert a function to a tool. Existing tools are returned unchanged.

    Raises:
        ConfigurationError: Invalid tool or unsupported function signature.
    """
    if is_tool(value):
        return cast("Tool", value)
    if isinstance(value, type):
        raise ConfigurationError(
            f"a tool must be a function or an object, got class {value.__qualname__}; pass an instance"
        )
    if callable(value):
        return FunctionTool(value)
    hint = ""
    if isinstance(value, dict):
        hint = "; write a function, or use client_tool(name, parameters) for a tool of the client"
    elif isinstance(value, list | tuple):
        hint = "; unpack it with tools=[*...]"
    elif hasattr(value, "as_tool"):
        hint = "; pass its as_tool()"
    raise ConfigurationError(f"a tool must be a function or have `definition` and `call`, got {value!r}{hint}")


def check_name(name: str) -> None:
    """Raise an error if vendors do not accept a name.

    Raises:
        ConfigurationError: If the name is not accepted.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"a tool name must have 1 to 64 characters of a-z, A-Z, 0-9, _ and -, got {name!r}")


def _check_names(callee: str, options: ToolOptions) -> None:
    """Raise an error for unknown options.

    Raises:
        TypeError: If an option is unknown.
    """
    for name in options:
        if name not in ToolOptions.__annotations__:
            # Imported lazily, because correct programs do not need it.
            from rxloop._names import explain_argument

            remedy = explain_argument(callee, ["tool"], name, ToolOptions.__annotations__)
            raise TypeError(f"{callee}() got an unknown argument {name!r}; {remedy}")


def _check_options(name: str, options: ToolOptions) -> None:
    """Validate tool options.

    Raises:
        ConfigurationError: Invalid option value.
    """
    description: Any = options.get("description")
    check_type(f"tool {name!r}: description", description, str | None, "a string")
    timeout: Any = options.get("timeout")
    check_positive(optional=True, **{f"tool {name!r}: timeout in seconds": timeout})
    enabled = options.get("enabled")
    if enabled is not None and inspect.iscoroutinefunction(enabled):
        raise ConfigurationError(f"tool {name!r}: enabled must be a plain function, got an async function")
    check_minimum(1, optional=True, **{f"tool {name!r}: max_result": options.get("max_result")})


def _get_function_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    if isinstance(function, str):
        raise ConfigurationError(f"@tool needs a function, got {function!r}; pass a name as @tool(name={function!r})")
    raise ConfigurationError(f"{describe(function)} has no name; pass name=...")
