"""Conversion of messages to alternating turns of the user and the assistant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from rxloop.protocol.messages import Message
from rxloop.providers.codecs.anthropic.messages import Form, FormEncoder
from rxloop.providers.codecs.fields import dumps
from rxloop.providers.codecs.media import flatten_message
from rxloop.state.history import Ledger

_EARLIER_START = b'{"type":"text","text":"[The conversation began before this.]"}'

_BEGIN = b'{"type":"text","text":"Please begin."}'

_GO_ON = b'{"type":"text","text":"Please go on."}'


class PlacedMessage(NamedTuple):
    """Encoded message in a request."""

    message: Message
    form: Form
    control: bytes = b""
    """Cache breakpoint, if any."""

    @property
    def blocks(self) -> bytes:
        """Encoded blocks including the cache breakpoint."""
        return self.form.mark(self.control) if self.control else self.form.blocks


class Turn:
    """Consecutive messages with the same role."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.results: list[bytes] = []
        """Tool results, always sent first."""
        self.blocks: list[bytes] = []
        self.messages: list[PlacedMessage] = []
        """Messages of the assistant."""

    def copy(self) -> Turn:
        """Return an independent copy."""
        other = Turn(self.role)
        other.results, other.blocks, other.messages = self.results.copy(), self.blocks.copy(), self.messages.copy()
        return other

    def content(self) -> bytes:
        """Return comma-separated blocks."""
        return b",".join(filter(None, (*self.results, *self.blocks, *(message.blocks for message in self.messages))))


class UnfinishedWork(NamedTuple):
    """Assistant messages since the last user message."""

    exists: bool = False
    """True if there are such messages."""
    thinks: bool = False
    """True if the first of these messages begins with thinking."""
    container: str | None = None
    """Container used by the latest code execution."""

    def advance(self, turn: Turn) -> UnfinishedWork:
        """Return the state after a completed turn."""
        if turn.role == "user":
            return self if turn.results else _IDLE
        if not turn.messages or turn.role != "assistant":
            return self
        thinks = self.thinks if self.exists else turn.messages[0].form.thinks
        newest = (message.form.container for message in reversed(turn.messages) if message.form.container)
        return UnfinishedWork(True, thinks, next(newest, self.container))


_IDLE = UnfinishedWork()


