"""Detection of context overflows and rejected media in the error messages of vendors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, cast

import orjson

from rxloop.errors import MediaRefused
from rxloop.protocol.media import decode_base64

# Known error messages, with example vendors.
_OVERFLOW = re.compile(
    "|".join(
        (
            r"context[ _-]?(length|window|size|limit)|maximum context",  # OpenAI, vLLM, llama.cpp, LM Studio
            r"max(imum)?( allowed)? (input|prompt|model|sequence) length",  # xAI, vLLM, Poolside
            r"\b(prompts?|inputs?|conversation|messages)( text| tokens)?( is| are)? too (long|large)",  # Ollama
            r"\b(prompt|input) \([^)]{0,40}\) is too long",  # vLLM
            r"(prompt|input|request) (has|contains) too many tokens|too many input tokens",
            r"reduce the length of",  # Groq
            r"input token count.{0,40}(exceeds|only supports)",  # Google
            r"request payload size exceeds",
            r"number of input tokens exceed|max(imum)?( number of)? input tokens?\b|input tokens? exceed",  # Bedrock
            r"exceed(s|ed)?( the)? (model('s)? )?(token|input|prompt) limit",  # Moonshot
            r"more than max tokens allowed",  # Z.ai
            r"prompt exceeds( the)? max|exceeds max length",
            r"`?inputs`? tokens \+ `?max_new_tokens|`?inputs`? must have less than",  # TGI, Together
            r"range of input length|input length.{0,40}exceed",  # DashScope
            r"too many tokens: (total|size)|number of tokens in the prompt",  # Cohere
            r"\btotal( number of)? tokens exceeds?( the)? (model|limit|max)",
            r"model's context is \d",
            r"\b(prompt|inputs?|request|messages|sequence)\b.{0,50}\b(exceed\w*|(great|larg)er than)\b"
            r".{0,30}(\btokens\b|\btoken limit|max_(seq|model)_len|limit \(?\d|model max)",  # TabbyAPI
            r"request body too large for \S+ model",  # GitHub Models
            r"(输入|上下文|提示词?|prompt).{0,12}(超长|过长|超出|超过)",
            r"tokens?.{0,12}(超长|超限|超过|超出)",
        )
    ),
    re.IGNORECASE,
)

_RATE = re.compile(
    r"(tokens?|requests?) per[ -](minute|min|day|hour|second)\b|\b(TPM|TPD|RPM|RPD)\b|rate[ _-]?limit(?!s/)"
    r"|too many requests|tokens, please wait|每分钟|速率|请求过于频繁",
    re.IGNORECASE,
)

_COUNT = r"(\d[\d,_]*)"

_ABOVE_RATE = re.compile(r"\bLimit (\d[\d,]*\d),(?: Used [\d,]+)? Requested (\d[\d,]*)", re.IGNORECASE)

_WINDOW = re.compile(rf"maximum context length (?:is|of) {_COUNT}|must be <= {_COUNT}|\+ \d+ > {_COUNT}", re.IGNORECASE)

_OUTPUT = re.compile(
    rf"{_COUNT} (?:tokens )?(?:in|for|of) the (?:completion|output)|{_COUNT} output tokens"
    rf"|max_(?:completion_|new_)?tokens\S* is too large: {_COUNT}|{_COUNT} `?max_new_tokens|\d \+ {_COUNT} >",
    re.IGNORECASE,
)

_OTHER = re.compile(
    r"at most \d+ (completion|output) tokens|maximum (allowed )?(number of )?(output|completion) (tokens|length)"
    r"|maximum output for this model|range of max_(completion_)?tokens"
    r"|(?<!\+ )(?<!\+ `)(?<!and )(?<!and `)\bmax_(completion_|output_|new_)?tokens`?( value)?( of)?[ :=(]*\d*\)? "
    r"((must|should|has to) be|exceeds?|is (larger|greater|higher) than)\b"  # Groq
    r"|(unsupported|unknown|unrecognized|unexpected) (parameter|field|argument|option)",
    re.IGNORECASE,
)
"""Errors unrelated to the input length."""


def is_context_overflow(message: str) -> bool:
    """Return True if the message says that the input is too long for the model.

    Return False if only `max_tokens` is too large, because a shorter input would not help.
    """
    if _OVERFLOW.search(message) is None:
        return False
    window, output = _first(_WINDOW, message), _first(_OUTPUT, message)
    if window is not None and output is not None:
        return output < window
    return _OTHER.search(message) is None


def is_rate_limit(message: str) -> bool:
    """Return True if the message is about a limit of requests or tokens per time.

    Return False if a single request exceeds the limit, because waiting would not help.
    """
    if _RATE.search(message) is None:
        return False
    counts = _ABOVE_RATE.search(message)
    return counts is None or _count(counts[2]) <= _count(counts[1])


def _first(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    if match is None:
        return None
    digits = next(group for group in match.groups() if group)
    return _count(digits)


def _count(digits: str) -> int:
    return int(digits.replace(",", "").replace("_", "")[:18])


_NAMES = re.compile(
    r"(invalid|empty|unsupported)_(base64_)?image\w*|image_\w*(invalid|error|large|small|unsupported|violation|found|mode)\w*"
    r"|failed_to_download_(image|file)|(unsupported|invalid)_(file|document|pdf)\w*|sanitizer_server_error"
)

_MEDIA = (
    r"\b(images?|pictures?|photos?|pdfs?|media|audio|videos?|documents?|attachments?|vision|multimodal|inline_?data"
    r"|image_url|file_data|file (content|data|type))\b"
)

_FAULT = (
    r"could ?n[o']t|cannot|can't|unable to|failed|failure|fail to|invalid|not (a )?valid|not match|unsupported|unknown"
    r"|not (currently )?support(ed)?|does not (support|accept)|doesn't support|not allowed|exceed|at most|corrupt"
    r"|too (large|big|small|many)|must be|must not|should (be|start)|unrecognized|error|refus|reject|violat|safety"
    r"|larger than|less than|limit|maximum|protected|encrypted|missing|time(d|out)|not represent|\b(0|no) pages"
)

_WORDS = re.compile(rf"{_MEDIA}.{{0,160}}({_FAULT})|({_FAULT}).{{0,160}}{_MEDIA}", re.IGNORECASE | re.DOTALL)

_OTHERS = re.compile(
    r"unsupported mime ?type|mime type must be|unknown variant `(image_url|file|input_audio|document)"
    r"|cannot fetch content from the provided url|url_(robot|rejected|unreachable|error)|图片"
    r"|(invalid|malformed) base64|base64 (data|string)? ?(is )?(invalid|decod)|(error|timeout|failed) while downloading"
    r"|content\b.{0,30}(must|should|expected).{0,10}\bstring|support input (image|file|audio)"
    r"|expected a base64-encoded data url|extract text from file"
    r"|not (a )?multimodal|no endpoints found that support (image|file|audio)|content type '?(image_url|file)'? is not",
    re.IGNORECASE,
)

_NONE_ACCEPTED = re.compile(
    r"(does not|doesn't|not) (currently )?(support|accept)(ed)? ?(image|vision|file|audio|media)|unknown variant"
    r"|no endpoints found|not (a )?multimodal|at most 0|(image|audio|file)s? (input|content)?s? ?(is|are) not support"
    r"|content type '?\w+'? is not supported|only supported by certain models|vision is not supported"
    r"|required for image input|content\b.{0,30}(must|should|expected).{0,10}\bstring",
    re.IGNORECASE,
)

_TOO_MANY = re.compile(
    r"too many (images|pictures|files|media|documents)|at most [1-9]\d* ?(image|media|file)"
    r"|(images|files|documents)\b.{0,40}\blimit is|maximum of \d+ (images|files|documents)",
    re.IGNORECASE,
)

_NOT_MEDIA = re.compile(
    r"context|tokens?\b|tool_use|tool_call|response_format|generate an image|moderat\w+ endpoint|\btools?[\[.]|schema"
    r"|[Uu]nknown parameter",
)

_PATH = re.compile(r"\b(messages|input|contents)((?:\[\d+\]|\.\w+)+)")

_MEDIA_PATH = re.compile(
    r"\b(messages|input|contents)[\[.][\w.\[\]]{0,100}\b(image|image_url|document|file|file_data|file_url|input_audio|inline_?data)\b",
    re.IGNORECASE,
)

_READ = 2_000
"""Maximum number of characters that are searched."""

_STATUSES = (None, 400, 403, 404, 413, 415, 422, 500)

_ADDRESSES = ("url", "image_url", "file_url", "fileUri", "document_url", "file_id")


def is_media_refusal(status: int | None, names: Sequence[str], message: str, param: object = None) -> bool:
    """Return True if the vendor rejected the request because of an image or a file."""
    if status not in _STATUSES:
        return False
    # Look-ahead patterns would need seconds for long malicious messages.
    message = message[:_READ]
    if any(_NAMES.fullmatch(name) for name in names) or _MEDIA_PATH.search(f"{message} {param}"):
        return True
    if status == 500 and "image" not in message.lower():
        return False
    if _OTHERS.search(message):
        return True
    return _WORDS.search(message) is not None and _NOT_MEDIA.search(message) is None


def locate(error: MediaRefused, message: str, param: object) -> None:
    """Set the path and the scope of an error from the vendor's message."""
    match = _PATH.search(param if isinstance(param, str) else "") or _PATH.search(message)
    error.path = match[0] if match is not None else ""
    if _NONE_ACCEPTED.search(message):
        error.scope = "all"
    elif _TOO_MANY.search(message):
        error.scope = "older"


