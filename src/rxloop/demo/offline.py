"""The offline model: an OpenAI-compatible endpoint that answers by rules, with no key and no network.

It listens on localhost and streams like a real one, so that an example without a key goes the whole way from the
socket to the event.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Self, cast

import orjson

from rxloop.demo.conversation import Conversation, Reply, Rule
from rxloop.demo.http import Connection, HTTPRequest, HTTPResponse
from rxloop.demo.rules import BUILT_IN
from rxloop.demo.typed import typed
from rxloop.errors import RxloopError
from rxloop.pipeline.seams import Provider
from rxloop.providers.openai_chat import openai_chat
from rxloop.providers.presets import Preset

MODEL = "offline"
_KEYS = {"ZAI_API_KEY": "zai:glm-4.7", "OPENAI_API_KEY": "openai:gpt-5"}


class OfflineModel:
    """A server that speaks `/v1/chat/completions` and `/v1/models`.

    Example:
        >>> async with OfflineModel() as offline:
        ...     agent = Agent(offline.provider())

    Args:
        rules: What answers, tried in order; the built-in rules follow, and the last of those always answers.
        port: Where to listen on localhost; 0 takes a free port.
        delay: Seconds between two chunks of a stream.

    Attributes:
        requests: The decoded bodies of the requests, in order.
        open: The number of streams that are being written.
    """

    def __init__(self, rules: Sequence[Rule] | None = None, port: int = 0, delay: float = 0.0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.open = 0
        self._rules = (*(rules or ()), *BUILT_IN)
        self._port = port
        self._delay = delay
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        """The address for clients."""
        if self._server is None:
            raise RxloopError("the offline model is not running: async with OfflineModel() as offline: ...")
        return f"http://127.0.0.1:{self._port}/v1"

    def provider(self) -> Provider:
        """Make a provider that talks to this server over HTTP."""
        return openai_chat("demo", preset=Preset(name=MODEL, base_url=self.base_url), api_key=MODEL)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening, and cut off what is still being written."""
        if self._server is None:
            return
        self._server.close()
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections)
        await self._server.wait_closed()
        self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio would make the task itself, and log its cancellation as an error.
        task = asyncio.get_running_loop().create_task(Connection(reader, writer, self._handle).serve())
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _handle(self, request: HTTPRequest) -> HTTPResponse:
        if request.path.endswith("/models") and request.method == "GET":
            return HTTPResponse.json(
                {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "rxloop"}]}
            )
        if not request.path.endswith("/chat/completions"):
            return _refused(404, f"there is nothing at {request.path}")
        if request.method != "POST":
            return _refused(405, f"{request.path} takes POST only")
        try:
            body = orjson.loads(request.body)
        except orjson.JSONDecodeError as error:
            return _refused(400, f"the body is not JSON: {error}")
        if not isinstance(body, dict) or not isinstance(cast("dict[str, Any]", body).get("messages"), list):
            return _refused(400, "the body needs `messages`, a list")
        wanted = cast("dict[str, Any]", body)
        self.requests.append(wanted)
        try:
            conversation = Conversation(wanted)
            answer = _Answer(wanted, conversation, self._reply(conversation), len(self.requests))
        except (KeyError, TypeError, AttributeError) as error:
            return _refused(400, f"the request cannot be read: {type(error).__name__}: {error}")
        if not wanted.get("stream"):
            return HTTPResponse.json(answer.whole())
        return HTTPResponse(chunks=self._stream(answer), headers={"content-type": "text/event-stream"})

    def _reply(self, conversation: Conversation) -> Reply:
        for rule in self._rules:
            if (reply := rule(conversation)) is not None:
                return typed(conversation, reply)
        raise AssertionError("unreachable: the last built-in rule always answers")

    async def _stream(self, answer: _Answer) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            for chunk in answer.chunks():
                yield b"data: %s\n\n" % orjson.dumps(chunk)
                if self._delay:
                    await asyncio.sleep(self._delay)
            yield b"data: [DONE]\n\n"
        finally:
            self.open -= 1


def _refused(status: int, message: str) -> HTTPResponse:
    return HTTPResponse.json({"error": {"message": message, "type": "invalid_request_error"}}, status)


class _Answer:
    """A reply in the form of the wire."""

    def __init__(self, body: Mapping[str, Any], conversation: Conversation, reply: Reply, number: int) -> None:
        self._reply = reply
        self._calls: list[dict[str, Any]] = [
            {
                "id": conversation.call_id(index),
                "type": "function",
                "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
            }
            for index, (name, arguments) in enumerate(reply.calls)
        ]
        self._head = {"id": f"chatcmpl-{number}", "created": 0, "model": body.get("model") or MODEL}
        self._finish = "tool_calls" if self._calls else "stop"
        said = [reply.reasoning, reply.text, *(call["function"]["arguments"] for call in self._calls)]
        read = len(orjson.dumps(body["messages"])) // 4
        written = sum(len(_pieces(text)) for text in said)
        self._usage: dict[str, Any] = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        if reply.reasoning:
            self._usage["completion_tokens_details"] = {"reasoning_tokens": len(_pieces(reply.reasoning))}

    def whole(self) -> dict[str, Any]:
        """Return the whole answer at once."""
        message: dict[str, Any] = {"role": "assistant", "content": self._reply.text or None}
        if self._reply.reasoning:
            message["reasoning_content"] = self._reply.reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return self._head | {"object": "chat.completion", "choices": [choice], "usage": self._usage}

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Give the answer word by word, and the arguments of calls in fragments; the usage comes last."""
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in _pieces(self._reply.reasoning):
            yield self._chunk({"reasoning_content": piece})
        for piece in _pieces(self._reply.text):
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


def _pieces(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def serve_in_thread(model: OfflineModel) -> Callable[[], None]:
    """Run an offline model in a daemon thread with an event loop of its own.

    Returns:
        What stops it.
    """
    ready: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = concurrent.futures.Future()

    async def serve() -> None:
        stop = asyncio.Event()
        try:
            await model.__aenter__()
        except Exception as error:
            ready.set_exception(error)
            return
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        await model.aclose()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="rxloop-offline-model", daemon=True)
    thread.start()
    loop, stop = ready.result()

    def end() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
            thread.join(timeout=5)

    return end


@cache
def _background(delay: float) -> OfflineModel:
    model = OfflineModel(delay=delay)
    atexit.register(serve_in_thread(model))
    return model


def demo_model(*, delay: float = 0.02) -> Provider | str:
    """Return the model for an example: a real one if the environment has a key, else the offline model.

    With ZAI_API_KEY or OPENAI_API_KEY it is the model string of that vendor. Without a key it says so on stderr,
    starts an `OfflineModel` on localhost for the rest of the process, and gives a provider that talks to it.

    Args:
        delay: Seconds between two chunks of the offline model.
    """
    for key, model in _KEYS.items():
        if os.environ.get(key, "").strip():
            return model
    sys.stderr.write(f"No key found ({', '.join(_KEYS)}): using the offline model.\n")
    return _background(delay).provider()
