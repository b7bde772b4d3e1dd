"""Offline model for examples and tests, which answers questions about the weather."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

import httpx
import orjson
from typing_extensions import override

from rxloop.demo.conversation import Conversation, Reply, Rule
from rxloop.demo.rules import BUILT_IN_RULES
from rxloop.demo.strategy_answers import to_output_type
from rxloop.pipeline.interfaces import Provider
from rxloop.providers.factories import openai_chat
from rxloop.providers.vendors import Preset

MODEL = "offline"

BASE_URL = "http://offline.invalid/v1"
"""Base URL of requests to the model. The reserved name never resolves to a host."""

_VENDORS = {"ZAI_API_KEY": "zai:glm-4.7", "OPENAI_API_KEY": "openai:gpt-5"}


class OfflineModel:
    """In-process endpoint for `/v1/chat/completions` and `/v1/models`.

    Example:
        >>> offline = OfflineModel()
        >>> agent = Agent(offline.provider())

    Args:
        rules: Rules evaluated in order before the built-in rules. The last built-in rule always replies.
        delay: Seconds between two chunks of a stream.

    Attributes:
        requests: Decoded bodies of the requests, in order.
        open: Number of open streams.
    """

    def __init__(self, rules: Sequence[Rule] | None = None, delay: float = 0.0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.open = 0
        self._rules = (*(rules or ()), *BUILT_IN_RULES)
        self._delay = delay

    def provider(self) -> Provider:
        """Return a provider whose requests this model answers."""
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.handle))
        return openai_chat("demo", preset=Preset(name=MODEL, base_url=BASE_URL), api_key=MODEL, http_client=client)

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Return the response to a request whose body has been read.

        To use the model with another httpx client, such as the client of a vendor's SDK, pass this method to
        `httpx.MockTransport`.
        """
        try:
            return self._answer(request)
        except Exception as error:
            return _make_error(500, f"{type(error).__name__}: {error}", "server_error")

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/models") and request.method == "GET":
            return httpx.Response(
                200, json={"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "rxloop"}]}
            )
        if not path.endswith("/chat/completions"):
            return _make_error(404, f"there is nothing at {path}")
        if request.method != "POST":
            return _make_error(405, f"{path} takes POST only")
        try:
            body = orjson.loads(request.content)
        except orjson.JSONDecodeError as error:
            return _make_error(400, f"the body is not JSON: {error}")
        if not isinstance(body, dict) or not isinstance(cast("dict[str, Any]", body).get("messages"), list):
            return _make_error(400, "the body needs `messages`, a list")
        request_body = cast("dict[str, Any]", body)
        self.requests.append(request_body)
        try:
            conversation = Conversation(request_body)
            answer = _Answer(request_body, conversation, self._reply(conversation), len(self.requests))
        except (KeyError, TypeError, AttributeError) as error:
            return _make_error(400, f"the request cannot be read: {type(error).__name__}: {error}")
        if not request_body.get("stream"):
            return httpx.Response(200, json=answer.to_response())
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=_EventStream(self._stream(answer)))

    def _reply(self, conversation: Conversation) -> Reply:
        for rule in self._rules:
            if (reply := rule(conversation)) is not None:
                return to_output_type(conversation, reply)
        raise AssertionError("the last built-in rule always replies")

    async def _stream(self, answer: _Answer) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            for chunk in answer.to_chunks():
                yield b"data: %s\n\n" % orjson.dumps(chunk)
                if self._delay:
                    await asyncio.sleep(self._delay)
            yield b"data: [DONE]\n\n"
        finally:
            self.open -= 1


class _EventStream(httpx.AsyncByteStream):
    """Body of a streaming response. Unlike the streams of httpx, `aclose` also closes the generator."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events

    @override
    async def aclose(self) -> None:
        await self._events.aclose()


def _make_error(status: int, message: str, kind: str = "invalid_request_error") -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": kind}})


class _Answer:
    """A reply in the wire format."""

    def __init__(self, body: Mapping[str, Any], conversation: Conversation, reply: Reply, number: int) -> None:
        self._reply = reply
        self._calls: list[dict[str, Any]] = [
            {
                "id": conversation.make_call_id(index),
                "type": "function",
                "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
            }
            for index, (name, arguments) in enumerate(reply.calls)
        ]
        self._head = {"id": f"chatcmpl-{number}", "created": 0, "model": body.get("model") or MODEL}
        self._finish = "tool_calls" if self._calls else "stop"
        texts = [reply.reasoning, reply.text, *(call["function"]["arguments"] for call in self._calls)]
        read = len(orjson.dumps(body["messages"])) // 4
        written = sum(len(_split_text(text)) for text in texts)
        self._usage: dict[str, Any] = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        if reply.reasoning:
            self._usage["completion_tokens_details"] = {"reasoning_tokens": len(_split_text(reply.reasoning))}

    def to_response(self) -> dict[str, Any]:
        """Return the complete response."""
        message: dict[str, Any] = {"role": "assistant", "content": self._reply.text or None}
        if self._reply.reasoning:
            message["reasoning_content"] = self._reply.reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return self._head | {"object": "chat.completion", "choices": [choice], "usage": self._usage}

    def to_chunks(self) -> Iterator[dict[str, Any]]:
        """Yield streaming chunks with text, tool call fragments and usage."""
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in _split_text(self._reply.reasoning):
            yield self._chunk({"reasoning_content": piece})
        for piece in _split_text(self._reply.text):
            yield self._chunk({"content": piece})
        for index, call in enumerate(self._calls):
            function: dict[str, str] = call["function"]
            opening = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
            yield self._chunk({"tool_calls": [opening]})
            for piece in re.findall(r"(?s).{1,12}", function["arguments"]):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._chunk({}, self._finish)
        yield self._head | {"object": "chat.completion.chunk", "choices": [], "usage": self._usage}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._head | {"object": "chat.completion.chunk", "choices": [choice]}


def _split_text(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def demo_model(*, delay: float = 0.02) -> Provider | str:
    """Return a real model if the environment has a key, otherwise the offline model.

    With ZAI_API_KEY or OPENAI_API_KEY, returns the model string of that vendor. Without a key, prints a note to stderr
    and returns the provider of an `OfflineModel`.

    Args:
        delay: Seconds between two chunks of the offline model.
    """
    for key, model in _VENDORS.items():
        if os.environ.get(key, "").strip():
            return model
    sys.stderr.write(f"No key found ({', '.join(_VENDORS)}): using the offline model.\n")
    return OfflineModel(delay=delay).provider()
