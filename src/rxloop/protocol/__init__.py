"""Messages, events, commands, bodies of the HTTP API, and their JSON: use it to read the stream of a run."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.protocol.envelope import UnknownEvent as UnknownEvent
    from rxloop.protocol.events import external as external
    from rxloop.protocol.events import protocol_schema as protocol_schema
    from rxloop.protocol.step_events import SessionLink as SessionLink
