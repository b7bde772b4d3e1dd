"""The messages of a request as turns of the two sides, as the vendor takes them.

The two sides take turns, and the user's comes first; each call of a turn is answered at the beginning of the next one,
and no id is used twice. What a conversation says otherwise, another vendor's or one that was cut, is put so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from rxloop.protocol.messages import Message
from rxloop.providers._json import dumps
from rxloop.providers.anthropic._messages import Form, Forms
from rxloop.providers.wire import Notice

_BEGAN = b'{"type":"text","text":"[The conversation began before this.]"}'
_BEGIN = b'{"type":"text","text":"Please begin."}'
_GO_ON = b'{"type":"text","text":"Please go on."}'


class Place(NamedTuple):
    """A message with its form in one request."""

    message: Message
    form: Form
    control: bytes = b""
    """The cache breakpoint that stands at it, where there is one."""

    @property
    def blocks(self) -> bytes:
        """What is sent of it."""
        return self.form.marked(self.control) if self.control else self.form.blocks


class Turn:
    """What one side says before the other one does."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.results: list[bytes] = []
        """Answers to calls, which come first."""
        self.blocks: list[bytes] = []
        self.places: list[Place] = []
        """The messages of the model in it."""

    def content(self) -> bytes:
        """Its blocks, with commas between them; nothing where it is empty."""
        return b",".join(filter(None, (*self.results, *self.blocks, *(place.blocks for place in self.places))))


class Conversation:
    """The turns of one request.

    Args:
        forms: Makes the forms of messages.
        notice: Is told what is left out.
        late_system: System messages in the middle go as such; otherwise the user says what they say.
    """

    def __init__(self, forms: Forms, notice: Notice, *, late_system: bool) -> None:
        self._forms = forms
        self._notice = notice
        self._late_system = late_system
        self._turns: list[Turn] = []
        self._used: set[str] = set()
        """The ids of calls that have been sent."""
        self._numbers: dict[str, int] = {}
        """The number that was added last to an id which is used again and again."""
        self._open: list[tuple[str, str]] = []
        """The calls of the newest turn of the model that are not answered: their ids, and those that were sent."""
        self._system: list[Place] = []
        """System messages of which it is not known yet what comes after them."""

    def add(self, places: Iterable[Place]) -> None:
        """Add messages behind those that are there."""
        for place in places:
            form = place.form
            if not form.blocks:
                continue
            if form.role == "system":
                self._system.append(place)
            elif form.role == "assistant":
                self._settle_system(followed=True)
                self._add_assistant(place)
            else:
                self._settle_system(followed=False)
                self._add_user(place)

    def end(self, *, prefill: bool) -> None:
        """End the request so that the model answers it.

        Args:
            prefill: The model goes on with a message of its own at the end.
        """
        self._settle_system(followed=True)
        self._answer_open()
        if not self._turns:
            self._turn("user").blocks.append(_BEGIN)
        last = self._turns[-1]
        if last.role == "assistant" and not self._pauses(prefill):
            self._leave_open_out(last)
            self._turn("user").blocks.append(_GO_ON)

    @property
    def encoded(self) -> bytes:
        """The messages, with commas between them."""
        # Where nothing is left of a turn, those beside it are one.
        sent: list[tuple[str, list[bytes]]] = []
        for turn in self._turns:
            if content := turn.content():
                if sent and sent[-1][0] == turn.role:
                    sent[-1][1].append(content)
                else:
                    sent.append((turn.role, [content]))
        return b",".join(b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(each)) for role, each in sent)

    @property
    def has_calls(self) -> bool:
        """Whether a tool is called in it."""
        return bool(self._used)

    @property
    def has_thinking(self) -> bool:
        """Whether thinking goes back in it."""
        return any(place.form.thought for turn in self._turns for place in turn.places)

    def working(self) -> Sequence[Place]:
        """The messages of the model since the user said something: what it is in the middle of."""
        found: list[Place] = []
        for turn in reversed(self._turns):
            if turn.role == "assistant":
                found[:0] = turn.places
            elif turn.role == "user" and not turn.results:
                break
        return found

    def _turn(self, role: str) -> Turn:
        """The newest turn, or a new one where that is of the other side."""
        if not self._turns and role == "assistant":
            self._turn("user").blocks.append(_BEGAN)
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(Turn(role))
        return self._turns[-1]

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
            text = f"[An answer to a call that is not there any more.]\n{place.message.text_alone}"
            self._closed().blocks.append(_text(text))
            return
        self._open.remove(found)
        if found[1] != form.ids[0]:
            place = place._replace(form=self._forms.again(place.message, {0: found[1]}))
        self._turn("user").results.append(place.blocks)

    def _closed(self) -> Turn:
        """The turn of the user for what answers no call."""
        if self._turns and self._turns[-1].role == "assistant":
            self._leave_open_out(self._turns[-1])
        return self._turn("user")

    def _answer_open(self) -> None:
        """Say of the calls that nobody has answered that there is no answer."""
        for _, sent in self._open:
            block = {"type": "tool_result", "tool_use_id": sent, "content": "There is no answer.", "is_error": True}
            self._turn("user").results.append(dumps(block))
        self._open = []

    def _renamed(self, ids: Sequence[str]) -> dict[int, str]:
        """Note the ids of the calls of a message; return others for those that are taken, by the place of the call."""
        new: dict[int, str] = {}
        for place, each in enumerate(ids):
            free = each
            if free in self._used:
                number = next(n for n in count(self._numbers.get(each, 1) + 1) if f"{each[:50]}_{n}" not in self._used)
                self._numbers[each] = number
                new[place] = free = f"{each[:50]}_{number}"
            self._used.add(free)
        return new

    def _settle_system(self, *, followed: bool) -> None:
        """Put the system messages that wait into the conversation.

        Args:
            followed: Nothing or a turn of the model comes after them, where the vendor takes them as such.
        """
        places, self._system = self._system, []
        if not places:
            return
        if followed and self._late_system and not self._open and self._turns and self._turns[-1].role == "user":
            turn = Turn("system")
            turn.blocks += [place.blocks for place in places]
            self._turns.append(turn)
            return
        for place in places:
            self._closed().blocks.append(_text(f"<system>\n{place.message.text_alone}\n</system>", place.control))

    def _pauses(self, prefill: bool) -> bool:
        """Whether the model goes on with its own message at the end."""
        form = self._turns[-1].places[-1].form
        return form.vendors or (prefill and form.prefix)

    def _leave_open_out(self, turn: Turn) -> None:
        """Leave the vendor's own calls out that have no result, where the model does not go on with them."""
        if any(place.form.calls for place in turn.places):
            # They wait for the answers to ours.
            return
        answered = {each for place in turn.places for each in place.form.answered}
        for n, place in enumerate(turn.places):
            if open_calls := set(place.form.open) - answered:
                turn.places[n] = place._replace(form=self._forms.again(place.message, without=open_calls))


def _text(text: str, control: bytes = b"") -> bytes:
    block = dumps({"type": "text", "text": text})
    return block[:-1] + b"," + control + b"}" if control else block
