"""Visible text of a streamed answer, without control tokens and tagged thoughts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import TypeVar

from rxloop.protocol.events import ContentDeltaEvent, Event, ThoughtDeltaEvent, ThoughtStreamEvent
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.model import SLOTS, get_defaults
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds, OutOfBounds
from rxloop.providers.codecs.markup import TailStripper
from rxloop.providers.codecs.thought_tags import TagSplitter, Thought, ThoughtText, make_event_fields

THOUGHT_WEIGHT = 8_000
"""Size charged for a thought in addition to its text, because even an empty thought is an event."""

MAX_WEIGHT_PER_BYTE = 1_000
"""Maximum size charged per input byte. Thoughts use at least eight bytes."""

SLICE_SIZE = 2**15
"""Slice size for size checks while filtering tags and tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """Text filters, disabled by default."""

    thought_tags: tuple[str, ...] = ()
    """Tag names used for thoughts."""
    thinks_first: bool = False
    """True if the text begins inside a thought, without an opening tag."""
    keep_thoughts: bool = False
    """True if thoughts also stay in the text, including their tags."""
    strip: tuple[str, ...] = ()
    """Control tokens that are removed from the end of a message and from tool names."""

    def __post_init__(self) -> None:
        if self.thought_tags:
            # Raise for an invalid name at construction.
            TagSplitter(self.thought_tags)


class SurrogateJoiner:
    """Joins surrogate pairs that were split across fragments."""

    def __init__(self) -> None:
        self.held = ""
        """Pending high surrogate."""

    def feed(self, text: str) -> str:
        """Add a fragment, and return the complete characters. An unpaired surrogate becomes U+FFFD."""
        text, self.held = self.held + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self.held = text[:-1], text[-1]
        return replace_surrogates(text)

    def finish(self) -> str:
        """Return the held surrogate as U+FFFD, or an empty string."""
        text, self.held = replace_surrogates(self.held), ""
        return text


