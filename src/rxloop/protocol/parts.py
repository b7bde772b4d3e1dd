"""Parts of messages: texts, images and files; and where the words of an answer come from."""

import re
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import override

from rxloop.protocol.model import Wire

_LONGEST = 200
"""Characters of an address or a name in a placeholder."""
_LOCAL = r"(?i)file:|~?[/\\]|~$|\.{1,2}[/\\]|[a-z]:[/\\]"
"""Not compiled at import: most programs have no images or files."""


class TextPart(Wire):
    """A piece of text inside a message of several parts."""

    type: Literal["text"] = "text"
    text: str


class _Media(Wire):
    # The fingerprint, so that the bytes of a long conversation are not hashed for each request; no part of the value.
    __slots__ = ("_hash",)

    _kind: ClassVar[str]
    url: str | None = None
    """Where the bytes are, if they are not in `data`: an http address, or a data URL. No local path."""
    data: bytes | None = None
    """The bytes themselves; base64 in JSON."""
    media_type: str | None = None
    """The MIME type, needed with `data` unless the bytes or the file's name tell it."""

    @classmethod
    def from_path(cls, path: str | PathLike[str], *, media_type: str | None = None) -> Self:
        """Read a file, now.

        Args:
            path: The file.
            media_type: Its MIME type; None tells it from the file's name.

        Raises:
            ValueError: The name does not tell the type.
        """
        # Not before it is needed, as it is in few programs.
        from rxloop.protocol.media_types import guess_media_type, sniff

        file = Path(path)
        data = file.read_bytes()
        media_type = media_type or sniff(data) or guess_media_type(file.name)
        if media_type is None:
            raise ValueError(f"the name {file.name!r} does not tell a media type: pass media_type=")
        return cls(data=data, media_type=media_type, **cls._named(file.name))

    @property
    def placeholder(self) -> str:
        """What stands for it in a text, such as `[image/png, 4.0 kB]` or `[report.pdf at https://example.org/r]`."""
        name, described = (self._name or "")[:_LONGEST], self.described
        if described.startswith("at "):
            return f"[{name or self._kind} {described}]"
        return f"[{name}, {described}]" if name else f"[{described}]"

    @property
    def described(self) -> str:
        """Its type and size, or where it is: the end of its placeholder."""
        url = (self.url or "").strip()
        if self.data is not None:
            return f"{self.media_type}, {size_of(len(self.data))}"
        if not is_data_url(url):
            return f"at {url[:_LONGEST]}"
        head, _, data = url.partition(",")
        media_type = head[5:].partition(";")[0] or "bytes"
        return f"{media_type[:_LONGEST]}, {size_of(len(data) * 3 // 4)}"

    @property
    def _name(self) -> str | None:
        return None

    @override
    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        # Reprs stand in logs and in the reports of tests.
        for name, value in super().__repr_args__():
            if isinstance(value, bytes):
                value = size_of(len(value))
            elif name == "url" and is_data_url(str(value)):
                value = f"data: {self.described}"
            yield name, value

    @classmethod
    def _named(cls, name: str) -> dict[str, str]:
        return {}

    @field_validator("url", mode="before")
    @classmethod
    def _no_path(cls, value: Any, info: ValidationInfo) -> Any:
        # Recorded parts stay readable: codecs send a description in place of a path.
        if isinstance(value, PathLike) or (info.mode == "python" and isinstance(value, str) and is_local_path(value)):
            shown = str(cast("PathLike[str] | str", value))[:_LONGEST]
            raise ValueError(
                f"url must be an https:// address or a data: URL, got the local path {shown!r}. "
                f"Read the file with {cls.__name__}.from_path({shown!r})."
            )
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.url is None) == (self.data is None):
            raise ValueError("give either url or data")
        if self.data is not None and not self.media_type:
            # Imported where it is needed, as few programs do.
            from rxloop.protocol.media_types import guess_media_type, sniff

            found = sniff(self.data) or guess_media_type(self._name)
            if found is None:
                raise ValueError("data needs a media_type, such as 'image/png'")
            object.__setattr__(self, "media_type", found)
        return self


fingerprint_slot = vars(_Media)["_hash"]
"""Holds the fingerprint of a part once it is computed."""


class ImagePart(_Media):
    """An image inside a message, by URL or by its bytes."""

    _kind: ClassVar[str] = "image"
    type: Literal["image"] = "image"


class FilePart(_Media):
    """A file inside a message, by URL or by its bytes."""

    _kind: ClassVar[str] = "file"
    type: Literal["file"] = "file"
    filename: str | None = None

    @classmethod
    def _named(cls, name: str) -> dict[str, str]:
        return {"filename": name}

    @property
    def _name(self) -> str | None:
        return self.filename


Media = Annotated[ImagePart | FilePart, Field(discriminator="type")]
Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
Content = str | list[Part]


def is_data_url(url: str) -> bool:
    """True if a URL contains its data."""
    return url.lstrip()[:5].lower() == "data:"


def is_local_path(url: str) -> bool:
    r"""True if a URL is a path of a file system, such as `./a.png`, `C:\a.png` or `file:///a.png`."""
    return re.match(_LOCAL, url.strip()) is not None


def with_placeholders(text: str, parts: Sequence[ImagePart | FilePart]) -> str:
    """Add to a text what stands for images and files that it does not name yet."""
    missing = [part.placeholder for part in parts if f"{part.described}]" not in text]
    return "\n".join([text, *missing] if text else missing)


def size_of(count: int) -> str:
    """Write a number of bytes for people."""
    if count < 1_000:
        return f"{count} bytes"
    return f"{count / 1_000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


class Citation(Wire):
    """Where words of an answer come from, as the provider says."""

    # As in a `ToolCall`.
    __slots__ = ("_settled",)

    url: str | None = None
    title: str | None = None
    """What the source is called: a page, or a document of the request."""
    text: str | None = None
    """The words of the source."""
    start: int | None = None
    """Where the words that rest on it begin in the answer's content, in characters."""
    end: int | None = None
    """Where they end."""
