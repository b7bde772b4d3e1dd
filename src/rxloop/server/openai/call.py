"""OpenAI requests and error responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import orjson
from starlette.responses import Response

from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Call
from rxloop.server.core.errors import Refused
from rxloop.server.openai.response_fold import ResponseInfo
from rxloop.server.openai.response_items import Json

B = TypeVar("B")

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {"unauthorized": "invalid_api_key", "too_many": "rate_limit_exceeded", "unknown_agent": "model_not_found"}


def unsupported(param: str, message: str) -> Refused:
    """Return the error for an unsupported parameter that cannot be ignored safely."""
    return Refused(400, "unsupported_parameter", message, fields={param: message})


def invalid(param: str, message: str, code: str = "invalid_value") -> Refused:
    """Return the error for an invalid value."""
    return Refused(400, code, message, fields={param: message})


def convert_error(event: StatusUpdateEvent) -> dict[str, Any]:
    """Convert the public final event of an unsuccessful run to an OpenAI error."""
    error = event.error
    code = "canceled" if event.state == "canceled" else "server_error" if error is None else error.code
    default = "The run was cancelled." if event.state == "canceled" else "The run failed."
    message = default if error is None else error.message
    kind = "rate_limit_error" if code == "rate_limited" else "server_error"
    return {"message": message, "type": kind, "param": None, "code": code}


def respond_error(refused: Refused) -> Response:
    """Convert an error to a response in the OpenAI format."""
    # OpenAI uses status 400 for all invalid bodies.
    status = 400 if refused.status == 422 else refused.status
    param = next(iter(refused.fields or {}), None)
    message = str(refused)
    if param is not None and refused.fields is not None and refused.fields[param] != message:
        message = f"{message}: {param}: {refused.fields[param]}"
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(refused.code, refused.code)
    headers = {"cache-control": "no-store", **refused.headers}
    if status == 409:
        # Prevent automatic retries by OpenAI clients, which would fail again.
        headers["x-should-retry"] = "false"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Response(orjson.dumps({"error": error}), status, headers, media_type="application/json")


Instructions = Literal["data", "ignore", "refuse"]

OPENAI = "openai"
"""Metadata key for response fields that cannot be derived from events."""


@dataclass(frozen=True, slots=True)
class OpenAiCall(Call[B, None]):
    """OpenAI API request with adapter options."""

    instructions: Instructions
    reasoning_content: bool


def get_response_info(record: RunRecord, runtime: Runtime) -> ResponseInfo:
    """Return the response metadata of a run, including runs started by other adapters."""
    agent = runtime.agents.get(record.agent_name)
    stored: Json = dict(record.metadata.get(OPENAI) or {})
    public = record.metadata.get(PUBLIC_METADATA)
    metadata = {key: value for key, value in public.items() if isinstance(value, str)} if public else {}
    extra = {name: stored[name] for name in ("background", "previous", "tools", "text") if name in stored}
    client = frozenset[str]() if agent is None else frozenset(agent.definition.client_tool_names)
    return ResponseInfo(record.agent_name, record.context_id, record.created, metadata=metadata, client=client, **extra)
