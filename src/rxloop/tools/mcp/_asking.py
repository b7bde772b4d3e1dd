"""What a server may ask of its client: forms, the agent's model, roots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mcp_types as types
from mcp.client.context import ClientRequestContext
from pydantic import FileUrl

from rxloop.errors import InvalidInput, Paused, RxloopError
from rxloop.tools.mcp._forms import DECLINED, elicited
from rxloop.tools.mcp._link import Call, Link
from rxloop.tools.mcp._options import Taken
from rxloop.tools.mcp._sampling import refused, sample

_SAMPLES = 10
"""How often a server may ask the model in one call."""


def roots_of(taken: Taken) -> types.ListRootsResult:
    """The folders that a server may know of."""
    return types.ListRootsResult(roots=[types.Root(uri=FileUrl(root)) for root in taken.roots])


async def sampled(
    call: Call, asked: types.CreateMessageRequestParams, taken: Taken
) -> types.CreateMessageResult | types.ErrorData:
    """Have the agent's model answer, if that is allowed."""
    call.samples += 1
    if not taken.sampling:
        return refused("this client does not offer its model")
    if call.samples > _SAMPLES:
        return refused(f"there may be {_SAMPLES} in one call")
    return await sample(call.ctx, asked, taken.sampling, call.samples)


class Answers:
    """Answers what a server asks over a connection of before 2026, in the middle of a call.

    Such a question cannot wait for another process, and does not say which call it belongs to. So it is answered only
    where `on_input` answers at once, and only if all calls that are under way on the connection are of one run.
    """

    def __init__(self, taken: Taken, link: Callable[[], Link | None]) -> None:
        self._taken = taken
        self._link = link

    def callbacks(self) -> dict[str, Any]:
        """What the SDK calls; what is not there is not offered to the server."""
        given: dict[str, Any] = {"elicitation_callback": self._elicit}
        if self._taken.sampling:
            given["sampling_callback"] = self._sample
        if self._taken.roots:
            given["list_roots_callback"] = self._roots
        return given

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        return roots_of(self._taken)

    async def _sample(
        self, context: ClientRequestContext, asked: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        call = self._call()
        if call is None:
            return refused("it belongs to no call")
        answer: Any = await self._during(call, sampled(call, asked, self._taken))
        return answer if answer is not None else refused("it failed")

    async def _elicit(self, context: ClientRequestContext, asked: types.ElicitRequestParams) -> types.ElicitResult:
        call, link = self._call(), self._link()
        if call is None or link is None or not call.ctx.host.answers_now:
            return DECLINED
        answer: Any = await self._during(call, elicited(call.ctx, link.name, asked))
        return answer if answer is not None else DECLINED

    def _call(self) -> Call | None:
        link = self._link()
        calls = [] if link is None else list(link.calls)
        return calls[0] if calls and len({call.ctx.task_id for call in calls}) == 1 else None

    async def _during(self, call: Call, work: Any) -> Any:
        """Do some work in a task that ends with its call; None if it fails, since nothing may be raised to the SDK."""

        async def contained() -> Any:
            try:
                return await work
            except (RxloopError, InvalidInput, Paused):
                return None

        task = asyncio.ensure_future(contained())
        call.asking.add(task)
        task.add_done_callback(call.asking.discard)
        await asyncio.wait([task])
        return None if task.cancelled() or task.exception() is not None else task.result()
