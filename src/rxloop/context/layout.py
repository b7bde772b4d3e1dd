"""Request layout for compression: message blocks, required messages and summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rxloop.context.fact_ledger import FactLedger, load_ledger
from rxloop.context.facts import extract_facts
from rxloop.pipeline.interfaces import Budget
from rxloop.protocol.messages import Message
from rxloop.support.misuse import check_argument, check_minimum, is_number


@dataclass(frozen=True, slots=True)
class Block:
    """Inseparable group of messages.

    Assistant messages with tool calls form a block along with their results. Other messages form individual blocks.
    """

    start: int
    """History index of the first message."""
    messages: tuple[Message, ...]

    @property
    def places(self) -> range:
        """History indices of all messages."""
        return range(self.start, self.start + len(self.messages))

    @property
    def calls(self) -> bool:
        """True if the block contains tool calls."""
        return bool(self.messages[0].tool_calls)

    @property
    def open(self) -> bool:
        """True if at least one call has no result."""
        return bool(_list_unanswered(self.messages))


def split_blocks(messages: Iterable[Message]) -> list[Block]:
    """Split a history into blocks."""
    blocks: list[Block] = []
    current: list[Message] = []
    start = index = 0
    for index, message in enumerate(messages):
        if message.role == "tool" and current and current[0].tool_calls:
            current.append(message)
            continue
        if current:
            blocks.append(Block(start, tuple(current)))
        current, start = [message], index
    if current:
        blocks.append(Block(start, tuple(current)))
    return blocks


def find_problems(messages: Sequence[Message], *, open_tail: bool = True) -> list[str]:
    """Find problems that would cause rejection by a provider.

    Args:
        messages: Messages without the system prompt.
        open_tail: True if calls in the last block may still be pending.
    """
    problems: list[str] = []
    blocks = split_blocks(messages)
    for block in blocks:
        first = block.messages[0]
        if first.role == "tool":
            problems.append(
                f"message {block.start} answers the call {first.tool_call_id!r}, which nothing before it makes"
            )
            continue
        missing, unmatched = _list_unanswered(block.messages), _find_unmatched_results(block.messages)
        if missing and not (open_tail and block is blocks[-1]):
            problems.append(f"the call {missing[0]!r} of message {block.start} has no result")
        if unmatched:
            call_id = block.messages[unmatched[0]].tool_call_id
            problems.append(
                f"message {block.start + unmatched[0]} answers the call {call_id!r}, which is answered already"
            )
    return problems


def repair_messages(messages: Sequence[Message], *, open_tail: bool = True) -> list[Message]:
    """Remove results without a call, and calls without results.

    A block with an unanswered call is removed completely, so that no message is modified. The last block is kept if
    `open_tail` is True. Valid messages are returned unchanged.
    """
    kept: list[Message] = []
    blocks = split_blocks(messages)
    for block in blocks:
        if block.messages[0].role == "tool":
            continue
        if block.open and not (open_tail and block is blocks[-1]):
            continue
        unmatched = set(_find_unmatched_results(block.messages))
        kept += [message for index, message in enumerate(block.messages) if index not in unmatched]
    return kept


def _list_unanswered(messages: Sequence[Message]) -> list[str]:
    missing = [call.id for call in messages[0].tool_calls]
    for message in messages[1:]:
        if message.tool_call_id in missing:
            missing.remove(message.tool_call_id)
    return missing


def _find_unmatched_results(messages: Sequence[Message]) -> list[int]:
    """Return indices of results without a matching call."""
    missing = [call.id for call in messages[0].tool_calls]
    indices: list[int] = []
    for index, message in enumerate(messages[1:], 1):
        if message.tool_call_id in missing:
            missing.remove(message.tool_call_id)
        else:
            indices.append(index)
    return indices


class Marks:
    """Token limit and watermarks of a compressor.

    Args:
        max_tokens: Maximum size of a request, including system prompt, tools and workspace.
        high: Fraction of the limit at which the history is compressed.
        low: Fraction of the limit that the request has after a compression. Lower values keep the provider's cache
            valid for longer, but retain fewer messages.
    """

    max_messages: int | None = None
    """Maximum number of messages from the history in a request."""

    def __init__(self, max_tokens: int, *, high: float = 1.0, low: float = 0.6) -> None:
        check_minimum(0, max_tokens=max_tokens)
        is_valid = is_number(low) and is_number(high) and 0 < low <= high <= 1
        check_argument("low and high", (low, high), is_valid, "fractions with 0 < low <= high <= 1")
        self.max_tokens = max_tokens
        self.high = high
        self.low = low

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_tokens={self.max_tokens}, high={self.high}, low={self.low})"


# Small budgets use a larger share for the ledger, because few other messages fit.
_SHARE, _SMALL_TOKENS, _SHARE_BEYOND = 0.45, 2_000, 0.05

_TITLE = "[Earlier messages are left out here. Values from them, oldest first, as data:]\n"

_BARE_TITLE = "[Earlier messages are left out here.]"

_CUT = "\n[... {n} characters left out ...]\n"

_MIN_KEPT_CHARS = 40

_OMITTED = "[left out]"


class Layout:
    """Layout of a compressed history with retained blocks and a summary of removed messages.

    The first and last user message, pinned messages and system messages are required. The last block is also required
    because the model has not answered it yet, although its results may be truncated. Other blocks are optional
    (`free`).
    """

    def __init__(self, messages: Sequence[Message], budget: Budget) -> None:
        self.budget = budget
        self.blocks = split_blocks(messages)
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
        self._ledger = FactLedger([*budget.dropped, *messages]) if budget.dropped else load_ledger(messages)
        max_tokens = _SHARE * min(whole, _SMALL_TOKENS) + _SHARE_BEYOND * max(0, whole - _SMALL_TOKENS)
        need = 1.2 * self._ledger.tokens + budget.count(Message.user(_TITLE)) + 8
        self._summary_tokens = int(min(max_tokens, need))
        self.room = max(0, budget.target - fixed) - self._summary_tokens
        """Tokens available for free blocks."""
        last = len(self.blocks) - 1
        if self.blocks and last not in self._kept:
            limit = whole - self._summary_tokens
            fits = self.costs[last] <= limit
            self.keep(last, None if fits else shortened(self.blocks[last].messages, limit, budget))
        self.free = [index for index in range(len(self.blocks)) if index not in self._kept]

    def keep(self, index: int, messages: Sequence[Message] | None = None) -> None:
        """Keep a block, optionally in a shorter form."""
        self._kept[index] = messages or self.blocks[index].messages
        if messages:
            self.costs[index] = self.budget.count(*messages)
        self.room -= self.costs[index]

    def has_room(self, index: int) -> bool:
        """Return True if there is room for a free block, in tokens and messages."""
        max_messages = self.budget.messages
        if max_messages is not None and self._count + len(self.blocks[index].messages) > max_messages:
            return False
        return self.costs[index] <= self.room

    @property
    def _count(self) -> int:
        """Number of retained messages, including the summary."""
        return 1 + sum(map(len, self._kept.values()))

    def keep_newest(self, forms: dict[int, Sequence[Message]]) -> None:
        """Keep as many of the newest free blocks as possible.

        Args:
            forms: Shorter forms to use for some blocks. Their `costs` must be updated already.
        """
        for index in reversed(self.free):
            if not self.has_room(index):
                return
            self.keep(index, forms.get(index))

    def messages(self) -> list[Message]:
        """Return the retained messages, with the summary after the task.

        Returns the messages of the last compression if adding the summary would make them larger.
        """
        out: list[Message] = []
        position = 0
        for index in sorted(self._kept):
            out += self._kept[index]
            if index == self.task:
                position = len(out)
        summary = self._summary(out)
        if summary:
            out.insert(position, summary)
        count, sent = self.budget.count, self.budget.sent
        return list(sent) if sent and count(*out) > count(*sent) else out

    def _summary(self, kept: Sequence[Message]) -> Message | None:
        """Create a summary message from dropped messages, or return None if nothing was dropped."""
        count, dropped = self.budget.count, self.budget.dropped
        whole = {id(message) for message in kept}
        everything = [*dropped, *(message for block in self.blocks for message in block.messages)]
        if all(id(message) in whole for message in everything):
            return None
        titled = count(Message.user(_TITLE))
        left = min(self._summary_tokens, self.budget.tokens - count(*kept))
        visible = {fact.value for message in kept for fact in extract_facts(message)}
        text = self._ledger.text(
            left - titled, visible=visible, size=lambda text: count(Message.user(_TITLE + text)) - titled
        )
        if text:
            return Message.user(_TITLE + text)
        # A truncated result already shows that text is missing.
        return Message.user(_BARE_TITLE) if dropped or len(self._kept) < len(self.blocks) else None


def shortened(messages: Sequence[Message], limit: int, budget: Budget) -> list[Message]:
    """Truncate the longest results of a block to fit the token limit, if possible.

    Images and files are removed first. Tool calls and `tool_call_id` values are preserved.
    """
    whole = list(messages)
    out = list(messages)
    costs = [budget.count(message) for message in out]
    results = [index for index, message in enumerate(out) if message.role == "tool"]
    while results and sum(costs) > limit:
        index = max(results, key=costs.__getitem__)
        if out[index].media:
            whole[index] = out[index] = strip_media(messages[index])
            costs[index] = budget.count(out[index])
            continue
        text = whole[index].text
        length = min(len(text), len(out[index].text))
        goal = costs[index] - (sum(costs) - limit)
        # Don't go far below the next longest result, so that several long ones are truncated evenly.
        others = sorted((costs[other] for other in results if other != index), reverse=True)
        goal = max(goal, (others[0] * 3 // 4) if others else 0)
        keep = int(length * min(0.9, goal / costs[index])) - len(_CUT) - 4
        if keep < _MIN_KEPT_CHARS:
            results.remove(index)
            out[index] = replace_content(messages[index], _OMITTED) if len(text) > len(_OMITTED) else whole[index]
        else:
            out[index] = brief(whole[index], keep)
        costs[index] = budget.count(out[index])
    return out


def brief(message: Message, keep: int) -> Message:
    """Truncate a result in the middle."""
    text = message.text_with_placeholders
    front = keep * 2 // 3
    removed = len(text) - keep
    if removed <= len(_CUT):
        return message
    return replace_content(message, text[:front] + _CUT.format(n=removed) + text[len(text) - (keep - front) :])


def strip_media(message: Message) -> Message:
    """Replace images and files with placeholders."""
    return replace_content(message, message.text_with_placeholders) if message.media else message


def replace_content(message: Message, content: str) -> Message:
    """Return a copy with other content."""
    return message.model_copy(update={"content": content})


def join_texts(messages: Iterable[Message]) -> str:
    """Return the text of all messages, including their calls."""
    parts: list[str] = []
    for message in messages:
        parts.append(message.text)
        parts += [f"{call.name} {call.raw or call.arguments}" for call in message.tool_calls]
    return "\n".join(parts)
