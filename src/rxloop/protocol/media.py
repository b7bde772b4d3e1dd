"""Parse images and files: data URLs, base64, media types, file names and URLs.

Codecs call `resolve` before they encode a part. Server adapters call `make_part` for media received from a client.
Nothing in this module opens a file or a connection.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from hashlib import sha256
from typing import Literal, NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from rxloop.protocol.media_types import (
    get_media_kind,
    guess_media_type,
    has_text_name,
    is_generic,
    is_text,
    normalise_media_type,
    sniff,
)
from rxloop.protocol.parts import FilePart, ImagePart, fingerprint_slot, is_local_path

Kind = Literal["image", "pdf", "text", "audio", "video", "other"]
Store = Literal["openai", "anthropic", "google"]

_DATA_URL = re.compile(r'\s*data:((?:[^,"]|"[^"]*")*),', re.IGNORECASE)
_LONGEST_HEAD = 4_096
_LONGEST_NAME = 200
_URL_SAFE = str.maketrans("-_", "+/")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_OPENAI_FILE = re.compile(r"file-[A-Za-z0-9_-]{3,100}")
_ANTHROPIC_FILE = re.compile(r"file_[A-Za-z0-9]{3,100}")
_FETCHED_BY_GOOGLE = ("youtube.com", "www.youtube.com", "m.youtube.com", "youtu.be")
_FILES_OF_GOOGLE = "generativelanguage.googleapis.com"


class DataURL(NamedTuple):
    """A parsed data URL."""

    media_type: str
    """The media type and its charset, or an empty string."""
    data: bytes
    name: str | None


class ResolvedMedia(NamedTuple):
    """An image or a file in the form that codecs read.

    Exactly one of `data`, `url` and `problem` is set.
    """

    kind: Kind
    media_type: str | None
    """The registered media type in lower case and without parameters, or None if it is unknown."""
    data: bytes | None = None
    url: str | None = None
    name: str | None = None
    text: str | None = None
    """The decoded text of a text file."""
    problem: str | None = None
    """Why the part cannot be sent."""
    store: Store | None = None
    """The only vendor that can open the URL."""
    change: str | None = None
    """Difference between the part and its declaration, such as `as image/jpeg instead of image/png`."""

    @property
    def base64(self) -> str:
        """The bytes in standard base64 with padding."""
        return b64encode(self.data or b"").decode()

    @property
    def data_url(self) -> str:
        """The bytes as a data URL."""
        return f"data:{self.media_type or 'application/octet-stream'};base64,{self.base64}"

    @property
    def fingerprint(self) -> str:
        """A hash of the bytes or the URL. Equal contents have equal fingerprints."""
        return sha256(self.data if self.data is not None else (self.url or "").encode()).hexdigest()[:32]


def resolve(part: ImagePart | FilePart) -> ResolvedMedia:
    """Parse a part into the form that codecs read.

    If the bytes begin with the signature of an image or a PDF, the signature overrides the declared media type. Vendors
    compare the two and refuse a mismatch.
    """
    image = isinstance(part, ImagePart)
    media, declared = _resolve(part, image)
    change = _describe_change(media, declared, image)
    return media if change is None else media._replace(change=change)


def fingerprint(part: ImagePart | FilePart) -> str:
    """Return the fingerprint of a part. It is computed once for each part."""
    try:
        return fingerprint_slot.__get__(part)
    except AttributeError:
        value = resolve(part).fingerprint
        fingerprint_slot.__set__(part, value)
        return value


def _resolve(part: ImagePart | FilePart, image: bool) -> tuple[ResolvedMedia, str]:
    """Return the parsed part and its declared media type."""
    name = _file_name(part.filename if isinstance(part, FilePart) else None)
    declared = part.media_type or ""
    if part.data is not None:
        return _resolve_bytes(part.data, declared, name, image), declared
    url = (part.url or "").strip()
    if url[:5].lower() != "data:":
        return _resolve_address(url, declared, name, image), declared
    try:
        found = read_data_url(url)
    except ValueError as error:
        media_type = normalise_media_type(declared or url[5:_LONGEST_HEAD].partition(",")[0])
        return ResolvedMedia(_kind(media_type, image), media_type, name=name, problem=str(error)), declared
    declared = found.media_type if is_generic(declared) else declared
    return _resolve_bytes(found.data, declared, name or found.name, image), declared


def _describe_change(media: ResolvedMedia, declared: str, image: bool) -> str | None:
    """Describe the difference between a part and its declaration. The text of a text file arrives whole either way."""
    if media.problem is not None or media.kind == "text":
        return None
    written = declared.partition(";")[0].strip().lower()
    if written != media.media_type and not is_generic(declared):
        return f"as {media.media_type} instead of {written}"
    if image == (media.kind == "image") or media.media_type is None or (media.url is not None and not declared):
        return None
    return "as a file instead of an image" if image else "as an image instead of a file"


def make_part(
    *,
    url: str | None = None,
    data: bytes | str | None = None,
    media_type: str | None = None,
    name: str | None = None,
    image: bool = False,
) -> ImagePart | FilePart:
    """Make an `ImagePart` or a `FilePart` from media that a client sent.

    Args:
        url: An http or https URL, or a data URL. Pass either `url` or `data`.
        data: The bytes, or a string with their base64 encoding.
        media_type: The media type that the client declared.
        name: The file name.
        image: Whether the client declared an image.

    Returns:
        The part. Its type follows the bytes rather than the declaration.

    Raises:
        ValueError: The data are empty or not base64, their media type is unknown, or the URL has another scheme.
    """
    if data is not None:
        data = decode_base64(data) if isinstance(data, str) else bytes(data)
    elif url is not None and url.strip()[:5].lower() == "data:":
        found = read_data_url(url)
        data, name = found.data, name or found.name
        media_type = found.media_type if is_generic(media_type) else media_type
    elif url is None or not url.lower().startswith(("https://", "http://")):
        shown = (url or "")[:80]
        raise ValueError(
            f"url must be an https:// or http:// address or a data: URL, got {shown!r}. Send the bytes of a local file."
        )
    name = _file_name(name)
    if data is None:
        # The end of a URL is only a guess, so a file becomes an image only if its type was declared.
        found_at = _resolve_address(url or "", media_type, name, image)
        if found_at.problem is not None:
            raise ValueError(found_at.problem)
        declared = found_at.media_type if normalise_media_type(media_type) else None
        if image or (declared or "").startswith("image/"):
            return ImagePart(url=url, media_type=declared)
        return FilePart(url=url, media_type=declared, filename=name)
    if not data:
        raise ValueError(f"the data of {name or 'a file'} must not be empty")
    read = _resolve_bytes(data, media_type or "", name, image)
    if read.media_type is None and not media_type:
        raise ValueError(f"media_type must be set for {name or 'a file'}: neither its bytes nor its name show the type")
    kept = read.media_type or "application/octet-stream"
    if read.kind == "text" and media_type and normalise_media_type(media_type) == read.media_type:
        # The declared type has the charset.
        kept = media_type
    if read.kind == "image" or (image and read.media_type is None):
        return ImagePart(data=data, media_type=kept)
    return FilePart(data=data, media_type=kept, filename=name)


def decode_base64(text: str) -> bytes:
    """Decode standard or URL-safe base64. Padding, white space and percent-encoding are optional.

    Raises:
        ValueError: The text is not valid base64.
    """
    if "%" in text:
        text = unquote(text)
    if text[:5].lower() == "data:":
        return read_data_url(text).data
    # Encoders break long lines, so white space may be anywhere.
    text = "".join(text.split()).rstrip("=").translate(_URL_SAFE)
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (BadBase64, ValueError):
        raise ValueError("the data are not valid base64") from None


def read_data_url(url: str) -> DataURL:
    """Parse a data URL in base64 or percent-encoding.

    Raises:
        ValueError: The URL has no comma before the data, or the data are not valid base64.
    """
    head = _DATA_URL.match(url, 0, min(len(url), _LONGEST_HEAD))
    if head is None:
        raise ValueError("the data: URL has no comma before its data")
    kind, *options = [option.strip() for option in head[1].split(";")]
    written = url[head.end() :]
    names = [option for option in options if option.lower().startswith(("name=", "filename="))]
    name = unquote(names[0].partition("=")[2].strip('"')) if names else None
    charset = next((option for option in options if option.lower().startswith("charset=")), None)
    media_type = "; ".join(filter(None, (unquote(kind), charset)))
    if any(option.lower() == "base64" for option in options):
        return DataURL(media_type, decode_base64(written), name)
    data = unquote_to_bytes(written)
    if not is_generic(kind) and not is_text(normalise_media_type(kind)) and sniff(data) is None:
        try:
            # Some clients forget `;base64`.
            decoded = decode_base64(written)
        except ValueError:
            decoded = b""
        data = decoded if sniff(decoded) is not None else data
    return DataURL(media_type, data, name)


def decode_text(data: bytes, charset: str | None = None) -> str | None:
    """Decode a text file, or return None if the bytes are not text.

    The byte order mark is tried first, then the charset, UTF-8, Windows-1252 and Latin-1.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            charset = encoding
    encodings = [charset] if charset and charset.lower() not in ("us-ascii", "ascii") else []
    text = next((text for each in (*encodings, "utf-8") if (text := _decode(data, each)) is not None), None)
    if text is None and sum(byte > 127 for byte in data[:10_000]) * 2 <= len(data[:10_000]):
        # Any bytes are valid Latin-1, so require that most of them are ASCII.
        text = _decode(data, "cp1252") or _decode(data, "latin-1")
    return None if text is None or _CONTROLS.search(text) else text


