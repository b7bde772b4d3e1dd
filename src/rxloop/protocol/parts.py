"""Message parts and citations."""

import re
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import override

from rxloop.protocol.model import Wire

_MAX_LENGTH = 200
"""Maximum length in characters of a URL or file name in a placeholder."""
_LOCAL_PATH = r"(?i)file:|~?[/\\]|~$|\.{1,2}[/\\]|[a-z]:[/\\]"
"""Pattern for local paths. It is not compiled on import, because most programs use no images or files."""


class TextPart(Wire):
    """Text message part."""

    type: Literal["text"] = "text"
    text: str


class _Media(Wire):
    # Cache the fingerprint, so that the bytes are only hashed once. The slot is ignored when comparing parts.
    __slots__ = ("_hash",)

    _kind: ClassVar[str]
    url: str | None = None
    """HTTP URL or data URL of the bytes. Local paths are not allowed. Exactly one of `url` and `data` must be set."""
    data: bytes | None = None
    """Content bytes (base64 in JSON)."""
    media_type: str | None = None
    """MIME type. Required with `data` unless it can be detected from the bytes or the file name."""

    @classmethod
    def from_path(cls, path: str | PathLike[str], *, media_type: str | None = None) -> Self:
        """Create a part from the contents of a file.

        Args:
            path: Path of the file, which is read immediately.
            media_type: MIME type. By default, it is detected from the contents or the file name.

        Raises:
            ValueError: The MIME type cannot be detected.
        """
        # Imported on first use, because most programs need no media types.
        from rxloop.protocol.media_types import guess_media_type, sniff

        file = Path(path)
        data = file.read_bytes()
        media_type = media_type or sniff(data) or guess_media_type(file.name)
        if media_type is None:
            raise ValueError(f"media_type is required, because {file.name!r} has no known file type")
        return cls(data=data, media_type=media_type, **cls._name_fields(file.name))

    @property
    def placeholder(self) -> str:
        """Replacement text, such as `[image/png, 4.0 kB]` or `[report.pdf at https://example.org/r]`."""
        name, description = (self._name or "")[:_MAX_LENGTH], self.description
        if description.startswith("at "):
            return f"[{name or self._kind} {description}]"
        return f"[{name}, {description}]" if name else f"[{description}]"

    @property
    def description(self) -> str:
        """Media type and size, or the URL. Used in `placeholder`."""
        url = (self.url or "").strip()
        if self.data is not None:
            return f"{self.media_type}, {format_size(len(self.data))}"
        if not is_data_url(url):
            return f"at {url[:_MAX_LENGTH]}"
        head, _, data = url.partition(",")
        media_type = head[5:].partition(";")[0] or "bytes"
        return f"{media_type[:_MAX_LENGTH]}, {format_size(len(data) * 3 // 4)}"

    @property
    def _name(self) -> str | None:
        return None

    @override
    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        # Logs and test reports contain reprs, so keep them short.
        for name, value in super().__repr_args__():
            if isinstance(value, bytes):
                value = format_size(len(value))
            elif name == "url" and is_data_url(str(value)):
                value = f"data: {self.description}"
            yield name, value

    @classmethod
    def _name_fields(cls, name: str) -> dict[str, str]:
        return {}

    @field_validator("url", mode="before")
    @classmethod
    def _reject_local_path(cls, value: Any, info: ValidationInfo) -> Any:
        # Accept recorded parts with local paths. Codecs replace such paths by a description.
        if isinstance(value, PathLike) or (info.mode == "python" and isinstance(value, str) and is_local_path(value)):
            path = str(cast("PathLike[str] | str", value))[:_MAX_LENGTH]
            raise ValueError(
                f"url must be an https:// address or a data: URL, got the local path {path!r}. "
                f"Read the file with {cls.__name__}.from_path({path!r})."
            )
        return value

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.url is None) == (self.data is None):
            raise ValueError("exactly one of url and data must be set")
        if self.data is not None and not self.media_type:
            # Imported on first use, because most programs need no media types.
            from rxloop.protocol.media_types import guess_media_type, sniff

            media_type = sniff(self.data) or guess_media_type(self._name)
            if media_type is None:
                raise ValueError("media_type is required with data; pass a media type such as 'image/png'")
            object.__setattr__(self, "media_type", media_type)
        return self


fingerprint_slot = vars(_Media)["_hash"]
"""Fingerprint cache slot."""


class ImagePart(_Media):
    """Image message part."""

    _kind: ClassVar[str] = "image"
    type: Literal["image"] = "image"


class FilePart(_Media):
    """File message part."""

    _kind: ClassVar[str] = "file"
    type: Literal["file"] = "file"
    filename: str | None = None

    @classmethod
    def _name_fields(cls, name: str) -> dict[str, str]:
        return {"filename": name}

    @property
    def _name(self) -> str | None:
        return self.filename


Media = Annotated[ImagePart | FilePart, Field(discriminator="type")]
Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
Content = str | list[Part]


def is_data_url(url: str) -> bool:
    """Return True if a URL contains its data."""
    return url.lstrip()[:5].lower() == "data:"


def is_local_path(url: str) -> bool:
    r"""Return True if a URL is a local path, such as `./a.png`, `C:\a.png` or `file:///a.png`."""
    return re.match(_LOCAL_PATH, url.strip()) is not None


def add_placeholders(text: str, parts: Sequence[ImagePart | FilePart]) -> str:
    """Append missing placeholders for images and files."""
    missing = [part.placeholder for part in parts if f"{part.description}]" not in text]
    return "\n".join([text, *missing] if text else missing)


def format_size(count: int) -> str:
    """Format a number of bytes for people."""
    if count < 1_000:
        return f"{count} bytes"
    return f"{count / 1_000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


class Citation(Wire):
    """Citation reported by the provider."""

    # As in `ToolCall`.
    __slots__ = ("_normalised",)

    url: str | None = None
    title: str | None = None
    """Page or document title."""
    text: str | None = None
    """Quoted text from the source."""
    start: int | None = None
    """Start of the supported text in the answer's content, in characters."""
    end: int | None = None
    """End of the supported text in the answer's content, in characters."""
