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
from rxloop.providers.codecs.fields import object_of, objects, text_of
from rxloop.providers.codecs.gemini.partial_arguments import PartialArguments
from rxloop.providers.codecs.tool_calls import dumped
from rxloop.providers.error_responses import from_error_object
from rxloop.providers.failures import cut_short

_MALFORMED = frozenset(("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"))

_UNSPECIFIED = frozenset(("FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED"))

_FAILED = {"MISSING_THOUGHT_SIGNATURE": "INVALID_ARGUMENT", "MALFORMED_RESPONSE": "INTERNAL"}
"""Finish reasons for a failed answer, with the corresponding error status of Google."""

_ANSWER = frozenset(("candidates", "usageMetadata", "promptFeedback"))

_KNOWN = _ANSWER | {"modelVersion", "responseId", "createTime"}

_SOURCES = ("groundingMetadata", "citationMetadata", "urlContextMetadata")

_SIGNATURE = "thoughtSignature"

_PIECE = 300
"""Approximate size charged per message piece."""


@dataclass(slots=True)
class _OpenCall:
    """Function call with streaming arguments."""

    place: int
    name: str
    extra: dict[str, Any]
    """Extra data of the call's piece."""
    arguments: PartialArguments
    goes_on: bool = False
    """True if the vendor announced more arguments."""


