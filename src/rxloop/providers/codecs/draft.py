"""The assistant message while it is assembled from an answer."""

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
from rxloop.protocol.finish import COMPLETE, KNOWN, REFUSAL, UNKNOWN
from rxloop.protocol.json_data import freeze_json, freeze_model, replace_surrogates
from rxloop.protocol.messages import Citation, FilePart, ImagePart, ToolCall
from rxloop.protocol.model import EMPTY_DICT, EMPTY_LIST, FrozenDict, FrozenList, make_unchecked
from rxloop.protocol.step_events import MALFORMED_REASON, NoticeCode
from rxloop.providers.bounds import DEFAULT_BOUNDS, VALUE_WEIGHT, Bounds, OutOfBounds, values_in
from rxloop.providers.catalog import LONG_KEPT
from rxloop.providers.codecs.answer_end import FAILED, MALFORMED_CALL, UsageReports
from rxloop.providers.codecs.fields import drop_encrypted
from rxloop.providers.codecs.provider_state import PieceRecorder
from rxloop.providers.codecs.text import AS_IT_IS, HEAVIEST, AnswerText, TextRules
from rxloop.providers.codecs.tool_calls import CallAssembler, dumped
from rxloop.providers.codecs.tools import ToolAdapter
from rxloop.providers.error_responses import from_error_object
from rxloop.providers.failures import Endpoint

_REASON = 2000
"""Maximum number of characters of a vendor's explanation."""

_complete = make_unchecked(ContentCompleteEvent, normalised=True)

_usage = make_unchecked(UsageEvent, normalised=True)


class MessageDraft:
    """Puts one answer together: pushes what comes as events, and at the end the usage and the whole message.

    A reader calls `write`, `think` and `call` as the pieces come, `finish` with the vendor's reason, and `complete` at
    the end. A vendor that wants its message back as it was also says where each piece begins: `begin_text`,
    `begin_reasoning`, `begin_call`, `raw`.
    """

    __slots__ = (
        "_citations",
        "_files",
        "_malformed",
        "_pieces",
        "_push",
        "_reports",
        "_room",
        "_state",
        "_uncounted",
        "bounds",
        "calls",
        "explanation",
        "find_limit",
        "finish_reason",
        "other",
        "raw_finish_reason",
        "refused",
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
        self.refused = False
        """Whether the text of the answer is a refusal of the model, whatever the vendor's finish reason is."""
        self.explanation = ""
        """The vendor's explanation of a refusal."""
        self.find_limit: Callable[[], int | None] | None = None
        """Returns the output limit of the request. Called only if the answer was truncated."""
        self._push = push
        self._pieces: PieceRecorder | None = None
        self._reports = UsageReports()
        self._state: dict[str, Any] = {}
        self._citations: list[Citation] = []
        self._malformed: str | None = None
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

    def restore(self, adapter: ToolAdapter) -> None:
        """Have calls of tools that the vendor knows by other names become calls of the tools as they are."""
        originals = adapter.adapt(tuple(self.tools)).originals
        if originals:
            self.calls.restore(originals)

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
        self._weigh(len(data) + VALUE_WEIGHT * values_in(data))
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
        """Keep something beside the pieces that the vendor wants back, or that its wire wants to know again."""
        self._state[key] = value

    def notice(self, code: NoticeCode, message: str) -> None:
        """Tell the stream that something was left out of the request, or passed over in the answer."""
        self._push(LLMNoticeEvent(code=code, message=replace_surrogates(self.where.clean(message)), step=self.step))

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
        """Read a usage report in the format of OpenAI, Anthropic or Google.

        Args:
            report: The report. Later reports replace the counts of earlier ones, except with zeros.
            cache_apart: The vendor counts its input without the tokens of the cache.
        """
        self._reports.add(report, cache_apart)

    def report_usage(self) -> None:
        """Push the tokens that the vendor has counted so far, once. An answer that fails costs them as well."""
        counts, self._reports = self._reports.counts(), UsageReports()
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
        """Say why the answer ended.

        Args:
            reason: `stop`, `tool_calls`, `length`, `content_filter`, or `pause`: the vendor wants to be asked to go on.
                Any other reason means that the message did not end normally. The first such reason counts.
            raw: The vendor's own word.
        """
        if self.finish_reason is None or self.finish_reason in COMPLETE or reason not in COMPLETE:
            self.finish_reason, self.raw_finish_reason = reason, raw

    def lose_calls(self, reason: str, raw: str) -> None:
        """End the message without calls, since the vendor could not read one. The model is asked again.

        Args:
            reason: What the vendor says about the call.
            raw: The vendor's word for it.
        """
        self._malformed = replace_surrogates(self.where.clean(reason))[:_REASON]
        self.finish("tool_calls", raw)

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
        self._explain()
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
        finish, raw = self._end(calls)
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
                metadata=FrozenDict({MALFORMED_REASON: self._malformed}) if self._malformed else EMPTY_DICT,
                step=self.step,
            )
        )

    def _explain(self) -> None:
        """Append the vendor's explanation of a refusal to the text."""
        if self.explanation and self.finish_reason == "content_filter":
            separator = "\n\n" if self.text.written else ""
            self.begin_text()
            self.write(f"{separator}{self.where.clean(self.explanation)[:_REASON]}")

    def _end(self, calls: list[ToolCall]) -> tuple[str, str | None]:
        """Decide how the message ended, and in whose words.

        Raises:
            ProviderError: The vendor says that there is no answer, or sent none and a reason that is not known.
        """
        finish, raw = self.finish_reason, self.raw_finish_reason
        if finish == FAILED:
            raise from_error_object({"message": f"the answer failed: {raw}"}, self.where)
        if self.refused and (finish is None or finish in COMPLETE):
            return "content_filter", raw or REFUSAL
        if finish is None:
            # The vendor ended the answer and named no reason, as Snowflake does. A call is complete if its JSON is.
            finish = "stop" if all(call.raw is not None and call.error is None for call in calls) else UNKNOWN
        if finish == MALFORMED_CALL:
            return (UNKNOWN if calls else "tool_calls"), raw
        if finish not in KNOWN:
            if not (calls or self._files or self.text.content):
                raise ProviderProtocolError(
                    f"{self.where} sent no answer, and the finish reason {self.where.clean(raw or finish)!r}, which is "
                    "not known here"
                )
            if raw:
                self.notice("passed_over", f"{self.where} sent the finish reason {raw!r}, which is not known here")
            return UNKNOWN, raw
        return ("tool_calls" if calls and finish == "stop" else finish), raw

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
            return freeze_json(value, name)
        except InvalidEvent as error:
            raise ProviderProtocolError(f"{self.where} sent what no message can hold: {error}") from None

    def _weigh(self, size: int) -> None:
        self.other += size
        if self.other > self.bounds.text:
            raise OutOfBounds("text", self.bounds.text)
