"""Compressors for benchmarks that use OpenAI chat messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rxloop.context.compression import Compression, CompressionState
from rxloop.context.compressors import (
    ChainedCompressor,
    SemanticCompressor,
    SlidingWindowCompressor,
    TokenBudgetCompressor,
)
from rxloop.pipeline.interfaces import Compressor
from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.messages import Message, ToolCall

Chat = dict[str, Any]
Compress = Callable[[list[Chat], int, Callable[[list[Chat]], int]], list[Chat]]


def to_message(chat: Chat) -> Message:
    """Convert an OpenAI chat message."""
    calls = [
        ToolCall.parse(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in chat.get("tool_calls") or ()
    ]
    return Message(
        role=chat["role"],
        content=chat.get("content") or "",
        reasoning=chat.get("reasoning_content"),
        tool_calls=tuple(calls),
        tool_call_id=chat.get("tool_call_id"),
    )


class _Conversation:
    """Transcript whose messages are converted once and counted by the benchmark's token counter."""

    def __init__(self, make: Callable[[int], Compressor]) -> None:
        self._make = make
        self._messages: list[Message] = []
        self._chats: dict[int, Chat] = {}
        self._tokens: dict[int, int] = {}
        self._state: CompressionState | None = None
        # Build pydantic models now, so that the time is not attributed to the compression.
        Message.user("")

    def __call__(self, history: list[Chat], budget: int, count: Callable[[list[Chat]], int]) -> list[Chat]:
        first = next((place for place, chat in enumerate(history) if chat["role"] != "system"), len(history))
        system, rest = history[:first], history[first:]
        for chat in rest[len(self._messages) :]:
            message = to_message(chat)
            self._messages.append(message)
            self._chats[id(message)] = chat
        self._count = count
        compression = Compression(self._make(budget), self._messages, self, state=self._state, overhead=count(system))
        done = asyncio.run(compression.result())
        self._state = done.state
        return system + [self._chat(message) for message in done.messages]

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        return sum(map(self._count_tokens, messages))

    def _count_tokens(self, message: Message) -> int:
        chat = self._chats.get(id(message))
        if chat is None:
            return self._count([self._chat(message)])
        tokens = self._tokens.get(id(message))
        if tokens is None:
            tokens = self._tokens[id(message)] = self._count([chat])
        return tokens

    def _chat(self, message: Message) -> Chat:
        chat = self._chats.get(id(message))
        if chat is None:
            chat = {"role": message.role, "content": message.text}
            if message.tool_call_id is not None:
                chat["tool_call_id"] = message.tool_call_id
        return chat


def sliding_window() -> Compress:
    """Create a `SlidingWindowCompressor` for a transcript."""
    return _Conversation(SlidingWindowCompressor)


def semantic() -> Compress:
    """Create a `SemanticCompressor` for a transcript."""
    return _Conversation(SemanticCompressor)


def token_budget() -> Compress:
    """Create a `TokenBudgetCompressor` for a transcript."""
    return _Conversation(TokenBudgetCompressor)


def chained() -> Compress:
    """Create a chain of two compressors."""
    return _Conversation(
        lambda tokens: ChainedCompressor(TokenBudgetCompressor(tokens), SlidingWindowCompressor(tokens))
    )
