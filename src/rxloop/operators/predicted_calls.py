from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from reactivex import Observable
from typing_extensions import Unpack

from rxloop.errors import EventLogError
from rxloop.operators.exchange.model_exchange import complete_message, make_tool_requests
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.operators.loop.early_tools import can_discard
from rxloop.operators.loop.recall import RecallScope, check_source
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ModelRequest, Operator, Signal, ToolRequest
from rxloop.protocol.events import ContentCompleteEvent
from rxloop.protocol.ids import derive_id
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.visibility import PREDICTED
from rxloop.stream.sources import Push, from_task

log = logging.getLogger("rxloop")


class CallSource(Protocol):
    """Experience that `predict_context` reads, implemented by `rxloop.memory.Experience`."""

    async def predict(
        self, owner: str | None, task: str, *, calls: int, tokens: int, **scope: Unpack[RecallScope]
    ) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Return names and arguments of the calls that similar runs made first.

        Args:
            owner: Owner of the run.
            task: User message.
            calls: Maximum number of calls.
            tokens: Maximum number of tokens of the results.
            **scope: Run, with the names of the tools that may be called.
        """
        ...


def predict_context(source: CallSource, *, calls: int = 3, tokens: int = 2_000) -> Operator[object]:
    """Make the read-only tool calls that similar runs made first, before the first model call of a run.

    ::

        in   --M1-----|     --M2--|
        out  --(C,T)--|     --M2--|

    M1 is the first `ModelRequest`, C a `content-complete` with predicted calls, and T a `ToolRequest` for each of them.
    Guards and `run_tools` handle the calls like those of the model. M2, the next request, contains the calls and their
    results in the history, like calls of another model, so that vendors can cache them. Without predicted calls, M1
    passes unchanged.

    Only tools with `read_only=True` that need no approval are called. A call is predicted if at least two completed
    runs of the agent with a similar user message made it, and at least half of these runs. In the log, C has the
    metadata key `predicted`. A predicted call is a hit if the run used its result, and otherwise a miss, see
    `ToolStats`. Misses are not predicted again.

    The calls count as an iteration, but their failures do not count for `Limits.tool_failures`. Nothing is predicted if
    `Limits.iterations` is 1, or if the log of the memory cannot be read, which logs a warning.

    Args:
        source: `rxloop.memory.Experience` over the log of the agents.
        calls: Maximum number of calls.
        tokens: Maximum number of tokens of the results, estimated from the results of the earlier calls.

    Raises:
        ConfigurationError: `source` is not an experience, or `calls` or `tokens` is not a positive integer.
    """
    check_source(source, "predict", "source must be an Experience", calls=calls, tokens=tokens)

    def answer(request: ModelRequest) -> Observable[Signal] | ModelRequest:
        tools = _list_tools(request)
        predict = partial(_predict, source, request, tools, calls, tokens)
        return from_task(predict, request.ctx, name="rxloop-predict") if tools else request

    operator = answer_requests(ModelRequest, answer)
    operator.__qualname__ = "predict_context"
    return operator


def _list_tools(request: ModelRequest) -> list[str]:
    """Return the names of allowed tools, or an empty list for later requests of a run."""
    host, messages = get_host(request.ctx), request.messages
    is_first = request.branch is None and request.iteration == 1 and not request.pressure
    # Without a further iteration, the model could not answer.
    may_call = request.ctx.info.limits.iterations != 1 and request.settings.tool_choice in (None, "auto")
    if not (is_first and may_call) or not messages or messages[-1].role != "user":
        return []
    calls = [(each, ToolCall(id=each.name, name=each.name)) for each in request.tools if not each.answer]
    tools = [(each, host.tools.find(ToolRequest(call, request.ctx, request.tools))) for each, call in calls]
    return [each.name for each, tool in tools if not isinstance(tool, str) and can_discard(tool)]


async def _predict(
    source: CallSource, request: ModelRequest, tools: Sequence[str], calls: int, tokens: int, push: Push[Signal]
) -> None:
    """Push a message with the predicted calls and their requests, or the unchanged request."""
    info, task = request.ctx.info, request.messages[-1].text
    scope: RecallScope = {"agent": info.agent_name, "tools": tools, "exclude_context": info.context_id}
    try:
        predicted = await source.predict(info.owner, task, calls=calls, tokens=tokens, **scope)
    except EventLogError as error:
        # The memory may use a different log.
        log.warning("Failed to predict tool calls of run %s: %s", request.ctx.task_id, error)
        predicted = ()
    if not predicted:
        push(request)
        return
    # Vendors reject requests that contain an id twice, and the conversation may have several predicted runs.
    made = [
        ToolCall(id=derive_id("predicted", request.ctx.task_id, str(index)), name=name, arguments=dict(arguments))
        for index, (name, arguments) in enumerate(predicted)
    ]
    metadata = {PREDICTED: True}
    message = ContentCompleteEvent(tool_calls=made, finish_reason="tool_calls", step=request.step, metadata=metadata)
    complete_message(message, request)
    push(message)
    for signal in make_tool_requests(message, enumerate(message.tool_calls), request.ctx, request.tools):
        push(signal)
