"""Response reader of `generateContent`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rxloop.errors import ProviderProtocolError
from rxloop.protocol.finish import COMPLETE
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.media import decode_base64
from rxloop.protocol.messages import FilePart, ImagePart
from rxloop.providers.codecs import JSONReader
from rxloop.providers.codecs.answer_end import normalise_finish_reason
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.fields import as_object, as_text, list_objects
from rxloop.providers.codecs.gemini.partial_arguments import PartialArguments
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.providers.error_responses import from_error_object
from rxloop.providers.failures import make_truncation_error

_MALFORMED = frozenset(("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"))

_UNSPECIFIED = frozenset(("FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED"))

_FAILURES = {"MISSING_THOUGHT_SIGNATURE": "INVALID_ARGUMENT", "MALFORMED_RESPONSE": "INTERNAL"}
"""Finish reasons for a failed answer, with the corresponding error status of Google."""

_ANSWER_FIELDS = frozenset(("candidates", "usageMetadata", "promptFeedback"))

_KNOWN_FIELDS = _ANSWER_FIELDS | {"modelVersion", "responseId", "createTime"}

_SOURCE_FIELDS = ("groundingMetadata", "citationMetadata", "urlContextMetadata")

_SIGNATURE = "thoughtSignature"

_PIECE_WEIGHT = 300
"""Approximate size charged per message piece."""


@dataclass(slots=True)
class _OpenCall:
    """Function call with streaming arguments."""

    index: int
    name: str
    extra: dict[str, Any]
    """Extra data of the call's piece."""
    arguments: PartialArguments
    continues: bool = False
    """True if the vendor announced more arguments."""