def find_fingerprints(body: bytes, path: str) -> tuple[str, ...]:
    """Return the fingerprints of the media at a path such as `messages.3.content.1.image.source`.

    Args:
        body: The request body as JSON.
        path: The path from the vendor's error message.

    Returns:
        The fingerprints in the innermost object of the path that contains media. Empty if the path does not match.
    """
    node: Any = orjson.loads(body)
    nodes: list[Any] = []
    for name in re.findall(r"\w+", path):
        if isinstance(node, list):
            items = cast("list[Any]", node)
            if not name.isdigit() or int(name) >= len(items):
                break
            node = items[int(name)]
        elif isinstance(node, dict) and name in node:
            node = cast("dict[str, Any]", node)[name]
        else:
            # Anthropic's paths also contain the type of the block.
            continue
        if isinstance(node, dict):
            nodes.append(node)
    return next((tuple(fingerprints) for node in reversed(nodes) if (fingerprints := list(_fingerprints(node)))), ())


def _fingerprints(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in cast("list[Any]", node):
            yield from _fingerprints(item)
    elif isinstance(node, dict):
        for name, value in cast("dict[str, Any]", node).items():
            if not isinstance(value, str):
                yield from _fingerprints(value)
            elif name in ("data", "file_data") or value[:5] == "data:":
                yield _fingerprint(value)
            elif name in _ADDRESSES:
                yield sha256(value.encode()).hexdigest()[:32]


def _fingerprint(data: str) -> str:
    try:
        return sha256(decode_base64(data)).hexdigest()[:32]
    except ValueError:
        return sha256(data.encode("utf-8", "replace")).hexdigest()[:32]
