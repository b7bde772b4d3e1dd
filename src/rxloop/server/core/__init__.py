"""The kit for adapters: authentication and limits, starting and answering runs, and streams to a client."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Lists the public names for type checkers and for `import_later`.
if TYPE_CHECKING:
    from rxloop.server.core.adapter import Adapter as Adapter
    from rxloop.server.core.adapter import AdapterOptions as AdapterOptions
    from rxloop.server.core.adapter import Call as Call
    from rxloop.server.core.adapter import Endpoint as Endpoint
    from rxloop.server.core.adapter import check_id as check_id
    from rxloop.server.core.adapter import find_only_agent as find_only_agent
    from rxloop.server.core.bodies import parse_json as parse_json
    from rxloop.server.core.chat_fold import ChatFold as ChatFold
    from rxloop.server.core.chat_fold import ProtocolFold as ProtocolFold
    from rxloop.server.core.chat_fold import chat as chat
    from rxloop.server.core.chat_fold import make_protocol_view as make_protocol_view
    from rxloop.server.core.errors import Refused as Refused
    from rxloop.server.core.existing_runs import answer_run as answer_run
    from rxloop.server.core.existing_runs import list_pending_inputs as list_pending_inputs
    from rxloop.server.core.gateway import Gateway as Gateway
    from rxloop.server.core.gateway import Principal as Principal
    from rxloop.server.core.gateway import StreamSlot as StreamSlot
    from rxloop.server.core.runs import cancel_abandoned_run as cancel_abandoned_run
    from rxloop.server.core.runs import cancel_run as cancel_run
    from rxloop.server.core.runs import find_started_run as find_started_run
    from rxloop.server.core.runs import parse_client_tools as parse_client_tools
    from rxloop.server.core.runs import read_idempotency_key as read_idempotency_key
    from rxloop.server.core.runs import resolve_agent as resolve_agent
    from rxloop.server.core.runs import start_run as start_run
    from rxloop.server.core.stream import NDJSON as NDJSON
    from rxloop.server.core.stream import SSE as SSE
    from rxloop.server.core.stream import EventStream as EventStream
    from rxloop.server.core.stream import FrameWriter as FrameWriter
    from rxloop.server.core.stream import deliver as deliver
    from rxloop.server.core.stream import read_to_end as read_to_end
    from rxloop.server.core.stream import wait_disconnected as wait_disconnected
