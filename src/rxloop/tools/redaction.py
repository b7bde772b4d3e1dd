"""Redaction of tool results before they reach the stream, the log and the model."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast, overload

from pydantic_core import to_json

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.interfaces import Tool, Toolset
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import CustomEvent, Event, ThoughtStreamEvent, ToolProgressEvent
from rxloop.protocol.messages import Message, TextPart
from rxloop.protocol.model import thaw
from rxloop.tools.execution import log_fields, public_name
from rxloop.tools.function import Function, as_tool, is_tool
from rxloop.tools.result import ToolResult, encode_with_parts, explain_error

D = TypeVar("D", contravariant=True)

ReplaceText = Callable[[str, RunContext[Any]], str]
"""Function that returns the replacement of a string."""

log = logging.getLogger("rxloop")

_FAILED = "The tool ran, but its result could not be redacted and was discarded."
_NOT_CALLED = "The arguments could not be restored, so the tool was not called."


class RedactedTool:
    """Tool with redacted results, created by `redact`."""

    def __init__(self, inner: Tool[Any], hide: ReplaceText, reveal: ReplaceText | None) -> None:
        """Wrap a tool. See `redact` for the arguments."""
        if not getattr(inner, "can_redact", True):
            raise ConfigurationError(
                f"redact() does not support client tools and agents, because their data is logged before they return; "
                f"got {inner!r}. Redact the tools of the agent, or the answers in the client."
            )
        self.inner = inner
        self._hide, self._reveal = hide, reveal

    def __repr__(self) -> str:
        return f"<redacted {self.inner!r}>"

    def __getattr__(self, name: str) -> Any:
        # Delegate optional attributes, such as `read_only`. `copy` reads attributes before `inner` exists.
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def definition(self) -> ToolDefinition:
        """Definition of the tool."""
        return self.inner.definition

    @property
    def timeout(self) -> float | None:
        """Time limit of the tool in seconds."""
        return self.inner.timeout

    @property
    def idempotent(self) -> bool:
        """True if an interrupted call may be repeated."""
        return self.inner.idempotent

    @property
    def approve(self) -> bool | str:
        """Approval option of the tool."""
        return self.inner.approve

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Return True if the tool is currently offered in this run."""
        return self.inner.enabled(ctx)

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        """Execute a call, redacting events, results and errors.

        Raises:
            ToolError: If the tool, `hide` or `reveal` failed.
        """
        if self._reveal is not None:
            arguments = self._apply(self._reveal, arguments, ctx, _NOT_CALLED)
        try:
            value = await self.inner.call(arguments, ctx.bind(out=self._redact_events(ctx)))
            return self._redact_value(value, ctx)
        except ToolError as error:
            text, value, parts = str(error), error.value, error.parts
        except Exception as error:
            # The message and the traceback may contain the data, so log neither.
            log.warning("Tool %s failed with %s", public_name(ctx), type(error).__name__, extra=log_fields(ctx))
            text, value, parts = explain_error(error), None, ()
        if value is not None:
            value = self._redact_value(value, ctx)
        raise ToolError(self._apply(self._hide, text, ctx), value=value, parts=parts)

    def _redact_value(self, value: Any, ctx: RunContext[Any]) -> ToolResult:
        data, text, parts = encode_with_parts(value)
        redacted = self._apply(self._hide, data, ctx)
        if isinstance(value, ToolResult) or parts:
            text = self._apply(self._hide, text, ctx)
        else:
            # Redacting the JSON text instead would miss strings with escaped characters.
            text = redacted if isinstance(redacted, str) else to_json(redacted).decode()
        messages = value.messages if isinstance(value, ToolResult) else ()
        messages = [messages] if isinstance(messages, str) else messages
        return ToolResult(redacted, text, messages=[self._redact_message(each, ctx) for each in messages], parts=parts)

    def _redact_message(self, message: str | Message, ctx: RunContext[Any]) -> str | Message:
        if isinstance(message, str):
            return self._apply(self._hide, message, ctx)
        content = message.content
        if isinstance(content, str):
            return message.model_copy(update={"content": self._apply(self._hide, content, ctx)})
        parts = [
            part.model_copy(update={"text": self._apply(self._hide, part.text, ctx)})
            if isinstance(part, TextPart)
            else part
            for part in content
        ]
        return message.model_copy(update={"content": parts})

    def _redact_events(self, ctx: RunContext[Any]) -> Callable[[Event], None]:
        out = ctx.out or ctx.port.publish

        def emit(event: Event) -> None:
            match event:
                case ToolProgressEvent():
                    changes = {"message": self._apply(self._hide, event.message, ctx)}
                case CustomEvent():
                    changes = {"data": self._apply(self._hide, thaw(event.data), ctx)}
                case ThoughtStreamEvent():
                    alternatives = [self._apply(self._hide, each, ctx) for each in event.alternatives]
                    content = self._apply(self._hide, event.content, ctx)
                    changes = {"content": content, "alternatives": alternatives}
                case _:
                    changes = {}
            out(event.model_copy(update=changes) if changes else event)

        return emit

    def _apply(self, replace: ReplaceText, data: Any, ctx: RunContext[Any], failure: str = _FAILED) -> Any:
        try:
            return _replace_strings(data, lambda text: replace(text, ctx))
        except Exception as error:
            # Error messages may contain the data.
            name, extra = public_name(ctx), log_fields(ctx)
            log.error("Redacting the tool %s failed with %s", name, type(error).__name__, extra=extra)
            raise ToolError(failure) from None


