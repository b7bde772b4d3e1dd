"""Messages, events, commands and HTTP API bodies, with JSON encoding."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names. Both type checkers and `import_later` read this list.
if TYPE_CHECKING:
    from rxloop.protocol.envelope import UnknownEvent as UnknownEvent
    from rxloop.protocol.events import protocol_schema as protocol_schema
    from rxloop.protocol.events import public_events as public_events
    from rxloop.protocol.step_events import SessionLink as SessionLink
    from rxloop.protocol.tool_events import ThinkingNotedEvent as ThinkingNotedEvent
