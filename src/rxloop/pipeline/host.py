"""Run interface for operators and tools."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence, Set
from typing import Any, Protocol, cast

from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ModelRequest, ToolDefinition, ToolRequest
from rxloop.pipeline.run_context import RunContext, RunPort
from rxloop.pipeline.sent.requests import SentRequests
from rxloop.protocol.events import Event, ToolCompleteEvent
from rxloop.protocol.messages import Message
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.state.run_state import RunState


class ModelCall(Protocol):
    """Model call with a streaming answer."""

    request: ModelRequest
    """Request that was sent."""

    def interrupt(self, ends: Sequence[Event]) -> None:
        """Interrupt the answer.

        Args:
            ends: Events that close the message, including the text received so far.
        """
        ...


class OfferedTools(Protocol):
    """Tools offered to the model."""

    def find(self, request: ToolRequest) -> Tool | str:
        """Return the requested tool, or an error message if calling it is not possible."""
        ...

    def narrow(self, step: str, tools: tuple[ToolDefinition, ...] | None = None) -> tuple[ToolDefinition, ...] | None:
        """Return the tools that were also offered when an earlier attempt executed the step.

        Return `tools` unchanged if the message of the step does not record withheld tools. None means all tools.
        """
        ...

    def offers(self, name: str) -> bool:
        """Return True if a tool with this name was offered to the model."""
        ...

    def hides(self, name: str) -> bool:
        """Return True if the tool with this name is hidden from clients."""
        ...

    def has_others(self, names: Set[str]) -> bool:
        """Return True if the run has tools with other names, whether they are offered now or not."""
        ...


class Host(RunPort, Protocol):
    """Run interface for operators and tools."""

    open_call: ModelCall | None
    """Streaming model call on the main branch."""

    sent_requests: SentRequests
    """Requests sent by the run so far."""

    @property
    def is_ending(self) -> bool:
        """True once the end of the attempt has been decided. No more requests are answered."""
        ...

    @property
    def tools(self) -> OfferedTools:
        """Tools offered to the model."""
        ...

    @property
    def earlier(self) -> EarlierAttempts:
        """State of earlier attempts of the run, including their unfinished work."""
        ...

    @property
    def system(self) -> tuple[Message, ...]:
        """System messages added by the run."""
        ...

    def durable_now(self) -> int | None:
        """Return the last `seq` like `durable`, but None if this requires waiting."""
        ...

    def build_request(
        self, ctx: RunContext[Any], iteration: int, pressure: int
    ) -> ModelRequest | Awaitable[ModelRequest]:
        """Return the next model request. The context contains its step and branch."""
        ...

    def is_waiting(self, state: RunState) -> bool:
        """Return True if a question of the branch with this state must be answered before the run can continue.

        Questions that only earlier attempts asked outside of calls do not count, because the code may have changed.
        """
        ...

    def find_recorded_outcome(self, request: ToolRequest, tool: Tool | str) -> ToolCompleteEvent | None:
        """Return the tool result for an unused recorded answer, or None."""
        ...

    def claim(self, request: ToolRequest) -> bool:
        """Claim a call for execution, or return False if this attempt must not execute it."""
        ...

    def close_abandoned(self, ctx: RunContext[Any]) -> None:
        """Close the open message or call after its subscription was disposed early."""
        ...


def get_host(ctx: RunContext[Any]) -> Host:
    """Return the run for a context.

    Raises:
        RxloopError: If the context was created outside a run.
    """
    # Operators call this several times per event, so do not call `cast`, or `port` unless it raises.
    host: Any = ctx.run
    return cast("Host", ctx.port) if host is None else host
