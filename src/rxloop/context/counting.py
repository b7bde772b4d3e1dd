"""Token estimates without a vocabulary, cached for each message."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Generic, TypeVar
from weakref import ref

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message

T = TypeVar("T")

LONGEST = 64
"""Characters of the longest text that is kept."""

MOST = 16_384


def for_short_texts(work_out: Callable[[str], T]) -> Callable[[str], T]:
    """Let a pure function of a text work short texts out once: the same few words come again and again.

    Longer ones are somebody's own, and not kept.
    """
    kept = lru_cache(maxsize=MOST)(work_out)

    @wraps(work_out)
    def found(text: str) -> T:
        return kept(text) if len(text) <= LONGEST else work_out(text)

    return found


class PerMessage(Generic[T]):
    """A pure function of a message that works each message out once.

    Messages are frozen, and those of a history are the same objects from request to request, so their identity is the
    key. An entry goes when its message does.
    """

    __slots__ = ("_kept", "_work_out")

    def __init__(self, work_out: Callable[[Message], T]) -> None:
        self._work_out = work_out
        self._kept: dict[int, tuple[ref[Message], T]] = {}

    def __call__(self, message: Message) -> T:
        """Return the value for a message."""
        key = id(message)
        entry = self._kept.get(key)
        if entry is not None and entry[0]() is message:
            return entry[1]
        value = self._work_out(message)
        kept = self._kept
        # The callback runs before the id can be given to another object.
        self._kept[key] = (ref(message, lambda gone: kept.pop(key, None)), value)
        return value


# What a message and a call take beside their texts, in most chat formats.
_MESSAGE, _CALL, _TOOL = 4.0, 6.0, 8.0

# An image in the usual size, and a page or so of a document; what they really take differs by provider.
_IMAGE, _FILE = 800.0, 1_500.0


def _class_of(byte: int) -> str:
    char = chr(byte)
    if byte >= 0x80:
        # The first byte of a character tells its script: from three bytes on they are mostly syllables and signs.
        return "c" if byte >= 0xE0 else "x" if byte >= 0xC0 else "z"
    if char.isalpha():
        return "l" if char.islower() else "u"
    return "d" if char.isdigit() else "s" if char == " " else "n" if char in "\n\r\t" else "p"


_CLASSES = bytes(ord(_class_of(byte)) for byte in range(256))


def _estimate(text: str) -> float:
    """Estimate the tokens of a text; the figures are fitted to the mean of several public vocabularies.

    What counts beside the bytes of each class is how often a run of them begins: a word, a number, a row of signs.
    """
    count = text.encode("utf-8", "replace").translate(_CLASSES).count
    words = count(b"sl") + count(b"nl") + count(b"pl") + count(b"dl")
    capitals = count(b"su") + count(b"nu") + count(b"pu") + count(b"lu") + count(b"du")
    numbers = count(b"sd") + count(b"nd") + count(b"pd") + count(b"ld") + count(b"ud")
    signs = count(b"sp") + count(b"np") + count(b"lp") + count(b"up") + count(b"dp") + count(b"zp")
    return (
        0.066 * count(b"l")
        + 0.169 * count(b"u")
        + 0.65 * count(b"d")
        + 0.069 * count(b"s")
        + 0.652 * count(b"n")
        + 0.378 * count(b"p")
        + 0.759 * count(b"c")
        + 0.226 * count(b"x")
        + 0.643 * words
        + 0.663 * capitals
        + 0.86 * numbers
        + 0.29 * signs
    )


text_tokens = for_short_texts(_estimate)
"""The estimated tokens of a short text; the same few come again and again."""


def _arguments(message: Message) -> list[str]:
    return [call.raw if call.raw is not None else _json(call.arguments) for call in message.tool_calls]


def _json(value: dict[str, Any]) -> str:
    # Not orjson, which refuses integers beyond 64 bits.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _parts(message: Message) -> float:
    if isinstance(message.content, str):
        return 0.0
    images = sum(isinstance(part, ImagePart) for part in message.content)
    files = sum(isinstance(part, FilePart) for part in message.content)
    return _IMAGE * images + _FILE * files


def _message_tokens(message: Message, size: Callable[[str], float]) -> float:
    tokens = _MESSAGE + size(message.text) + _parts(message)
    if message.reasoning:
        tokens += size(message.reasoning)
    for call, arguments in zip(message.tool_calls, _arguments(message), strict=True):
        tokens += _CALL + size(call.name) + size(arguments)
    return tokens


class _PerTool:
    """The tokens of tools, each worked out once: an agent offers the same ones in every request."""

    _MOST = 1_000

    def __init__(self, size: Callable[[str], float]) -> None:
        self._size = size
        # With the tool, so that its id is not given to another one.
        self._kept: dict[int, tuple[ToolDefinition, float]] = {}

    def __call__(self, tool: ToolDefinition) -> float:
        entry = self._kept.get(id(tool))
        if entry is not None:
            return entry[1]
        if len(self._kept) >= self._MOST:
            self._kept.clear()
        tokens = _TOOL + self._size(f"{tool.name}\n{tool.description}\n{_json(tool.parameters)}")
        self._kept[id(tool)] = (tool, tokens)
        return tokens


class TextCounter:
    """Counts with an exact counter of texts, such as a tokenizer's.

    Example:
        ```python
        encoding = tiktoken.encoding_for_model("gpt-5")
        counter = TextCounter(lambda text: len(encoding.encode_ordinary(text)))
        ```

    Args:
        size: The tokens of a text.
    """

    def __init__(self, size: Callable[[str], int]) -> None:
        self._messages = PerMessage(lambda message: math.ceil(_message_tokens(message, size)))
        self._tools = _PerTool(size)

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Count the tokens of messages and tools; each message is counted once."""
        return sum(map(self._messages, messages)) + math.ceil(sum(map(self._tools, tools)))


