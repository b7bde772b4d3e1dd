"""Assistant message under construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

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
from rxloop.protocol.finish import COMPLETE, KNOWN, MALFORMED_REASON, REFUSAL, UNKNOWN
from rxloop.protocol.json_data import freeze_json, freeze_model, replace_surrogates
from rxloop.protocol.messages import Citation, FilePart, ImagePart, ToolCall
from rxloop.protocol.model import EMPTY_DICT, EMPTY_LIST, FrozenDict, FrozenList, make_unchecked
from rxloop.protocol.step_events import NoticeCode
from rxloop.providers.bounds import DEFAULT_BOUNDS, VALUE_WEIGHT, Bounds, OutOfBounds
from rxloop.providers.catalog import LONG_KEPT
from rxloop.providers.codecs.answer_end import FAILED, MALFORMED_CALL, ResponseOrigin, UsageReports
from rxloop.providers.codecs.fields import drop_encrypted
from rxloop.providers.codecs.provider_state import PieceRecorder
from rxloop.providers.codecs.text import MAX_WEIGHT_PER_BYTE, UNFILTERED, AnswerText, TextRules
from rxloop.providers.codecs.tool_calls import CallAssembler, encode_json
from rxloop.providers.codecs.tools import ToolAdapter
from rxloop.providers.error_responses import from_error_object
from rxloop.providers.failures import Endpoint
from rxloop.support.json_limits import count_values

_REASON = 2000
"""Maximum number of characters of a vendor's explanation."""

_complete = make_unchecked(ContentCompleteEvent, normalised=True)

_usage = make_unchecked(UsageEvent, normalised=True)


