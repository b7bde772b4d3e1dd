"""The OpenAI adapter."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rxloop.errors import ConfigurationError
from rxloop.protocol.ids import make_id
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Auth, Host, ServerLimits
from rxloop.server.openai import completions, responses
from rxloop.server.openai.answers import json
from rxloop.server.openai.call import Call, Handler, Instructions, Options, on_error
from rxloop.server.openai.response_items import Json

_BEGUN = 1_700_000_000
"""Agents have no date; clients want one."""


async def _models(call: Call) -> Response:
    return json({"object": "list", "data": [_model(name) for name in call.host.runtime.agents]})


async def _one_model(call: Call) -> Response:
    name = call.request.path_params["model"]
    if name not in call.host.runtime.agents:
        raise Refused(404, "unknown_agent", "there is no such model", fields={"model": "there is no such model"})
    return json(_model(name))


async def _conversation(call: Call) -> Response:
    # It is kept from its first response on.
    made: Json = {"id": make_id(), "object": "conversation", "created_at": int(time.time()), "metadata": {}}
    return json(made)


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": _BEGUN, "owned_by": "rxloop"}


_ONE = "/v1/responses/{response_id}"
_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/responses", responses.create),
    ("GET", _ONE, responses.retrieve),
    ("POST", f"{_ONE}/cancel", responses.cancel_response),
    ("GET", f"{_ONE}/input_items", responses.input_items),
    ("POST", "/v1/chat/completions", completions.complete),
    ("POST", "/v1/conversations", _conversation),
    ("GET", "/v1/models", _models),
    ("GET", "/v1/models/{model:path}", _one_model),
)


def openai_api(
    runtime: Runtime,
    *,
    auth: Auth | None = None,
    limits: ServerLimits | None = None,
    heartbeat: float | None = 15.0,
    instructions: Instructions = "data",
    reasoning_content: bool = False,
) -> Adapter:
    """Serve the agents of a runtime to the clients of OpenAI: `/v1/responses`, `/v1/chat/completions`, `/v1/models`.

    The model of a request is the name of an agent. Clients are given the address that ends with `/v1`, and as the key
    the token that `auth` knows them by.

    Args:
        runtime: Has the agents, and the log.
        auth: Tells who asks; `bearer({...})` knows people by their keys. Without it everybody sees all runs.
        limits: How much clients may take.
        heartbeat: Seconds of silence after which a stream gives a sign of life, so that proxies keep it; None for none.
        instructions: What becomes of `instructions`, and of messages of the system or a developer, where a conversation
            begins: `data` tells them to the agent as a note of the application, `ignore` leaves them out, `refuse`
            refuses the request. They are never instructions, which are the agent's own.
        reasoning_content: Tell the reasoning of the model in chat completions, which have no field of their own for it.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> app = openai_api(Runtime({"support": support}, log=log), auth=bearer({"ann-key": "ann"}))
        >>> uvicorn.run(app)  # OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="ann-key")
    """
    if heartbeat is not None and not heartbeat > 0:
        raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
    if instructions not in ("data", "ignore", "refuse"):
        raise ConfigurationError(f"instructions must be 'data', 'ignore' or 'refuse', not {instructions!r}")
    host = Host(runtime, auth, limits or ServerLimits())
    options = Options(heartbeat, instructions, reasoning_content)

    def endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                return await handler(Call(host, options, request, await host.principal(request)))
            except Exception as error:
                return await on_error(request, error)

        return serve

    routes = [Route(path, endpoint(handler), methods=[method]) for method, path, handler in _ROUTES]
    return Adapter(host, routes, on_error)
