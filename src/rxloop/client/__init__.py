"""The typed client of the HTTP API: runs elsewhere, as streams that any view works on."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.client.client import Client as Client
    from rxloop.protocol.http_api import ContextInfo as ContextInfo
    from rxloop.protocol.http_api import RunInfo as RunInfo
    from rxloop.protocol.http_api import StateInfo as StateInfo
