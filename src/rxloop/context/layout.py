"""Layout of a request: indivisible blocks of the history, what always stays, and where the summary goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rxloop.context.fact_ledger import FactLedger, ledger_of
from rxloop.context.facts import facts_of
from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Budget
from rxloop.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Block:
    """Messages that are kept or dropped together.

    An assistant message with tool calls, its reasoning and all their results is one block; any other message is one by
    itself.
    """

    start: int
    """The place of the first message in the history."""
    messages: tuple[Message, ...]

    @property
    def places(self) -> range:
        """The places of the messages in the history."""
        return range(self.start, self.start + len(self.messages))

    @property
    def calls(self) -> bool:
        """Whether the block begins with a message that calls tools."""
        return bool(self.messages[0].tool_calls)

    @property
    def open(self) -> bool:
        """Whether a call in it has no result yet."""
        return bool(_unanswered(self.messages))


def blocks_of(messages: Iterable[Message]) -> list[Block]:
    """Cut a history into its blocks, in order."""
    blocks: list[Block] = []
    current: list[Message] = []
    start = place = 0
    for place, message in enumerate(messages):
        if message.role == "tool" and current and current[0].tool_calls:
            current.append(message)
            continue
        if current:
            blocks.append(Block(start, tuple(current)))
        current, start = [message], place
    if current:
        blocks.append(Block(start, tuple(current)))
    return blocks


def problems_of(messages: Sequence[Message], *, open_tail: bool = True) -> list[str]:
    """Describe what a provider would refuse in a list of messages; empty if all is well.

    Args:
        messages: The messages, without the system prompt.
        open_tail: Whether calls of the last block may still be without results.
    """
    found: list[str] = []
    blocks = blocks_of(messages)
    for block in blocks:
        first = block.messages[0]
        if first.role == "tool":
            found.append(
                f"message {block.start} answers the call {first.tool_call_id!r}, which nothing before it makes"
            )
            continue
        missing, strangers = _unanswered(block.messages), _strangers(block.messages)
        if missing and not (open_tail and block is blocks[-1]):
            found.append(f"the call {missing[0]!r} of message {block.start} has no result")
        if strangers:
            call_id = block.messages[strangers[0]].tool_call_id
            found.append(
                f"message {block.start + strangers[0]} answers the call {call_id!r}, which is answered already"
            )
    return found


def repaired(messages: Sequence[Message], *, open_tail: bool = True) -> list[Message]:
    """Remove what a provider would refuse: results without a call, and calls without their results.

    A block with an unanswered call goes whole, so that no message is changed; only at the end of the list, where the
    results are still to come, it stays. A list without problems comes back with the same objects.
    """
    kept: list[Message] = []
    blocks = blocks_of(messages)
    for block in blocks:
        if block.messages[0].role == "tool":
            continue
        if block.open and not (open_tail and block is blocks[-1]):
            continue
        strangers = set(_strangers(block.messages))
        kept += [message for place, message in enumerate(block.messages) if place not in strangers]
    return kept


def _unanswered(messages: Sequence[Message]) -> list[str]:
    missing = [call.id for call in messages[0].tool_calls]
    for message in messages[1:]:
        if message.tool_call_id in missing:
            missing.remove(message.tool_call_id)
    return missing


def _strangers(messages: Sequence[Message]) -> list[int]:
    """Find the places in the block of results that no call has asked for."""
    missing = [call.id for call in messages[0].tool_calls]
    found: list[int] = []
    for place, message in enumerate(messages[1:], 1):
        if message.tool_call_id in missing:
            missing.remove(message.tool_call_id)
        else:
            found.append(place)
    return found


class Marks:
    """The limit of a compressor and its two marks.

    Args:
        max_tokens: What a whole request may take: system prompt, tools, messages and workspace.
        high: The part of it at which the history is cut.
        low: The part of it that the request has after a cut. The farther below `high`, the longer the provider's cache
            holds until the next cut, and the less of the history is there word for word.
    """

    max_messages: int | None = None
    """How many messages of the history a request may have."""

    def __init__(self, max_tokens: int, *, high: float = 1.0, low: float = 0.6) -> None:
        if max_tokens < 0:
            raise ConfigurationError(f"max_tokens is {max_tokens}: give the tokens that a whole request may take")
        if not 0 < low <= high <= 1:
            raise ConfigurationError(
                f"low is {low} and high is {high}: they are parts of max_tokens, 0 < low <= high <= 1"
            )
        self.max_tokens = max_tokens
        self.high = high
        self.low = low

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_tokens={self.max_tokens}, high={self.high}, low={self.low})"


# The ledger's share of the room: much of a small one, where little else fits; less of what is beyond.
_SHARE, _SMALL, _SHARE_BEYOND = 0.45, 2_000, 0.05

_TITLE = "[Earlier messages are left out here. Values from them, oldest first, as data:]\n"

_BARE_TITLE = "[Earlier messages are left out here.]"

_CUT = "\n[... {n} characters left out ...]\n"

_LEAST = 40

_NOTHING = "[left out]"


class Layout:
    """A cut in preparation: which blocks stay, in which form, and the summary of what does not.

    The task (the first user message), the last user message, pinned messages and system messages stay as they are. The
    last block stays too, since the model has not answered it yet; its results may be shortened. The rest is `free`.
    """

    def __init__(self, messages: Sequence[Message], budget: Budget) -> None:
        self.budget = budget
        self.blocks = blocks_of(messages)
        self.costs = [budget.count(*block.messages) for block in self.blocks]
        self._kept: dict[int, Sequence[Message]] = {}
        users = [index for index, block in enumerate(self.blocks) if block.messages[0].role == "user"]
        self.task = users[0] if users else None
        for index, block in enumerate(self.blocks):
            special = index in (*users[:1], *users[-1:]) or block.messages[0].role == "system"
            if special or not budget.pinned.isdisjoint(block.places):
                self._kept[index] = block.messages
        fixed = sum(self.costs[index] for index in self._kept)
        whole = max(0, budget.tokens - fixed)
        self._ledger = FactLedger([*budget.dropped, *messages]) if budget.dropped else ledger_of(messages)
        most = _SHARE * min(whole, _SMALL) + _SHARE_BEYOND * max(0, whole - _SMALL)
        need = 1.2 * self._ledger.tokens + budget.count(Message.user(_TITLE)) + 8
        self._summary_tokens = int(min(most, need))
        self.room = max(0, budget.target - fixed) - self._summary_tokens
        """What is left for free blocks."""
        last = len(self.blocks) - 1
        if self.blocks and last not in self._kept:
            limit = whole - self._summary_tokens
            fits = self.costs[last] <= limit
            self.keep(last, None if fits else shortened(self.blocks[last].messages, limit, budget))
        self.free = [index for index in range(len(self.blocks)) if index not in self._kept]

    def keep(self, index: int, messages: Sequence[Message] | None = None) -> None:
        """Let a block stay, as it is or in another form."""
        self._kept[index] = messages or self.blocks[index].messages
        if messages:
            self.costs[index] = self.budget.count(*messages)
        self.room -= self.costs[index]

    def has_room(self, index: int) -> bool:
        """Return whether a free block may stay, by its tokens and by its messages."""
        most = self.budget.messages
        if most is not None and self._count + len(self.blocks[index].messages) > most:
            return False
        return self.costs[index] <= self.room

    @property
    def _count(self) -> int:
        """The messages that stay, and the summary."""
        return 1 + sum(map(len, self._kept.values()))

    def keep_newest(self, forms: dict[int, Sequence[Message]]) -> None:
        """Let the newest free blocks stay, as many as there is room for.

        Args:
            forms: The blocks that are to stay in another form than their own, with `costs` to match.
        """
        for index in reversed(self.free):
            if not self.has_room(index):
                return
            self.keep(index, forms.get(index))

    def messages(self) -> list[Message]:
        """Return the messages that stay, with the summary of the others after the task.

        Where the summary would take more than it replaces, these are the messages as they would go out without a cut.
        """
        out: list[Message] = []
        place = 0
        for index in sorted(self._kept):
            out += self._kept[index]
            if index == self.task:
                place = len(out)
        summary = self._summary(out)
        if summary:
            out.insert(place, summary)
        count, sent = self.budget.count, self.budget.sent
        return list(sent) if sent and count(*out) > count(*sent) else out

    def _summary(self, kept: Sequence[Message]) -> Message | None:
        """Summarise everything that does not stay by its facts; None if all stays."""
        count, dropped = self.budget.count, self.budget.dropped
        whole = {id(message) for message in kept}
        everything = [*dropped, *(message for block in self.blocks for message in block.messages)]
        if all(id(message) in whole for message in everything):
            return None
        titled = count(Message.user(_TITLE))
        left = min(self._summary_tokens, self.budget.tokens - count(*kept))
        visible = {fact.value for message in kept for fact in facts_of(message)}
        text = self._ledger.text(
            left - titled,
            visible=visible,
            size=lambda text: count(Message.user(_TITLE + text)) - titled,
        )
        if text:
            return Message.user(_TITLE + text)
        # A shortened result says itself that something is missing.
        return Message.user(_BARE_TITLE) if dropped or len(self._kept) < len(self.blocks) else None


def shortened(messages: Sequence[Message], limit: int, budget: Budget) -> list[Message]:
    """Cut the longest results of a block in the middle, until it fits or nothing more can be cut.

    Its images and files go first. The calls stay as they are, and so does every `tool_call_id`.
    """
    whole = list(messages)
    out = list(messages)
    costs = [budget.count(message) for message in out]
    results = [place for place, message in enumerate(out) if message.role == "tool"]
    while results and sum(costs) > limit:
        place = max(results, key=costs.__getitem__)
        if out[place].media:
            whole[place] = out[place] = without_media(messages[place])
            costs[place] = budget.count(out[place])
            continue
        text = whole[place].text
        length = min(len(text), len(out[place].text))
        goal = costs[place] - (sum(costs) - limit)
        # Not below the next longest: several long results are to share the cut.
        others = sorted((costs[other] for other in results if other != place), reverse=True)
        goal = max(goal, (others[0] * 3 // 4) if others else 0)
        keep = int(length * min(0.9, goal / costs[place])) - len(_CUT) - 4
        if keep < _LEAST:
            results.remove(place)
            out[place] = marked(messages[place], _NOTHING) if len(text) > len(_NOTHING) else whole[place]
        else:
            out[place] = brief(whole[place], keep)
        costs[place] = budget.count(out[place])
    return out


def brief(message: Message, keep: int) -> Message:
    """Keep the beginning and the end of a result, with a note between them on what is missing."""
    text = message.text_with_placeholders
    front = keep * 2 // 3
    gone = len(text) - keep
    if gone <= len(_CUT):
        return message
    return marked(message, text[:front] + _CUT.format(n=gone) + text[len(text) - (keep - front) :])


def without_media(message: Message) -> Message:
    """Leave the images and files of a result out, which take more than a short text; one without any stays itself."""
    return marked(message, message.text_with_placeholders) if message.media else message


def marked(message: Message, content: str) -> Message:
    """Give a result another text."""
    return message.model_copy(update={"content": content})


def text_of(messages: Iterable[Message]) -> str:
    """Join the texts of messages, calls included."""
    parts: list[str] = []
    for message in messages:
        parts.append(message.text)
        parts += [f"{call.name} {call.raw or call.arguments}" for call in message.tool_calls]
    return "\n".join(parts)