class MessageDraft:
    """Assistant message under construction. Deltas are pushed immediately.

    Readers call `write`, `think` and `call` for fragments, `finish` with the finish reason, and finally `complete`. If
    the vendor needs the original message back, the reader also marks piece boundaries: `begin_text`,
    `begin_reasoning`, `begin_call`, `raw`.
    """

    __slots__ = (
        "_citations",
        "_files",
        "_malformed",
        "_pieces",
        "_push",
        "_remaining",
        "_state",
        "_uncounted",
        "_usage_reports",
        "bounds",
        "calls",
        "endpoint",
        "explanation",
        "find_limit",
        "finish_reason",
        "origin",
        "other",
        "raw_finish_reason",
        "refused",
        "step",
        "text",
        "tools",
    )

    def __init__(
        self,
        push: Callable[[Event], None],
        step: str,
        endpoint: Endpoint,
        tools: Sequence[ToolDefinition] = (),
        rules: TextRules = UNFILTERED,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self.step = step
        self.endpoint = endpoint
        """Endpoint, for error messages."""
        self.tools = tools
        """Offered tools."""
        self.bounds = bounds
        self.text = AnswerText(push, step, rules, bounds)
        self.calls = CallAssembler(push, step, tools, rules.strip, bounds)
        self.finish_reason: str | None = None
        """Original finish reason."""
        self.raw_finish_reason: str | None = None
        """The vendor's finish reason."""
        self.refused = False
        """True if the text is a refusal, regardless of the vendor's finish reason."""
        self.explanation = ""
        """The vendor's refusal explanation."""
        self.find_limit: Callable[[], int | None] | None = None
        """Returns the output limit of the request. Called only if the answer was truncated."""
        self.origin = ResponseOrigin(endpoint)
        self._push = push
        self._pieces: PieceRecorder | None = None
        self._usage_reports = UsageReports()
        self._state: dict[str, Any] = {}
        self._citations: list[Citation] = []
        self._malformed: str | None = None
        self._files: list[ImagePart | FilePart] = []
        self.other = 0
        """Approximate size in characters of everything except text, reasoning and calls."""
        self._remaining = bounds.text
        """Remaining characters of the message at the last size check."""
        self._uncounted = 0
        """Bytes read since the last size check."""

    def write(self, text: str) -> None:
        """Append text to the message."""
        self.text.write(text)

    def think(self, text: str) -> None:
        """Append reasoning to the message."""
        self.text.think(text)

    def call(
        self, index: int, *, id: str = "", name: str = "", fragment: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        """Append a tool call fragment.

        Args:
            index: Zero-based call index.
            id: The vendor's id; generated if empty.
            name: Tool name, sent with the first fragment.
            fragment: Partial JSON arguments.
            arguments: Complete arguments, if sent as an object.
        """
        written = fragment if arguments is None else arguments
        self.calls.feed({"index": index, "id": id, "function": {"name": name, "arguments": written}})

    def restore(self, adapter: ToolAdapter) -> None:
        """Translate the vendor's tool names in calls back to the original names."""
        originals = adapter.adapt(tuple(self.tools)).originals
        if originals:
            self.calls.restore(originals)

    def begin_text(self) -> dict[str, Any]:
        """Begin a text piece. The returned `extra` object can be filled with citations."""
        return self._recorder.begin("text", *self._mark)

    def begin_reasoning(self) -> dict[str, Any]:
        """Begin a reasoning piece. The returned `extra` object can be filled with a signature."""
        return self._recorder.begin("reasoning", *self._mark)

    def begin_call(self, index: int) -> dict[str, Any]:
        """Begin a call piece and return its `extra` object."""
        return self._recorder.call(index, *self._mark)

    def raw(self, part: dict[str, Any]) -> None:
        """Append an opaque vendor part."""
        data = encode_json(part)
        self._charge(len(data) + VALUE_WEIGHT * count_values(data, self.bounds.text // VALUE_WEIGHT))
        self._recorder.raw(part, *self._mark)

    def file(self, part: ImagePart | FilePart) -> dict[str, Any]:
        """Append a generated file and return its `extra` object."""
        # Files are stored as base64 in the log.
        self._charge(len(part.data or part.url or "") * 4 // 3)
        self._files.append(part)
        return self._recorder.file(len(self._files) - 1, *self._mark)

    def cite(self, citation: Citation) -> None:
        """Add a cited source."""
        self._charge(len(citation.text or "") + len(citation.url or "") + len(citation.title or "") + 200)
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
        """Publish server tool progress without encrypted fields."""
        self._push(
            ServerToolEvent(
                tool_call_id=replace_surrogates(id),
                name=replace_surrogates(name),
                phase=phase,
                arguments=self._storable(drop_encrypted(arguments), "the arguments"),
                result=self._storable(drop_encrypted(result), "the result"),
                success=success,
                step=self.step,
            )
        )

    def keep(self, key: str, value: Any) -> None:
        """Set a `provider_state` entry besides the message pieces."""
        self._state[key] = value

    def notice(self, code: NoticeCode, message: str) -> None:
        """Publish a notice about dropped data."""
        self._push(LLMNoticeEvent(code=code, message=replace_surrogates(self.endpoint.clean(message)), step=self.step))

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
        """Set the token counts of the answer. Later counts replace earlier ones.

        Args:
            input: All input tokens, including cached tokens.
            output: All output tokens, including reasoning tokens.
            cached: Input tokens that were read from the cache.
            cache_write: Input tokens that were written to the cache.
            cache_write_long: Tokens of `cache_write` with a long time to live, such as an hour, which cost more.
            reasoning: Output tokens that were used for reasoning.
        """
        self.count(
            {
                "input_tokens": input,
                "output_tokens": output,
                "cached_tokens": cached,
                "cache_write_tokens": cache_write,
                "cache_creation": {"ephemeral_1h_input_tokens": cache_write_long},
                "reasoning_tokens": reasoning,
            }
        )

    def count(self, report: Any, cache_apart: bool = False) -> None:
        """Add a usage report in the format of OpenAI, Anthropic or Google.

        Args:
            report: The report. Its counts replace those of earlier reports, except zeros.
            cache_apart: True if the input count excludes cached tokens.
        """
        self._usage_reports.add(report, cache_apart)

    def report_usage(self) -> None:
        """Publish the token counts received so far, once. A failed answer is charged as well."""
        counts, self._usage_reports = self._usage_reports.counts(), UsageReports()
        if counts is None:
            return
        long = counts.cache_write_long
        self._push(
            _usage(
                metadata=FrozenDict({LONG_KEPT: long}) if long else EMPTY_DICT,
                input_tokens=counts.input,
                output_tokens=counts.output,
                cached_tokens=counts.cached,
                cache_write_tokens=counts.cache_write,
                reasoning_tokens=counts.reasoning,
                step=self.step,
            )
        )

    def finish(self, reason: str, raw: str | None) -> None:
        """Set the finish reason.

        Args:
            reason: `stop`, `tool_calls`, `length`, `content_filter`, or `pause` if the vendor wants another request to
                continue.
                Any other reason is an abnormal end. The first abnormal reason wins.
            raw: The vendor's finish reason.
        """
        if self.finish_reason is None or self.finish_reason in COMPLETE or reason not in COMPLETE:
            self.finish_reason, self.raw_finish_reason = reason, raw

    def discard_calls(self, reason: str, raw: str) -> None:
        """End the message without calls because parsing one failed. The loop will call the model again.

        Args:
            reason: The vendor's error message.
            raw: The vendor's finish reason.
        """
        self._malformed = replace_surrogates(self.endpoint.clean(reason))[:_REASON]
        self.finish("tool_calls", raw)

    def read(self, size: int) -> None:
        """Count received bytes and occasionally check the message size.

        Raises:
            OutOfBounds: The message is too large.
        """
        self._uncounted += size
        if self._uncounted * MAX_WEIGHT_PER_BYTE > self._remaining:
            self.check_size()

    def check_size(self) -> None:
        """Check the message size.

        Raises:
            OutOfBounds: The message is too large.
        """
        self._remaining = self.bounds.text - (self.text.size + self.calls.size + self.other)
        self._uncounted = 0
        if self._remaining < 0:
            raise OutOfBounds("text", self.bounds.text)

    def complete(self, key: str) -> None:
        """Publish held-back text, reasoning, usage and the complete message.

        Args:
            key: Key for the message pieces in `provider_state`.
        """
        self._append_explanation()
        self.text.finish()
        if self._malformed is None:
            self.calls.flush()
        reasoning = replace_surrogates(self.text.reasoning)
        if reasoning.strip():
            thought_id = f"{self.step}.reasoning"
            self._push(ThoughtStreamEvent(thought_id=thought_id, content=reasoning, source="reasoning", step=self.step))
        self.report_usage()
        calls = self.calls.finish() if self._malformed is None else []
        for name in self.calls.repaired:
            self.notice("repaired", f"the arguments of {name} are the only JSON value in a text that is not JSON")
        pieces = None if self._pieces is None else self._pieces.finish(*self._mark)
        state = {**self._state, key: pieces} if pieces else self._state
        finish, raw = self._resolve_finish(calls)
        self._push(
            _complete(
                content=replace_surrogates(self.text.content),
                reasoning=reasoning or None,
                tool_calls=FrozenList(freeze_model(call, "tool_calls") for call in calls) if calls else EMPTY_LIST,
                files=FrozenList(freeze_model(part, "files") for part in self._files) if self._files else EMPTY_LIST,
                citations=FrozenList(freeze_model(each, "citations") for each in self._citations)
                if self._citations
                else EMPTY_LIST,
                finish_reason=finish,
                raw_finish_reason=None if raw is None else replace_surrogates(raw),
                max_tokens=self.find_limit() if finish == "length" and self.find_limit is not None else None,
                provider_state=self._storable(state, "the state") if state else None,
                response=self.origin.describe(),
                metadata=FrozenDict({MALFORMED_REASON: self._malformed}) if self._malformed else EMPTY_DICT,
                step=self.step,
            )
        )

    def _append_explanation(self) -> None:
        """Append the vendor's explanation of a refusal to the text."""
        if self.explanation and self.finish_reason == "content_filter":
            separator = "\n\n" if self.text.content_length else ""
            self.begin_text()
            self.write(f"{separator}{self.endpoint.clean(self.explanation)[:_REASON]}")

    def _resolve_finish(self, calls: list[ToolCall]) -> tuple[str, str | None]:
        """Return the final finish reason, normalised and raw.

        Raises:
            ProviderError: The vendor reported a failure, or an unknown reason without content.
        """
        finish, raw = self.finish_reason, self.raw_finish_reason
        if finish == FAILED:
            raise from_error_object({"message": f"the answer failed: {raw}"}, self.endpoint)
        if self.refused and (finish is None or finish in COMPLETE):
            return "content_filter", raw or REFUSAL
        if finish is None:
            # Some vendors, such as Snowflake, send no finish reason. Valid JSON then means that a call is complete.
            finish = "stop" if all(call.raw is not None and call.error is None for call in calls) else UNKNOWN
        if finish == MALFORMED_CALL:
            return (UNKNOWN if calls else "tool_calls"), raw
        if finish not in KNOWN:
            if not (calls or self._files or self.text.content):
                text = self.endpoint.clean(raw or finish)
                raise ProviderProtocolError(f"{self.endpoint} sent no answer and the unknown finish reason {text!r}")
            if raw:
                self.notice("skipped", f"{self.endpoint} sent the unknown finish reason {raw!r}")
            return UNKNOWN, raw
        return ("tool_calls" if calls and finish == "stop" else finish), raw

    @property
    def _recorder(self) -> PieceRecorder:
        if self._pieces is None:
            self._pieces = PieceRecorder()
        return self._pieces

    @property
    def _mark(self) -> tuple[int, int]:
        return self.text.content_length, self.text.reasoning_length

    def _storable(self, value: Any, name: str) -> Any:
        try:
            return freeze_json(value, name)
        except InvalidEvent as error:
            raise ProviderProtocolError(f"{self.endpoint} sent a value that cannot be stored: {error}") from None

    def _charge(self, size: int) -> None:
        self.other += size
        if self.other > self.bounds.text:
            raise OutOfBounds("text", self.bounds.text)
