"""The message that an answer becomes: deltas as they come, and at the end the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from rxloop.errors import InvalidEvent, ProviderProtocolError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    LLMNoticeEvent,
    ServerToolEvent,
    ThoughtStreamEvent,
    UsageEvent,
)
from rxloop.protocol.frozen import EMPTY_DICT, EMPTY_LIST, FrozenDict, FrozenList
from rxloop.protocol.messages import Citation, FilePart, ImagePart
from rxloop.protocol.step_events import NoticeCode
from rxloop.protocol.storable import readable, settled_model, storable
from rxloop.protocol.unchecked import unchecked
from rxloop.providers._documents import values_in
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds
from rxloop.providers.failures._errors import Endpoint
from rxloop.providers.prices import LONG_KEPT
from rxloop.providers.reading._calls import CallAssembler, dumped
from rxloop.providers.reading._fields import tokens
from rxloop.providers.reading._pieces import PieceRecorder
from rxloop.providers.reading._text import HEAVIEST, AnswerText, TextRules

AS_IT_IS = TextRules()
_VALUE = 30
"""Characters that a value counts for where it is kept as it came, since many of them are short in JSON."""
_complete = unchecked(ContentCompleteEvent, settled=True)
_usage = unchecked(UsageEvent, settled=True)


class Draft:
    """Puts one answer together: pushes what comes as events, and at the end the usage and the whole message.

    A reader calls `write`, `think` and `call` as the pieces come, `finish` with the vendor's reason, and `complete` at
    the end. A vendor that wants its message back as it was also says where each piece begins: `begin_text`,
    `begin_reasoning`, `begin_call`, `raw`.
    """

    __slots__ = (
        "_citations",
        "_files",
        "_pieces",
        "_push",
        "_room",
        "_state",
        "_uncounted",
        "_usage",
        "bounds",
        "calls",
        "finish_reason",
        "other",
        "raw_finish_reason",
        "step",
        "text",
        "tools",
        "where",
    )

    def __init__(
        self,
        push: Callable[[Event], None],
        step: str,
        where: Endpoint,
        tools: Sequence[ToolDefinition] = (),
        rules: TextRules = AS_IT_IS,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self.step = step
        self.where = where
        """The endpoint, for messages of errors."""
        self.tools = tools
        """The tools that the request offered."""
        self.bounds = bounds
        self.text = AnswerText(push, step, rules, bounds)
        self.calls = CallAssembler(push, step, tools, rules.strip, bounds)
        self.finish_reason: str | None = None
        """Why the answer ended, in our words; None while it has not."""
        self.raw_finish_reason: str | None = None
        """Why it ended, in the vendor's words."""
        self._push = push
        self._pieces: PieceRecorder | None = None
        self._usage: UsageEvent | None = None
        self._state: dict[str, Any] = {}
        self._citations: list[Citation] = []
        self._files: list[ImagePart | FilePart] = []
        self.other = 0
        """About how many characters there are besides text, reasoning and calls."""
        self._room = bounds.text
        """How many more characters the message could have when its size was looked at last."""
        self._uncounted = 0
        """The bytes that have been read since then."""

    def write(self, text: str) -> None:
        """Take a piece of the text."""
        self.text.write(text)

    def think(self, text: str) -> None:
        """Take a piece of the reasoning."""
        self.text.think(text)

    def call(
        self, index: int, *, id: str = "", name: str = "", fragment: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        """Take a piece of a tool call.

        Args:
            index: The place of the call among the calls of the answer, from 0.
            id: The vendor's id; one is made up where it has none.
            name: The name of the tool, with the first piece.
            fragment: A piece of the arguments, as JSON.
            arguments: All of them, where the vendor sends them as an object.
        """
        written = fragment if arguments is None else arguments
        self.calls.feed({"index": index, "id": id, "function": {"name": name, "arguments": written}})

    def begin_text(self) -> dict[str, Any]:
        """Say that a piece of text begins; return what is kept beside it, such as its citations, to be filled."""
        return self._recorder.begin("text", *self._mark)

    def begin_reasoning(self) -> dict[str, Any]:
        """Say that a piece of reasoning begins; return what is kept beside it, such as its signature, to be filled."""
        return self._recorder.begin("reasoning", *self._mark)

    def begin_call(self, index: int) -> dict[str, Any]:
        """Say that a call begins; return what is kept beside it, to be filled."""
        return self._recorder.call(index, *self._mark)

    def raw(self, part: dict[str, Any]) -> None:
        """Keep a part that only the vendor understands, in its place."""
        data = dumped(part)
        self._weigh(len(data) + _VALUE * values_in(data))
        self._recorder.raw(part, *self._mark)

    def file(self, part: ImagePart | FilePart) -> dict[str, Any]:
        """Take a file that the model made; return what is kept beside it, to be filled."""
        # In base64, as in the log.
        self._weigh(len(part.data or part.url or "") * 4 // 3)
        self._files.append(part)
        return self._recorder.file(len(self._files) - 1, *self._mark)

    def cite(self, citation: Citation) -> None:
        """Take a source that the model names."""
        self._weigh(len(citation.text or "") + len(citation.url or "") + len(citation.title or "") + 200)
        self._citations.append(citation)

    def server_tool(
        self,
        id: str,
        name: str,
        phase: Literal["start", "complete"],
        *,
        arguments: Any = None,
        result: Any = None,
        success: bool = True,
    ) -> None:
        """Tell of a tool that the vendor carries out itself; what it gives encrypted is for nobody but the vendor."""
        self._push(
            ServerToolEvent(
                tool_call_id=readable(id),
                name=readable(name),
                phase=phase,
                arguments=self._storable(_without_encrypted(arguments), "the arguments"),
                result=self._storable(_without_encrypted(result), "the result"),
                success=success,
                step=self.step,
            )
        )

    def keep(self, key: str, value: Any) -> None:
        """Keep something beside the pieces that the vendor wants back, or that its wire wants to know again."""
        self._state[key] = value

    def notice(self, code: NoticeCode, message: str) -> None:
        """Tell the stream that something was left out of the request, or passed over in the answer."""
        self._push(LLMNoticeEvent(code=code, message=readable(self.where.clean(message)), step=self.step))

    def usage(
        self,
        *,
        input: Any,
        output: Any,
        cached: Any = None,
        cache_write: Any = None,
        cache_write_long: Any = None,
        reasoning: Any = None,
    ) -> None:
        """Take the vendor's word on the tokens: the last one counts.

        Args:
            input: All tokens of the request, those of the cache among them.
            output: All tokens of the answer, those of reasoning among them.
            cached: Of the input, those that came from the cache.
            cache_write: Of the input, those that were put into the cache.
            cache_write_long: Of those, the ones that are to be kept for long and cost more, such as for an hour.
            reasoning: Of the output, those of reasoning.
        """
        kept = tokens(cache_write_long)
        self._usage = _usage(
            metadata=FrozenDict({LONG_KEPT: kept}) if kept else EMPTY_DICT,
            input_tokens=tokens(input),
            output_tokens=tokens(output),
            cached_tokens=tokens(cached),
            cache_write_tokens=tokens(cache_write),
            reasoning_tokens=tokens(reasoning),
            step=self.step,
        )

    def finish(self, reason: str, raw: str | None) -> None:
        """Say why the answer ended.

        Args:
            reason: `stop`, `tool_calls`, `length`, `content_filter`, or `pause`: the vendor wants to be asked to go on.
            raw: The vendor's own word.
        """
        self.finish_reason, self.raw_finish_reason = reason, raw

    def read(self, size: int) -> None:
        """Note that so many bytes were read, and check the size of the message now and then.

        Raises:
            OutOfBounds: It is larger than a message may be.
        """
        self._uncounted += size
        if self._uncounted * HEAVIEST > self._room:
            self.check_size()

    def check_size(self) -> None:
        """Check that the message is not larger than one may be.

        Raises:
            OutOfBounds: It is.
        """
        self._room = self.bounds.text - (self.text.size + self.calls.size + self.other)
        self._uncounted = 0
        if self._room < 0:
            raise OutOfBounds("text", self.bounds.text)

    def complete(self, key: str) -> None:
        """Push what ends the answer: the text held back, its reasoning as one thought, the usage, the whole message.

        Args:
            key: Under which name the pieces are kept for the way back.
        """
        self.text.finish()
        reasoning = readable(self.text.reasoning)
        if reasoning.strip():
            thought_id = f"{self.step}.reasoning"
            self._push(ThoughtStreamEvent(thought_id=thought_id, content=reasoning, source="reasoning", step=self.step))
        if self._usage is not None:
            self._push(self._usage)
        calls = self.calls.finish()
        pieces = None if self._pieces is None else self._pieces.finish(*self._mark)
        state = {**self._state, key: pieces} if pieces else self._state
        finish = self.finish_reason or "stop"
        if calls and finish == "stop":
            finish = "tool_calls"
        raw = self.raw_finish_reason
        self._push(
            _complete(
                content=readable(self.text.content),
                reasoning=reasoning or None,
                tool_calls=FrozenList(settled_model(call, "tool_calls") for call in calls) if calls else EMPTY_LIST,
                files=FrozenList(settled_model(part, "files") for part in self._files) if self._files else EMPTY_LIST,
                citations=FrozenList(settled_model(each, "citations") for each in self._citations)
                if self._citations
                else EMPTY_LIST,
                finish_reason=finish,
                raw_finish_reason=None if raw is None else readable(raw),
                provider_state=self._storable(state, "the state") if state else None,
                step=self.step,
            )
        )

    @property
    def _recorder(self) -> PieceRecorder:
        if self._pieces is None:
            self._pieces = PieceRecorder()
        return self._pieces

    @property
    def _mark(self) -> tuple[int, int]:
        return self.text.written, self.text.reasoned

    def _storable(self, value: Any, name: str) -> Any:
        try:
            return storable(value, name)
        except InvalidEvent as error:
            raise ProviderProtocolError(f"{self.where} sent what no message can hold: {error}") from None

    def _weigh(self, size: int) -> None:
        self.other += size
        if self.other > self.bounds.text:
            raise OutOfBounds("text", self.bounds.text)


def _without_encrypted(value: Any) -> Any:
    """A value without fields such as `encrypted_content`: the vendor gets them back beside the message."""
    if isinstance(value, list):
        return [_without_encrypted(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {name: _without_encrypted(each) for name, each in fields.items() if not name.startswith("encrypted_")}