def _decode(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except (ValueError, LookupError):
        return None


def _resolve_bytes(data: bytes, declared: str, name: str | None, image: bool) -> ResolvedMedia:
    known, found = normalise_media_type(declared), sniff(data)
    if found is None and data and get_media_kind(known) in ("image", "pdf", "audio", "video"):
        # Some callers pass base64 where bytes are expected.
        decoded = _try_base64(data)
        if sniff(decoded) is not None:
            data, found = decoded, sniff(decoded)
    media_type = _media_type(known, found, name)
    if not data:
        return ResolvedMedia(_kind(media_type, image), media_type, name=name, problem="it is empty")
    text = None
    if found is None and (is_text(media_type) or (not image and (media_type is None or has_text_name(name)))):
        text = decode_text(data, _charset(declared))
    if text is not None and not text.strip():
        return ResolvedMedia("text", media_type, name=name, problem="it is empty")
    if text is not None and not (image and get_media_kind(media_type) == "image"):
        if not is_text(media_type):
            media_type = guess_media_type(name) if is_text(guess_media_type(name)) else "text/plain"
        return ResolvedMedia("text", media_type, data, None, name, text)
    kind = _kind(media_type, image)
    return ResolvedMedia("other" if kind == "text" else kind, media_type, data, None, name, text)


def _try_base64(data: bytes) -> bytes:
    try:
        return decode_base64(data.decode("ascii"))
    except ValueError:
        return b""


def _media_type(known: str | None, found: str | None, name: str | None) -> str | None:
    """Choose between the declared media type, the signature of the bytes, and the file name."""
    if found is None:
        return known or guess_media_type(name)
    if get_media_kind(found) in ("image", "pdf"):
        return found
    # The signature of an Office document is that of a zip archive, and audio and video share containers.
    declared = known or guess_media_type(name)
    return found if declared is None or get_media_kind(declared) in ("image", "pdf", "text") else declared


def _resolve_address(url: str, declared: str | None, name: str | None, image: bool) -> ResolvedMedia:
    media_type = normalise_media_type(declared)
    if _OPENAI_FILE.fullmatch(url) or _ANTHROPIC_FILE.fullmatch(url):
        store: Store = "openai" if "-" in url[:5] else "anthropic"
        return ResolvedMedia(
            _kind(media_type or guess_media_type(name), image), media_type, None, url, name, store=store
        )
    if is_local_path(url):
        problem = f"{url[:80]!r} is a local path, which no vendor can open; read the file with from_path()"
        return ResolvedMedia(_kind(media_type, image), media_type, name=name, problem=problem)
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.scheme in ("http", "https", "gs") and parts.port != 0
        valid = valid and url.isprintable()
        # A gs:// URL without a path names a bucket and no file.
        valid = valid and not (parts.scheme == "gs" and len(parts.path) < 2)
    except ValueError:
        valid = False
    if not valid:
        problem = f"{url[:80]!r} is not an https://, http://, gs:// or data: URL"
        return ResolvedMedia(_kind(media_type, image), media_type, name=name, problem=problem)
    parts = urlsplit(url)
    of_google = parts.scheme == "gs" or parts.hostname in _FETCHED_BY_GOOGLE
    of_google = of_google or (parts.hostname == _FILES_OF_GOOGLE and "/files/" in parts.path)
    if media_type is None:
        guessed = guess_media_type(unquote(parts.path))
        if not image or get_media_kind(guessed) in ("image", "pdf"):
            media_type = guessed
    kind = _kind(media_type, image)
    return ResolvedMedia(kind, media_type, None, url, name, store="google" if of_google else None)


def _kind(media_type: str | None, image: bool) -> Kind:
    if media_type is None:
        return "image" if image else "other"
    if media_type == "image/svg+xml" and not image:
        return "text"
    return get_media_kind(media_type)


def _charset(declared: str) -> str | None:
    for option in declared.split(";")[1:]:
        key, _, value = option.partition("=")
        if key.strip().lower() == "charset":
            return value.strip().strip("\"'") or None
    return None


def _file_name(name: str | None) -> str | None:
    """Return the last component of a path, without control characters."""
    if not name:
        return None
    name = "".join(char for char in re.split(r"[/\\]", name)[-1] if char.isprintable()).strip()
    return name[:_LONGEST_NAME] or None