class RedactedToolset:
    """Toolset with redacted results, created by `redact`."""

    def __init__(self, inner: Toolset[Any], hide: ReplaceText, reveal: ReplaceText | None) -> None:
        """Wrap a toolset. See `redact` for the arguments."""
        self.inner = inner
        self._hide, self._reveal = hide, reveal
        self._last: tuple[Sequence[Tool[Any]] | None, Sequence[Tool[Any]]] = (None, ())

    def __repr__(self) -> str:
        return f"<redacted {self.inner!r}>"

    @property
    def name(self) -> str:
        """Name of the toolset."""
        name = getattr(self.inner, "name", None)
        return name if isinstance(name, str) and name else type(self.inner).__qualname__

    async def __aenter__(self) -> RedactedToolset:
        if isinstance(self.inner, AbstractAsyncContextManager):
            await cast("AbstractAsyncContextManager[Any]", self.inner).__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        if isinstance(self.inner, AbstractAsyncContextManager):
            await cast("AbstractAsyncContextManager[Any]", self.inner).__aexit__(*error)

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool[Any]]:
        """Return the redacted tools that are available in this run."""
        return self._wrap(await self.inner.tools(ctx))

    def tools_now(self, ctx: RunContext[Any]) -> Sequence[Tool[Any]] | None:
        """Return the redacted tools without waiting, or None if this is not possible."""
        list_now: Callable[[RunContext[Any]], Sequence[Tool[Any]] | None] | None
        list_now = getattr(self.inner, "tools_now", None)
        tools = None if list_now is None else list_now(ctx)
        return None if tools is None else self._wrap(tools)

    def _wrap(self, tools: Sequence[Tool[Any]]) -> Sequence[Tool[Any]]:
        # Callers compare lists by identity to reuse their definitions.
        if self._last[0] is not tools:
            self._last = (tools, [RedactedTool(as_tool(tool), self._hide, self._reveal) for tool in tools])
        return self._last[1]


@overload
def redact(tools: Tool[D], hide: ReplaceText, *, reveal: ReplaceText | None = None) -> Tool[D]: ...


@overload
def redact(tools: Toolset[D], hide: ReplaceText, *, reveal: ReplaceText | None = None) -> Toolset[D]: ...


@overload
def redact(tools: Function, hide: ReplaceText, *, reveal: ReplaceText | None = None) -> Tool[object]: ...


def redact(tools: Any, hide: ReplaceText, *, reveal: ReplaceText | None = None) -> Any:
    """Redact the results of a tool or toolset before they are published, logged and sent to the model.

    Calls `hide(string, ctx)` for each string in results, errors, progress messages, thoughts and custom event data, and
    uses the returned string instead. Lists and objects are traversed, including keys. Images, files, artifacts and
    questions are not changed.

    If `hide` fails, the result is discarded and the call fails. Only the type of an exception is logged.

    Example::

        def hide(text: str, ctx: RunContext[Any]) -> str:
            return EMAIL.sub("[e-mail]", text)


        agent = Agent(model, tools=[redact(find_customer, hide)])

    Args:
        tools: Tool, function or toolset.
        hide: Function that returns the redacted string. It runs on the event loop and must not be async.
        reveal: Function that restores a string in the arguments just before the tool is called. The stream, the log and
            the model keep the arguments that the model wrote.

    Raises:
        ConfigurationError: The tool is a client tool or an agent, or a function does not accept `(text, ctx)`.
    """
    for name, function in (("hide", hide), ("reveal", reveal)):
        if function is not None:
            _check_function(name, function)
    if not is_tool(tools) and not isinstance(tools, type) and isinstance(tools, Toolset):
        return RedactedToolset(cast("Toolset[Any]", tools), hide, reveal)
    return RedactedTool(as_tool(tools), hide, reveal)


def _check_function(name: str, function: ReplaceText) -> None:
    try:
        inspect.signature(function).bind("text", None)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} must be a function of (text, ctx), got {function!r}") from None
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"{name} must be a plain function, got the async function {function!r}")


def _replace_strings(data: Any, replace: Callable[[str], Any]) -> Any:
    if isinstance(data, str):
        text = replace(data)
        if not isinstance(text, str):
            raise TypeError(f"the replacement must be a string, got {type(text).__name__}")
        return text
    if isinstance(data, Mapping):
        items = cast("Mapping[Any, Any]", data).items()
        return {_replace_strings(key, replace): _replace_strings(value, replace) for key, value in items}
    if isinstance(data, list | tuple):
        return [_replace_strings(each, replace) for each in cast("Sequence[Any]", data)]
    return data
