"""Notes for the model about tool calls whose name or arguments were changed by a guard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from rxloop.protocol.messages import ToolCall

if TYPE_CHECKING:
    from rxloop.pipeline.run_context import RunContext

_MAX_VALUE_LENGTH = 300
_MAX_NOTE_LENGTH = 1_000
_REMOVED: Any = object()


def is_edited(written: ToolCall, executed: ToolCall) -> bool:
    """Return True if an operator has changed the name or the arguments of a call."""
    return written.name != executed.name or (
        written.arguments is not executed.arguments and written.arguments != executed.arguments
    )


def add_edit_note(content: str, ctx: RunContext[Any], executed: ToolCall) -> str:
    """Append a note to the text of a tool message if the executed call differs from the call in the history.

    The assistant message keeps the call that the model wrote, because providers verify signatures and cache prefixes.

    Args:
        content: The text of the tool message.
        ctx: The context of the call.
        executed: The call that was executed.
    """
    batch = None if ctx.run is None else ctx.state.batch
    if batch is None or batch.step != ctx.step or not batch.is_open(ctx.index):
        return content
    written = batch.calls[ctx.index]
    if not is_edited(written, executed):
        return content
    note = _note(written, executed)
    return f"{content}\n\n{note}" if content else note


def _note(written: ToolCall, executed: ToolCall) -> str:
    if written.name != executed.name:
        arguments = _show(executed.arguments.items()) or "no arguments"
        text = f"{executed.name} was executed instead of {written.name}, with {arguments}"
    else:
        changes = list(_changes(written.arguments, executed.arguments))
        changed = _show((path, value) for path, value in changes if value is not _REMOVED)
        removed = ", ".join(path for path, value in changes if value is _REMOVED)
        parts = [f"with {changed}"] if changed else []
        parts += [f"without {removed}"] if removed else []
        text = f"the arguments of this call were changed; it was executed {' and '.join(parts)}"
    return f"[Note: {_truncate(text, _MAX_NOTE_LENGTH)}]"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield changed fields such as `meta.to`, with their executed values."""
    for name in {**before, **after}:
        path, old, new = f"{parent}{name}", before.get(name, _REMOVED), after.get(name, _REMOVED)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new), f"{path}.")
        elif old is _REMOVED or new is _REMOVED or old != new:
            yield path, new


def _show(fields: Iterable[tuple[str, Any]]) -> str:
    values = (f"{path}: {json.dumps(value, ensure_ascii=False, default=str)}" for path, value in fields)
    return ", ".join(_truncate(value, _MAX_VALUE_LENGTH) for value in values)


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
