"""Conversion of messages to alternating turns of the user and the assistant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from rxloop.protocol.messages import Message
from rxloop.providers.codecs.anthropic.messages import Form, Forms
from rxloop.providers.codecs.fields import dumps
from rxloop.providers.codecs.media import text_with_files
from rxloop.state.history import Ledger

_BEGAN = b'{"type":"text","text":"[The conversation began before this.]"}'

_BEGIN = b'{"type":"text","text":"Please begin."}'

_GO_ON = b'{"type":"text","text":"Please go on."}'


class Place(NamedTuple):
    """Encoded message in a request."""

    message: Message
    form: Form
    control: bytes = b""
    """Cache breakpoint, if any."""

    @property
    def blocks(self) -> bytes:
        """Encoded blocks including the cache breakpoint."""
        return self.form.marked(self.control) if self.control else self.form.blocks


class Turn:
    """Consecutive messages with the same role."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.results: list[bytes] = []
        """Tool results, always sent first."""
        self.blocks: list[bytes] = []
        self.places: list[Place] = []
        """Messages of the assistant."""

    def copy(self) -> Turn:
        """Return an independent copy."""
        other = Turn(self.role)
        other.results, other.blocks, other.places = self.results.copy(), self.blocks.copy(), self.places.copy()
        return other

    def content(self) -> bytes:
        """Return comma-separated blocks."""
        return b",".join(filter(None, (*self.results, *self.blocks, *(place.blocks for place in self.places))))


class Working(NamedTuple):
    """Assistant messages since the last user message."""

    begun: bool = False
    """True if there are such messages."""
    thinks: bool = False
    """True if the first of these messages begins with thinking."""
    container: str | None = None
    """Container used by the latest code execution."""

    def after(self, turn: Turn) -> Working:
        """Return the state after a completed turn."""
        if turn.role == "user":
            return self if turn.results else _IDLE
        if not turn.places or turn.role != "assistant":
            return self
        thinks = self.thinks if self.begun else turn.places[0].form.thinks
        newest = (place.form.container for place in reversed(turn.places) if place.form.container)
        return Working(True, thinks, next(newest, self.container))


_IDLE = Working()


class Sent:
    """Encoded completed turns. If an omitted turn is empty, the turns next to it are merged."""

    def __init__(self) -> None:
        self._joined: list[bytes] = []
        self._role = ""
        self._contents: list[bytes] = []

    def copy(self) -> Sent:
        """Return an independent copy. Completed turns are shared."""
        if len(self._joined) > 1:
            self._joined = [b",".join(self._joined)]
        other = Sent()
        other._joined, other._role, other._contents = self._joined.copy(), self._role, self._contents.copy()
        return other

    def add(self, role: str, content: bytes) -> None:
        """Add a possibly empty turn."""
        if not content:
            return
        if self._role and role != self._role:
            self._joined.append(self._newest())
            self._contents = []
        self._role = role
        self._contents.append(content)

    def joined(self) -> bytes:
        """Return all turns, separated by commas."""
        return b",".join([*self._joined, self._newest()] if self._role else self._joined)

    def _newest(self) -> bytes:
        return b'{"role":"%b","content":[%b]}' % (self._role.encode(), b",".join(self._contents))