@dataclass(slots=True)
class _Calibration:
    """What is known of a model: `actual = ratio * estimate + base`, and how well.

    Two figures, kept as a Kalman filter keeps them. One report cannot tell a chat format with a long preamble (`base`)
    from a vocabulary with shorter tokens (`ratio`); the variances decide: small requests teach the one, large requests
    the other.
    """

    ratio: float = 1.0
    base: float = 0.0
    ratio_variance: float = 0.15**2
    base_variance: float = 300.0**2
    covariance: float = 0.0
    reports: int = 0

    def predict(self, estimate: float) -> float:
        return max(0.0, self.ratio * estimate + self.base)

    def deviation(self, estimate: float) -> float:
        """Return the standard deviation of what is predicted for an estimate."""
        between = 2 * estimate * self.covariance
        return math.sqrt(max(0.0, self.ratio_variance * estimate**2 + between + self.base_variance))

    def learn(self, estimate: float, actual: float) -> None:
        # The texts of the next request differ a little from those of the last one, so nothing is known for good.
        self.ratio_variance += 0.005**2
        self.base_variance += 4.0
        toward_ratio = self.ratio_variance * estimate + self.covariance
        toward_base = self.covariance * estimate + self.base_variance
        noise = (0.002 * actual) ** 2 + 4.0
        spread = toward_ratio * estimate + toward_base + noise
        surprise = actual - (self.ratio * estimate + self.base)
        self.ratio += toward_ratio / spread * surprise
        self.base += toward_base / spread * surprise
        self.ratio_variance -= toward_ratio**2 / spread
        self.base_variance -= toward_base**2 / spread
        self.covariance -= toward_ratio * toward_base / spread
        self.reports += 1


class TokenEstimator:
    """Estimates tokens from the bytes of the texts, and learns from what the providers report.

    An estimate without a report is within 10 % on most texts, with one within 1 % on the next requests of the same run.
    Knowledge of models is shared by all the counters of an estimator; it holds no messages, and nothing of a run.

    Args:
        model: The model whose reports correct the counts; see `for_model`.

    Example:
        ```python
        counter = TokenEstimator().for_model("zai:glm-4.7")
        estimate = counter.raw(messages, tools)
        ...
        counter.observe(estimate, usage.input_tokens)
        counter.count(messages, tools), counter.margin(messages, tools)
        ```
    """

    def __init__(self, model: str = "") -> None:
        self.model = model
        self._models: dict[str, _Calibration] = {}
        self._messages = PerMessage(lambda message: _message_tokens(message, _estimate))
        self._tools = _PerTool(_estimate)

    def for_model(self, model: str) -> TokenEstimator:
        """Make a counter for that model, which shares what is known."""
        other = TokenEstimator.__new__(TokenEstimator)
        other.model, other._models = model, self._models
        other._messages, other._tools = self._messages, self._tools
        return other

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Count the tokens of messages and tools, by all that is known.

        Without what the model takes for every request (its preamble), so that counts can be added up; see `request`.
        """
        return math.ceil(self._known.ratio * self.raw(messages, tools))

    def request(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Predict the tokens that the provider will report for a whole request."""
        return self.predicted(self.raw(messages, tools))

    def predicted(self, raw: float) -> int:
        """Predict the tokens that the provider will report for a request with this `raw` estimate."""
        return math.ceil(self._known.predict(raw))

    def raw(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> float:
        """Estimate without any correction."""
        return sum(map(self._messages, messages)) + sum(map(self._tools, tools))

    def observe(self, raw: float, actual: int) -> None:
        """Learn from a report.

        Args:
            raw: What `raw` gave for that request.
            actual: The input tokens that the provider reported, cached ones included.
        """
        if raw > 0 and actual > 0:
            self._models.setdefault(self.model, _Calibration()).learn(raw, actual)

    def margin(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> float:
        """Tell how sure `request` is: the real number is seldom farther away than this part of it (0.1 is 10 %)."""
        known, raw = self._known, self.raw(messages, tools)
        return 2 * known.deviation(raw) / max(1.0, known.predict(raw)) if known.reports else 0.2

    @property
    def _known(self) -> _Calibration:
        return self._models.get(self.model) or _Calibration()
