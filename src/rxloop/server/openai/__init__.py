"""OpenAI adapter: Responses API, Chat Completions API and list of models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from typing_extensions import Unpack, override

from rxloop.errors import ConfigurationError
from rxloop.protocol.ids import make_id
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, AdapterOptions, Endpoint
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Principal
from rxloop.server.openai import completions, responses
from rxloop.server.openai.call import Instructions, OpenAiCall, respond_error
from rxloop.server.openai.delivery import json_response
from rxloop.server.openai.requests import CreateCompletion, CreateResponse
from rxloop.server.openai.response_items import Json

_CREATION_TIME = 1_700_000_000
"""Placeholder creation time, because agents have no date and clients expect one."""


async def _list_models(call: OpenAiCall[Any]) -> Response:
    return json_response({"object": "list", "data": [_describe_model(name) for name in call.gateway.runtime.agents]})


async def _get_model(call: OpenAiCall[Any]) -> Response:
    name = call.request.path_params["model"]
    if name not in call.gateway.runtime.agents:
        raise Refused(404, "unknown_agent", "the model does not exist", fields={"model": "the model does not exist"})
    return json_response(_describe_model(name))


async def _create_conversation(call: OpenAiCall[Any]) -> Response:
    # The conversation is stored together with its first response.
    conversation: Json = {"id": make_id(), "object": "conversation", "created_at": int(time.time()), "metadata": {}}
    return json_response(conversation)


def _describe_model(name: str) -> Json:
    return {"id": name, "object": "model", "created": _CREATION_TIME, "owned_by": "rxloop"}


_RESPONSE_PATH = "/v1/responses/{response_id}"


class OpenAi(Adapter):
    """Adapter for the OpenAI API; see `openai_api`."""

    def __init__(
        self, runtime: Runtime, instructions: Instructions, reasoning_content: bool, options: AdapterOptions
    ) -> None:
        """Initialize the adapter; see `openai_api`."""
        super().__init__(runtime, **options)
        if instructions not in ("data", "ignore", "refuse"):
            raise ConfigurationError(f"instructions must be 'data', 'ignore' or 'refuse', got {instructions!r}")
        self._instructions: Instructions = instructions
        self._reasoning_content = reasoning_content

    @override
    def endpoints(self) -> Sequence[Endpoint]:
        return [
            Endpoint("POST", "/v1/responses", responses.create, CreateResponse),
            Endpoint("GET", _RESPONSE_PATH, responses.retrieve),
            Endpoint("POST", f"{_RESPONSE_PATH}/cancel", responses.cancel_response),
            Endpoint("GET", f"{_RESPONSE_PATH}/input_items", responses.input_items),
            Endpoint("POST", "/v1/chat/completions", completions.complete, CreateCompletion),
            Endpoint("POST", "/v1/conversations", _create_conversation),
            Endpoint("GET", "/v1/models", _list_models),
            Endpoint("GET", "/v1/models/{model:path}", _get_model),
        ]

    @override
    def make_call(self, request: Request, principal: Principal, body: Any, query: Any) -> OpenAiCall[Any]:
        return OpenAiCall(self, request, principal, body, query, self._instructions, self._reasoning_content)

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return respond_error(refused)


def openai_api(
    runtime: Runtime,
    *,
    instructions: Instructions = "data",
    reasoning_content: bool = False,
    **options: Unpack[AdapterOptions],
) -> OpenAi:
    """Serve the agents of a runtime to OpenAI clients.

    The endpoints include `/v1/responses`, `/v1/chat/completions` and `/v1/models`. The model in a request is an agent
    name. Clients need a base URL that ends with `/v1`. Their API key is the token for `auth`.

    Args:
        runtime: Runtime with the agents and the event log.
        instructions: Handling of `instructions`, system messages and developer messages at the start of a conversation.
            `data` passes them to the agent as a note from the application, `ignore` drops them, and `refuse` rejects
            the request. They never replace the agent's own instructions.
        reasoning_content: Whether chat completions include the model's reasoning in a non-standard field.
        options: `auth`, `limits` and `heartbeat`; see `AdapterOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> app = openai_api(Runtime({"support": support}, log=log), auth=bearer({"ann-key": "ann"}))
        >>> uvicorn.run(app)  # OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="ann-key")
    """
    return OpenAi(runtime, instructions, reasoning_content, options)