class EncodedTurns:
    """Encoded completed turns. If an omitted turn is empty, the turns next to it are merged."""

    def __init__(self) -> None:
        self._joined: list[bytes] = []
        self._role = ""
        self._contents: list[bytes] = []

    def copy(self) -> EncodedTurns:
        """Return an independent copy. Completed turns are shared."""
        if len(self._joined) > 1:
            self._joined = [b",".join(self._joined)]
        other = EncodedTurns()
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

    def join(self) -> bytes:
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

    def __init__(self, forms: FormEncoder, *, late_system: bool) -> None:
        self._forms = forms
        self._late_system = late_system
        self._sent = EncodedTurns()
        """All turns except the newest. They no longer change."""
        self._newest: Turn | None = None
        self._before = _IDLE
        """Unfinished work of the model before the newest turn."""
        self._used: Ledger[str, None] = Ledger()
        """Used call ids."""
        self._numbers: dict[str, int] = {}
        """Last number appended to each repeated id."""
        self._unanswered: list[tuple[str, str]] = []
        """Unanswered calls: original and sent ids."""
        self._pending_system: list[PlacedMessage] = []
        """Pending system messages."""
        self.has_thinking = False
        """True if the conversation contains thinking."""

    def copy(self) -> Conversation:
        """Return an independent copy."""
        other = Conversation(self._forms, late_system=self._late_system)
        other._sent, other._newest = self._sent.copy(), None if self._newest is None else self._newest.copy()
        other._before, other.has_thinking = self._before, self.has_thinking
        other._used, other._numbers = self._used, self._numbers.copy()
        other._unanswered, other._pending_system = self._unanswered.copy(), self._pending_system.copy()
        return other

    def add(self, placed: PlacedMessage) -> None:
        """Append a message."""
        form = placed.form
        if not form.blocks:
            return
        self.has_thinking = self.has_thinking or form.has_thinking
        if form.role == "system":
            self._pending_system.append(placed)
        elif form.role == "assistant":
            self._place_system(followed=True)
            self._add_assistant(placed)
        else:
            self._place_system(followed=False)
            self._add_user(placed)

    def end(self, *, prefill: bool) -> None:
        """Finish the request so that the model responds.

        Args:
            prefill: Whether the model continues a trailing assistant message.
        """
        self._place_system(followed=True)
        self._answer_open()
        last = self._newest
        if last is None:
            self._get_turn("user").blocks.append(_BEGIN)
        elif last.role == "assistant" and not self._can_continue(last, prefill):
            self._omit_open_calls(last)
            self._get_turn("user").blocks.append(_GO_ON)

    @property
    def encoded(self) -> bytes:
        """Encoded messages, separated by commas."""
        turns = self._sent.copy()
        if self._newest is not None:
            turns.add(self._newest.role, self._newest.content())
        return turns.join()

    @property
    def has_calls(self) -> bool:
        """True if the conversation contains tool calls."""
        return bool(self._used)

    @property
    def unfinished(self) -> UnfinishedWork:
        """Unfinished work of the model."""
        return self._before if self._newest is None else self._before.advance(self._newest)

    def _get_turn(self, role: str) -> Turn:
        """Return the newest turn if it has this role, otherwise a new one."""
        if self._newest is None and role == "assistant":
            self._get_turn("user").blocks.append(_EARLIER_START)
        turn = self._newest
        if turn is None or turn.role != role:
            if turn is not None:
                self._sent.add(turn.role, turn.content())
                self._before = self._before.advance(turn)
            self._newest = turn = Turn(role)
        return turn

    def _add_assistant(self, placed: PlacedMessage) -> None:
        self._answer_open()
        turn = self._get_turn("assistant")
        form = placed.form
        if form.calls:
            new_ids = self._rename_calls(form.ids)
            if new_ids:
                placed = placed._replace(form=self._forms.encode(placed.message, new_ids))
            self._unanswered += zip(form.calls, placed.form.ids, strict=True)
        turn.messages.append(placed)

    def _add_user(self, placed: PlacedMessage) -> None:
        form = placed.form
        if not form.calls:
            self._user_turn().blocks.append(placed.blocks)
            return
        call_id = form.calls[0]
        call = next((candidate for candidate in self._unanswered if candidate[0] == call_id), None)
        if call is None:
            text = f"[An answer to a call that is not there any more.]\n{flatten_message(placed.message)[0]}"
            self._user_turn().blocks.append(_encode_text(text))
            return
        self._unanswered.remove(call)
        if call[1] != form.ids[0]:
            placed = placed._replace(form=self._forms.encode(placed.message, {0: call[1]}))
        self._get_turn("user").results.append(placed.blocks)

    def _user_turn(self) -> Turn:
        """Return the user turn for new content."""
        if self._newest is not None and self._newest.role == "assistant":
            self._omit_open_calls(self._newest)
        return self._get_turn("user")

    def _answer_open(self) -> None:
        """Add placeholder results for unanswered calls."""
        for _, sent_id in self._unanswered:
            block = {"type": "tool_result", "tool_use_id": sent_id, "content": "There is no answer.", "is_error": True}
            self._get_turn("user").results.append(dumps(block))
        self._unanswered = []

    def _rename_calls(self, ids: Sequence[str]) -> dict[int, str]:
        """Record call ids and return replacements for duplicates by index."""
        new_ids: dict[int, str] = {}
        for index, call_id in enumerate(ids):
            new_id = call_id
            if new_id in self._used:
                number = next(
                    n for n in count(self._numbers.get(call_id, 1) + 1) if f"{call_id[:50]}_{n}" not in self._used
                )
                self._numbers[call_id] = number
                new_ids[index] = new_id = f"{call_id[:50]}_{number}"
            self._used = self._used.add(new_id, None)
        return new_ids

    def _place_system(self, *, followed: bool) -> None:
        """Add the pending system messages to the conversation.

        Args:
            followed: True if they are followed by the end or an assistant turn, where the vendor accepts system
                messages.
        """
        messages, self._pending_system = self._pending_system, []
        if not messages:
            return
        after_user = self._newest is not None and self._newest.role == "user"
        if followed and self._late_system and not self._unanswered and after_user:
            self._get_turn("system").blocks += [message.blocks for message in messages]
            return
        for message in messages:
            self._user_turn().blocks.append(
                _encode_text(f"<system>\n{flatten_message(message.message)[0]}\n</system>", message.control)
            )

    def _can_continue(self, turn: Turn, prefill: bool) -> bool:
        """Return True if the model continues its own message at the end."""
        form = turn.messages[-1].form
        return form.ends_with_server_tool or (prefill and form.prefix)

    def _omit_open_calls(self, turn: Turn) -> None:
        """Omit the vendor's server tool calls without a result if the model does not continue them."""
        if any(message.form.calls for message in turn.messages):
            # Our calls have to be answered first.
            return
        answered_ids = {call_id for message in turn.messages for call_id in message.form.answered}
        for n, message in enumerate(turn.messages):
            if open_calls := set(message.form.open) - answered_ids:
                turn.messages[n] = message._replace(form=self._forms.encode(message.message, without=open_calls))


def _encode_text(text: str, control: bytes = b"") -> bytes:
    block = dumps({"type": "text", "text": text})
    return block[:-1] + b"," + control + b"}" if control else block