class GeminiReader(JSONReader):
    """Reads response chunks. Non-streaming responses are a single chunk.

    Since there is no end marker, completion is determined by the finish reason. Usage may follow later.
    """

    arrays = True

    def __init__(self, draft: MessageDraft, key: str) -> None:
        super().__init__(draft)
        self.key = key
        self._newest = ""
        """Current piece, if it can be continued: `thought` or `signed`."""
        self._calls = 0
        self._call: _OpenCall | None = None
        self._code = 0
        self._searched = False
        """True if a server tool reported its calls."""
        self._sources: list[dict[str, Any]] = []

    def event(self, event: dict[str, Any]) -> None:
        """Read one chunk."""
        if event.get("error"):
            raise from_error_object(event, self.draft.where)
        if "usageMetadata" in event:
            self.draft.count(event["usageMetadata"])
        candidates: Any = event.get("candidates")
        for candidate in candidates if candidates.__class__ is list else ():
            if candidate.__class__ is dict and not candidate.get("index"):
                self._candidate(candidate)
        if "promptFeedback" in event:
            reason = object_of(event["promptFeedback"]).get("blockReason")
            if isinstance(reason, str) and reason and reason not in _UNSPECIFIED:
                self.draft.finish("content_filter", reason)
        if candidates is None and not _KNOWN.intersection(event):
            self.pass_over(f"an event with {_names(event)}")

    def answer(self, answer: dict[str, Any]) -> None:
        """Read a non-streaming response."""
        if not _ANSWER.intersection(answer):
            # Proxies may return their own errors.
            raise from_error_object(answer, self.draft.where)
        self.event(answer)

    def complete(self) -> None:
        """Push the final events; see `ResponseReader`."""
        draft = self.draft
        if not self.ended:
            raise cut_short(draft.where)
        if draft.finish_reason in COMPLETE:
            # Otherwise incomplete arguments would look complete.
            self._end_call()
        if self._sources:
            self._cite()
        draft.complete(self.key)

    def _candidate(self, candidate: dict[str, Any]) -> None:
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
                    self._part(part)
        if len(candidate) > ("content" in candidate) + ("index" in candidate):
            self._beside(candidate)

    def _beside(self, candidate: dict[str, Any]) -> None:
        """Read candidate metadata."""
        if any(name in candidate for name in _SOURCES):
            self._weigh(len(dumped(candidate)))
            self._sources.append({name: candidate.get(name) for name in _SOURCES})
        reason = candidate.get("finishReason")
        if isinstance(reason, str) and reason and reason not in _UNSPECIFIED:
            if reason in _FAILED:
                why = f"the answer failed: {reason} {text_of(candidate.get('finishMessage'))}"
                raise from_error_object({"message": why, "status": _FAILED[reason]}, self.draft.where)
            self.draft.finish(normalise_finish_reason(reason), reason)
            said = candidate.get("finishMessage")
            if reason in _MALFORMED and not self._calls and isinstance(said, str) and said:
                self.draft.lose_calls(said, reason)

    def _part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            self._text(part, text)
            return
        self._newest = ""
        if "functionCall" in part:
            # An empty call ends streamed arguments.
            self._function(part, object_of(part["functionCall"]))
        elif blob := object_of(part.get("inlineData")):
            self._file(part, blob)
        elif url := text_of(object_of(part.get("fileData")).get("fileUri")):
            kind = replace_surrogates(text_of(object_of(part["fileData"]).get("mimeType"))) or None
            made = ImagePart if (kind or "").startswith("image/") else FilePart
            self._keep_signature(self.draft.file(made(url=replace_surrogates(url), media_type=kind)), part)
        else:
            self._tell(part)
            self._weigh(_PIECE)
            self.draft.raw(part)

    def _text(self, part: dict[str, Any], text: str) -> None:
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

    def _function(self, part: dict[str, Any], call: dict[str, Any]) -> None:
        """Read a function call or fragment. Partial arguments continue until `willContinue` is false."""
        name, pieces = text_of(call.get("name")), objects(call.get("partialArgs"))
        if name and not (self._call is not None and self._call.goes_on and self._call.name == name):
            self._end_call()
            self._begin_call(name, part, call)
        elif self._call is None:
            self.pass_over("a call without a name")
            return
        else:
            self._keep_signature(self._call.extra, part)
        if (open_call := self._call) is None:
            return
        try:
            fragment = "".join(map(open_call.arguments.feed, pieces))
        except ProviderProtocolError as error:
            raise ProviderProtocolError(f"{self.draft.where}: {error}") from None
        self.draft.call(open_call.place, fragment=fragment)
        open_call.goes_on = call.get("willContinue") is True
        if not open_call.goes_on and (pieces or not name):
            self._end_call()

    def _begin_call(self, name: str, part: dict[str, Any], call: dict[str, Any]) -> None:
        place, call_id = self._calls, text_of(call.get("id"))
        self._calls += 1
        # Arguments can follow as paths.
        arguments = object_of(call["args"]) if "args" in call else None
        self.draft.call(place, id=call_id, name=name, arguments=arguments)
        extra = self.draft.begin_call(place)
        self._keep_signature(extra, part)
        if call_id:
            # Only original ids are sent back.
            extra["id"] = call_id
        if arguments is None:
            self._call = _OpenCall(place, name, extra, PartialArguments(self.draft.bounds))

    def _end_call(self) -> None:
        """End the streamed arguments, if any."""
        if self._call is not None:
            ended, self._call = self._call, None
            self.draft.call(ended.place, fragment=ended.arguments.close())

    def _file(self, part: dict[str, Any], blob: dict[str, Any]) -> None:
        if part.get("thought") is True:
            # Google does not need thought images back.
            return
        try:
            data = decode_base64(text_of(blob.get("data")))
        except ValueError:
            data = b""
        if not data:
            self.pass_over("a file that is not in base64")
            return
        kind = replace_surrogates(text_of(blob.get("mimeType"))) or "application/octet-stream"
        name = replace_surrogates(text_of(blob.get("displayName"))) or None
        if kind.startswith("image/"):
            made: ImagePart | FilePart = ImagePart(data=data, media_type=kind)
        else:
            made = FilePart(data=data, media_type=kind, filename=name)
        self._keep_signature(self.draft.file(made), part)

    def _tell(self, part: dict[str, Any]) -> None:
        """Publish an event for a server tool. The part itself is sent back unchanged."""
        tell = self.draft.server_tool
        if code := object_of(part.get("executableCode")):
            self._code += 1
            tell(text_of(code.get("id")) or f"code_{self._code}", "code_execution", "start", arguments=_rest(code))
        elif done := object_of(part.get("codeExecutionResult")):
            call_id = text_of(done.get("id")) or f"code_{self._code}"
            good = done.get("outcome") == "OUTCOME_OK"
            tell(call_id, "code_execution", "complete", result=_rest(done), success=good)
        elif call := object_of(part.get("toolCall")):
            self._searched = True
            tell(text_of(call.get("id")), _tool_name(call), "start", arguments=object_of(call.get("args")))
        elif done := object_of(part.get("toolResponse")):
            self._searched = True
            tell(text_of(done.get("id")), _tool_name(done), "complete", result=done.get("response"))
        elif _SIGNATURE not in part:
            self.pass_over(f"a part with {_names(part)}")

    def _cite(self) -> None:
        """Publish unreported searches and add citations."""
        # Imported lazily, since citations are rare.
        from rxloop.providers.codecs.gemini.citations import citations, searches

        if not self._searched:
            for number, (name, arguments, result) in enumerate(searches(self._sources), 1):
                self.draft.server_tool(f"{name}_{number}", name, "start", arguments=arguments)
                self.draft.server_tool(f"{name}_{number}", name, "complete", result=result)
        for citation in citations(self._sources, self.draft.text.content):
            self.draft.cite(citation)

    def _keep_signature(self, extra: dict[str, Any], part: dict[str, Any]) -> None:
        signature = part.get(_SIGNATURE)
        if isinstance(signature, str):
            extra[_SIGNATURE] = signature
            self._weigh(len(signature))
        self._weigh(_PIECE)

    def _weigh(self, size: int) -> None:
        self.draft.other += size


def _tool_name(call: dict[str, Any]) -> str:
    return text_of(call.get("toolType")).lower() or "tool"


def _rest(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "id"}


def _names(fields: dict[str, Any]) -> str:
    return ", ".join(sorted(fields))[:200] or "nothing in it"