class Conversation:
    """Turns of one request.

    Args:
        forms: Encoder of messages.
        late_system: True to send system messages in the middle of the conversation as such, otherwise as user messages.
    """

    def __init__(self, forms: Forms, *, late_system: bool) -> None:
        self._forms = forms
        self._late_system = late_system
        self._sent = Sent()
        """All turns except the newest. They no longer change."""
        self._newest: Turn | None = None
        self._before = _IDLE
        """Unfinished work of the model before the newest turn."""
        self._used: Ledger[str, None] = Ledger()
        """Used call ids."""
        self._numbers: dict[str, int] = {}
        """Last number appended to each repeated id."""
        self._open: list[tuple[str, str]] = []
        """Unanswered calls: original and sent ids."""
        self._system: list[Place] = []
        """Pending system messages."""
        self.has_thinking = False
        """True if the conversation contains thinking."""

    def copy(self) -> Conversation:
        """Return an independent copy."""
        other = Conversation(self._forms, late_system=self._late_system)
        other._sent, other._newest = self._sent.copy(), None if self._newest is None else self._newest.copy()
        other._before, other.has_thinking = self._before, self.has_thinking
        other._used, other._numbers = self._used, self._numbers.copy()
        other._open, other._system = self._open.copy(), self._system.copy()
        return other

    def add(self, place: Place) -> None:
        """Append a message."""
        form = place.form
        if not form.blocks:
            return
        self.has_thinking = self.has_thinking or form.thought
        if form.role == "system":
            self._system.append(place)
        elif form.role == "assistant":
            self._settle_system(followed=True)
            self._add_assistant(place)
        else:
            self._settle_system(followed=False)
            self._add_user(place)

    def end(self, *, prefill: bool) -> None:
        """Finish the request so that the model responds.

        Args:
            prefill: Whether the model continues a trailing assistant message.
        """
        self._settle_system(followed=True)
        self._answer_open()
        last = self._newest
        if last is None:
            self._turn("user").blocks.append(_BEGIN)
        elif last.role == "assistant" and not self._pauses(last, prefill):
            self._leave_open_out(last)
            self._turn("user").blocks.append(_GO_ON)

    @property
    def encoded(self) -> bytes:
        """Encoded messages, separated by commas."""
        sent = self._sent.copy()
        if self._newest is not None:
            sent.add(self._newest.role, self._newest.content())
        return sent.joined()

    @property
    def has_calls(self) -> bool:
        """True if the conversation contains tool calls."""
        return bool(self._used)

    @property
    def working(self) -> Working:
        """Unfinished work of the model."""
        return self._before if self._newest is None else self._before.after(self._newest)

    def _turn(self, role: str) -> Turn:
        """Return the newest turn if it has this role, otherwise a new one."""
        if self._newest is None and role == "assistant":
            self._turn("user").blocks.append(_BEGAN)
        turn = self._newest
        if turn is None or turn.role != role:
            if turn is not None:
                self._sent.add(turn.role, turn.content())
                self._before = self._before.after(turn)
            self._newest = turn = Turn(role)
        return turn

    def _add_assistant(self, place: Place) -> None:
        self._answer_open()
        turn = self._turn("assistant")
        form = place.form
        if form.calls:
            new = self._renamed(form.ids)
            if new:
                place = place._replace(form=self._forms.again(place.message, new))
            self._open += zip(form.calls, place.form.ids, strict=True)
        turn.places.append(place)

    def _add_user(self, place: Place) -> None:
        form = place.form
        if not form.calls:
            self._closed().blocks.append(place.blocks)
            return
        answered = form.calls[0]
        found = next((each for each in self._open if each[0] == answered), None)
        if found is None:
            text = f"[An answer to a call that is not there any more.]\n{text_with_files(place.message)[0]}"
            self._closed().blocks.append(_text(text))
            return
        self._open.remove(found)
        if found[1] != form.ids[0]:
            place = place._replace(form=self._forms.again(place.message, {0: found[1]}))
        self._turn("user").results.append(place.blocks)

    def _closed(self) -> Turn:
        """Return the user turn for new content."""
        if self._newest is not None and self._newest.role == "assistant":
            self._leave_open_out(self._newest)
        return self._turn("user")

    def _answer_open(self) -> None:
        """Add placeholder results for unanswered calls."""
        for _, sent in self._open:
            block = {"type": "tool_result", "tool_use_id": sent, "content": "There is no answer.", "is_error": True}
            self._turn("user").results.append(dumps(block))
        self._open = []

    def _renamed(self, ids: Sequence[str]) -> dict[int, str]:
        """Record call ids and return replacements for duplicates by index."""
        new: dict[int, str] = {}
        for place, each in enumerate(ids):
            free = each
            if free in self._used:
                number = next(n for n in count(self._numbers.get(each, 1) + 1) if f"{each[:50]}_{n}" not in self._used)
                self._numbers[each] = number
                new[place] = free = f"{each[:50]}_{number}"
            self._used = self._used.add(free, None)
        return new

    def _settle_system(self, *, followed: bool) -> None:
        """Add the pending system messages to the conversation.

        Args:
            followed: True if they are followed by the end or an assistant turn, where the vendor accepts system
                messages.
        """
        places, self._system = self._system, []
        if not places:
            return
        after_user = self._newest is not None and self._newest.role == "user"
        if followed and self._late_system and not self._open and after_user:
            self._turn("system").blocks += [place.blocks for place in places]
            return
        for place in places:
            self._closed().blocks.append(
                _text(f"<system>\n{text_with_files(place.message)[0]}\n</system>", place.control)
            )

    def _pauses(self, turn: Turn, prefill: bool) -> bool:
        """Return True if the model continues its own message at the end."""
        form = turn.places[-1].form
        return form.vendors or (prefill and form.prefix)

    def _leave_open_out(self, turn: Turn) -> None:
        """Omit the vendor's server tool calls without a result if the model does not continue them."""
        if any(place.form.calls for place in turn.places):
            # Our calls have to be answered first.
            return
        answered = {each for place in turn.places for each in place.form.answered}
        for n, place in enumerate(turn.places):
            if open_calls := set(place.form.open) - answered:
                turn.places[n] = place._replace(form=self._forms.again(place.message, without=open_calls))


def _text(text: str, control: bytes = b"") -> bytes:
    block = dumps({"type": "text", "text": text})
    return block[:-1] + b"," + control + b"}" if control else block