class GeminiReader(JSONReader):
    """Reads response chunks. Non-streaming responses are a single chunk.

    Since there is no end marker, completion is determined by the finish reason. Usage may follow later.
    """

    accepts_arrays = True

    def __init__(self, draft: MessageDraft, key: str) -> None:
        super().__init__(draft)
        self.key = key
        self._newest = ""
        """Current piece, if it can be continued: `thought` or `signed`."""
        self._calls = 0
        self._call: _OpenCall | None = None
        self._codes = 0
        self._has_reported_tools = False
        """True if a server tool reported its calls."""
        self._sources: list[dict[str, Any]] = []

    def read_event(self, event: dict[str, Any]) -> None:
        """Read one chunk."""
        if event.get("error"):
            raise from_error_object(event, self.draft.endpoint)
        if "usageMetadata" in event:
            self.draft.origin.identify(event.get("responseId"), event.get("modelVersion"))
            self.draft.count(event["usageMetadata"])
        candidates: Any = event.get("candidates")
        for candidate in candidates if candidates.__class__ is list else ():
            if candidate.__class__ is dict and not candidate.get("index"):
                self._read_candidate(candidate)
        if "promptFeedback" in event:
            reason = as_object(event["promptFeedback"]).get("blockReason")
            if isinstance(reason, str) and reason and reason not in _UNSPECIFIED:
                self.draft.finish("content_filter", reason)
        if candidates is None and not _KNOWN_FIELDS.intersection(event):
            self.report_unknown(f"an event with {_list_names(event)}")

    def read_answer(self, answer: dict[str, Any]) -> None:
        """Read a non-streaming response."""
        if not _ANSWER_FIELDS.intersection(answer):
            # Proxies may return their own errors.
            raise from_error_object(answer, self.draft.endpoint)
        self.read_event(answer)

    def complete(self) -> None:
        """Push the final events; see `ResponseReader`."""
        draft = self.draft
        if not self.is_complete:
            raise make_truncation_error(draft.endpoint)
        if draft.finish_reason in COMPLETE:
            # Otherwise incomplete arguments would look complete.
            self._end_call()
        if self._sources:
            self._cite()
        draft.complete(self.key)

    def _read_candidate(self, candidate: dict[str, Any]) -> None:
        content: Any = candidate.get("content")
        parts: Any = content.get("parts") if content.__class__ is dict else None
        if parts.__class__ is list:
            part: Any
            for part in parts:
                if part.__class__ is not dict:
                    continue
                text = part.get("text")
                # Fast path: nearly every part contains only text.
                if len(part) == 1 and text.__class__ is str and self._newest != "signed":
                    self._newest = ""
                    self.draft.write(text)
                else:
                    self._read_part(part)
        if len(candidate) > ("content" in candidate) + ("index" in candidate):
            self._read_metadata(candidate)

    def _read_metadata(self, candidate: dict[str, Any]) -> None:
        """Read candidate metadata."""
        if any(name in candidate for name in _SOURCE_FIELDS):
            self._charge(len(encode_json(candidate)))
            self._sources.append({name: candidate.get(name) for name in _SOURCE_FIELDS})
        reason = candidate.get("finishReason")
        if isinstance(reason, str) and reason and reason not in _UNSPECIFIED:
            if reason in _FAILURES:
                text = f"the answer failed: {reason} {as_text(candidate.get('finishMessage'))}"
                raise from_error_object({"message": text, "status": _FAILURES[reason]}, self.draft.endpoint)
            self.draft.finish(normalise_finish_reason(reason), reason)
            message = candidate.get("finishMessage")
            if reason in _MALFORMED and not self._calls and isinstance(message, str) and message:
                self.draft.discard_calls(message, reason)

    def _read_part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            self._read_text(part, text)
            return
        self._newest = ""
        if "functionCall" in part:
            # An empty call ends streamed arguments.
            self._read_call(part, as_object(part["functionCall"]))
        elif blob := as_object(part.get("inlineData")):
            self._read_file(part, blob)
        elif url := as_text(as_object(part.get("fileData")).get("fileUri")):
            kind = replace_surrogates(as_text(as_object(part["fileData"]).get("mimeType"))) or None
            part_type = ImagePart if (kind or "").startswith("image/") else FilePart
            self._keep_signature(self.draft.file(part_type(url=replace_surrogates(url), media_type=kind)), part)
        else:
            self._report_server_tool(part)
            self._charge(_PIECE_WEIGHT)
            self.draft.raw(part)

    def _read_text(self, part: dict[str, Any], text: str) -> None:
        """Read text or reasoning. Signed text becomes a separate piece, even if empty."""
        draft, signed = self.draft, isinstance(part.get(_SIGNATURE), str)
        if not text and not signed:
            return
        if part.get("thought") is True:
            if signed or self._newest != "thought":
                self._keep_signature(draft.begin_reasoning(), part)
            self._newest = "" if signed else "thought"
            draft.think(text)
        else:
            if signed or self._newest == "signed":
                self._keep_signature(draft.begin_text(), part)
            self._newest = "signed" if signed else ""
            draft.write(text)

    def _read_call(self, part: dict[str, Any], call: dict[str, Any]) -> None:
        """Read a function call or fragment. Partial arguments continue until `willContinue` is false."""
        name, pieces = as_text(call.get("name")), list_objects(call.get("partialArgs"))
        if name and not (self._call is not None and self._call.continues and self._call.name == name):
            self._end_call()
            self._begin_call(name, part, call)
        elif self._call is None:
            self.report_unknown("a call without a name")
            return
        else:
            self._keep_signature(self._call.extra, part)
        if (open_call := self._call) is None:
            return
        try:
            fragment = "".join(map(open_call.arguments.feed, pieces))
        except ProviderProtocolError as error:
            raise ProviderProtocolError(f"{self.draft.endpoint}: {error}") from None
        self.draft.call(open_call.index, fragment=fragment)
        open_call.continues = call.get("willContinue") is True
        if not open_call.continues and (pieces or not name):
            self._end_call()

    def _begin_call(self, name: str, part: dict[str, Any], call: dict[str, Any]) -> None:
        index, call_id = self._calls, as_text(call.get("id"))
        self._calls += 1
        # Arguments can follow as paths.
        arguments = as_object(call["args"]) if "args" in call else None
        self.draft.call(index, id=call_id, name=name, arguments=arguments)
        extra = self.draft.begin_call(index)
        self._keep_signature(extra, part)
        if call_id:
            # Only original ids are sent back.
            extra["id"] = call_id
        if arguments is None:
            self._call = _OpenCall(index, name, extra, PartialArguments(self.draft.bounds))

    def _end_call(self) -> None:
        """End the streamed arguments, if any."""
        if self._call is not None:
            ended, self._call = self._call, None
            self.draft.call(ended.index, fragment=ended.arguments.close())

    def _read_file(self, part: dict[str, Any], blob: dict[str, Any]) -> None:
        if part.get("thought") is True:
            # Google does not need thought images back.
            return
        try:
            data = decode_base64(as_text(blob.get("data")))
        except ValueError:
            data = b""
        if not data:
            self.report_unknown("a file that is not in base64")
            return
        kind = replace_surrogates(as_text(blob.get("mimeType"))) or "application/octet-stream"
        name = replace_surrogates(as_text(blob.get("displayName"))) or None
        if kind.startswith("image/"):
            file_part: ImagePart | FilePart = ImagePart(data=data, media_type=kind)
        else:
            file_part = FilePart(data=data, media_type=kind, filename=name)
        self._keep_signature(self.draft.file(file_part), part)

    def _report_server_tool(self, part: dict[str, Any]) -> None:
        """Publish an event for a server tool. The part itself is sent back unchanged."""
        report = self.draft.server_tool
        if code := as_object(part.get("executableCode")):
            self._codes += 1
            report(
                as_text(code.get("id")) or f"code_{self._codes}", "code_execution", "start", arguments=_drop_id(code)
            )
        elif response := as_object(part.get("codeExecutionResult")):
            call_id = as_text(response.get("id")) or f"code_{self._codes}"
            is_success = response.get("outcome") == "OUTCOME_OK"
            report(call_id, "code_execution", "complete", result=_drop_id(response), success=is_success)
        elif call := as_object(part.get("toolCall")):
            self._has_reported_tools = True
            report(as_text(call.get("id")), _find_tool_name(call), "start", arguments=as_object(call.get("args")))
        elif response := as_object(part.get("toolResponse")):
            self._has_reported_tools = True
            report(as_text(response.get("id")), _find_tool_name(response), "complete", result=response.get("response"))
        elif _SIGNATURE not in part:
            self.report_unknown(f"a part with {_list_names(part)}")

    def _cite(self) -> None:
        """Publish unreported searches and add citations."""
        # Imported lazily, since citations are rare.
        from rxloop.providers.codecs.gemini.citations import iter_citations, iter_searches

        if not self._has_reported_tools:
            for number, (name, arguments, result) in enumerate(iter_searches(self._sources), 1):
                self.draft.server_tool(f"{name}_{number}", name, "start", arguments=arguments)
                self.draft.server_tool(f"{name}_{number}", name, "complete", result=result)
        for citation in iter_citations(self._sources, self.draft.text.content):
            self.draft.cite(citation)

    def _keep_signature(self, extra: dict[str, Any], part: dict[str, Any]) -> None:
        signature = part.get(_SIGNATURE)
        if isinstance(signature, str):
            extra[_SIGNATURE] = signature
            self._charge(len(signature))
        self._charge(_PIECE_WEIGHT)

    def _charge(self, size: int) -> None:
        self.draft.other += size


def _find_tool_name(call: dict[str, Any]) -> str:
    return as_text(call.get("toolType")).lower() or "tool"


def _drop_id(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "id"}


def _list_names(fields: dict[str, Any]) -> str:
    return ", ".join(sorted(fields))[:200] or "nothing in it"
