"""Parts of messages: texts, images and files; and where the words of an answer come from."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from rxloop.protocol.wire import Wire

_LONGEST = 200
"""Characters of an address or a name in a placeholder."""


class TextPart(Wire):
    """A piece of text inside a message of several parts."""

    type: Literal["text"] = "text"
    text: str


class _Media(Wire):
    _kind: ClassVar[str]
    url: str | None = None
    """Where the bytes are, if they are not in `data`."""
    data: bytes | None = None
    """The bytes themselves; base64 in JSON."""
    media_type: str | None = None
    """The MIME type, needed with `data`."""

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
        from mimetypes import guess_type

        file = Path(path)
        media_type = media_type or guess_type(file.name)[0]
        if media_type is None:
            raise ValueError(f"the name {file.name!r} does not tell a media type: pass media_type=")
        return cls(data=file.read_bytes(), media_type=media_type, **cls._named(file.name))

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
        url = self.url or ""
        if self.data is not None:
            return f"{self.media_type}, {size_of(len(self.data))}"
        if not url.startswith("data:"):
            return f"at {url[:_LONGEST]}"
        head, _, data = url.partition(",")
        media_type = head.removeprefix("data:").partition(";")[0] or "bytes"
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
            elif name == "url" and str(value).startswith("data:"):
                value = f"data: {self.described}"
            yield name, value

    @classmethod
    def _named(cls, name: str) -> dict[str, str]:
        return {}

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.url is None) == (self.data is None):
            raise ValueError("give either url or data")
        if self.data is not None and not self.media_type:
            raise ValueError("data needs a media_type, such as 'image/png'")
        return self


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