class AnswerText:
    """Publishes text deltas and extracted thoughts."""

    __slots__ = (
        "_content",
        "_deltas",
        "_has_reasoning",
        "_idle",
        "_joiner",
        "_keep_thoughts",
        "_marks",
        "_max_size",
        "_push",
        "_reasoning",
        "_splitter",
        "_step",
        "_stripper",
        "_thought_deltas",
        "_thought_joiner",
        "_thought_size",
        "_thoughts",
    )

    def __init__(
        self, push: Callable[[Event], None], step: str, rules: TextRules, bounds: Bounds = DEFAULT_BOUNDS
    ) -> None:
        self._push = push
        self._max_size = bounds.text
        self._step = step
        self._keep_thoughts = rules.keep_thoughts
        self._splitter = (
            TagSplitter(rules.thought_tags, thinks_first=rules.thinks_first) if rules.thought_tags else None
        )
        self._stripper = TailStripper(rules.strip) if rules.strip else None
        marks = frozenset("<" if rules.thought_tags else "")
        self._marks = marks if self._stripper is None else marks | self._stripper.first_characters
        self._idle = self._splitter is None or self._splitter.idle
        self._joiner: SurrogateJoiner | None = None
        self._thought_joiner: SurrogateJoiner | None = None
        self._content = _make_buffer()
        self._reasoning = _make_buffer()
        self._has_reasoning = False
        self._deltas = 0
        self._thoughts = 0
        self._thought_deltas = 0
        self._thought_size = 0
        """Total size of extracted thoughts."""

    @property
    def size(self) -> int:
        """Approximate number of characters received."""
        held = 0 if self._stripper is None else self._stripper.size
        return self._content.tell() + self._reasoning.tell() + self._thought_size + held

    @property
    def content_length(self) -> int:
        """Length of the message text so far, in characters."""
        return self._content.tell()

    @property
    def reasoning_length(self) -> int:
        """Length of the vendor's reasoning so far, in characters."""
        return self._reasoning.tell()

    @property
    def content(self) -> str:
        """Current message text."""
        return self._content.getvalue()

    @property
    def reasoning(self) -> str:
        """Reasoning sent by the vendor so far."""
        return self._reasoning.getvalue()

    def write(self, text: str) -> None:
        """Append a text fragment."""
        if not text:
            return
        # Fast path for plain text, which nearly every fragment is.
        if self._idle:
            for mark in self._marks:
                if mark in text:
                    break
            else:
                if self._splitter is not None:
                    self._splitter.record(text)
                self._delta(text)
                return
        self._strip(text)

    def expect_split_surrogates(self) -> None:
        """Start joining split surrogate pairs."""
        self._idle = False
        if self._joiner is None:
            self._joiner, self._thought_joiner = SurrogateJoiner(), SurrogateJoiner()

    def think(self, text: str) -> None:
        """Append a fragment of the vendor's reasoning."""
        if self._thought_joiner is not None:
            text = self._thought_joiner.feed(text)
        if text:
            if not self._has_reasoning and self._splitter is not None:
                self._splitter.skip_leading_thought()
            self._has_reasoning = True
            self._reasoning.write(text)
            self._thought_delta(text)

    def finish(self) -> None:
        """Publish remaining text."""
        if self._joiner is not None and self._thought_joiner is not None:
            remainders = self._joiner.finish(), self._thought_joiner.finish()
            self._joiner = self._thought_joiner = None
            if remainders[0]:
                self._strip(remainders[0])
            self.think(remainders[1])
        if self._stripper is not None and (remainder := self._stripper.finish()):
            self._split(remainder)
        if self._splitter is not None:
            self._emit(self._splitter.finish())

    def _strip(self, text: str) -> None:
        if len(text) > SLICE_SIZE:
            for at in range(0, len(text), SLICE_SIZE):
                self._strip(text[at : at + SLICE_SIZE])
                if self.size > self._max_size:
                    raise OutOfBounds("text", self._max_size)
            return
        stripper, splitter = self._stripper, self._splitter
        if self._joiner is not None:
            text = self._joiner.feed(text)
        if stripper is not None:
            text = stripper.feed(text)
        if text:
            self._split(text)
        complete = self._joiner is None or not self._joiner.held
        self._idle = complete and (stripper is None or stripper.idle) and (splitter is None or splitter.idle)

    def _split(self, text: str) -> None:
        if self._splitter is None or self._keep_thoughts:
            self._delta(text)
        if self._splitter is not None:
            self._emit(self._splitter.feed(text))

    def _emit(self, pieces: list[str | ThoughtText | Thought]) -> None:
        for piece in pieces:
            if isinstance(piece, Thought):
                self._thought(piece)
            elif isinstance(piece, ThoughtText):
                self._thought_size += len(piece.text)
                self._thought_delta(piece.text)
            elif not self._keep_thoughts:
                self._delta(piece)

    def _delta(self, text: str) -> None:
        self._content.write(text)
        index = self._deltas
        self._deltas = index + 1
        self._push(make_text_delta(ContentDeltaEvent, text, index, self._step))

    def _thought_delta(self, text: str) -> None:
        self._thought_deltas += 1
        self._push(make_text_delta(ThoughtDeltaEvent, text, self._thought_deltas - 1, self._step))

    def _thought(self, thought: Thought) -> None:
        if not thought.content.strip():
            # Models told not to think leave empty tags.
            return
        self._thoughts += 1
        self._thought_size += THOUGHT_WEIGHT
        if self.size > self._max_size:
            raise OutOfBounds("text", self._max_size)
        event = {
            "thought_id": f"{self._step}.t{self._thoughts}",
            "content": thought.content,
            "source": "tag",
            "incomplete": thought.incomplete,
            "step": self._step,
            **make_event_fields(thought),
        }
        self._push(ThoughtStreamEvent.model_validate(event))


def _make_buffer() -> StringIO:
    """Create a contiguous text buffer. Lists would use 70 bytes per short string."""
    text = StringIO()
    # Reading switches the buffer from a list of pieces to contiguous storage.
    text.readline()
    return text


_Delta = TypeVar("_Delta", ContentDeltaEvent, ThoughtDeltaEvent)

_TEXT_DELTA = {cls: get_defaults(cls) for cls in (ContentDeltaEvent, ThoughtDeltaEvent)}

_FIELDS_SET = {"delta", "index", "step"}

_new = object.__new__

_set_dict, _set_fields_set, _set_extra, _set_private = SLOTS


def make_text_delta(cls: type[_Delta], delta: str, index: int, step: str | None) -> _Delta:
    """Create a delta event from decoded text without validation, which costs a third of the constructor."""
    fields = _TEXT_DELTA[cls].copy()
    fields["delta"] = delta
    fields["index"] = index
    fields["step"] = step
    event = _new(cls)
    _set_dict(event, fields)
    _set_fields_set(event, _FIELDS_SET)
    _set_extra(event, None)
    _set_private(event, None)
    return event


UNFILTERED = TextRules()
