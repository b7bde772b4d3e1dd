"""Text that replaces images and files that a vendor does not accept."""

from __future__ import annotations

from rxloop.protocol.media import ResolvedMedia, resolve
from rxloop.protocol.messages import FilePart, ImagePart, Message
from rxloop.protocol.parts import add_placeholders

IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
"""Image types that every vision model accepts."""


def file_text(media: ResolvedMedia) -> str:
    """Format a text file with its name."""
    name = "" if media.name is None else ' name="{}"'.format(media.name.replace('"', "'"))
    return f'<file{name} type="{media.media_type}">\n{media.text}\n</file>'


def describe(part: ImagePart | FilePart, media: ResolvedMedia) -> str:
    """Describe an omitted part in a notice. The reason is added if the part is damaged."""
    return part.placeholder if media.problem is None else f"{part.placeholder} ({media.problem})"


def add_change(changes: list[str], part: ImagePart | FilePart, media: ResolvedMedia) -> None:
    """Add to the changes of a message how a part is sent differently from its declaration."""
    if media.change is not None:
        changes.append(f"{part.placeholder} {media.change}")


def text_with_files(message: Message) -> tuple[str, list[str]]:
    """Convert a message to text, for a vendor that accepts only text in this role.

    Returns:
        The text with the contents of text files and placeholders for other parts, and descriptions of those other
        parts for a notice.
    """
    if isinstance(message.content, str):
        return message.content, []
    texts: list[str] = []
    others: list[ImagePart | FilePart] = []
    left_out: list[str] = []
    for part in message.media:
        media = resolve(part)
        if media.kind == "text" and media.text is not None:
            texts.append(file_text(media))
        else:
            others.append(part)
            left_out.append(describe(part, media))
    text = add_placeholders(message.text, others)
    return "\n".join(filter(None, (text, *texts))), left_out


def answer_text(message: Message) -> str:
    """Return the text of an assistant message and the contents of its text files.

    Placeholders of other files are returned only if the message has no text.
    """
    if isinstance(message.content, str):
        return message.content
    files = [file_text(media) for part in message.media if (media := resolve(part)).text and media.kind == "text"]
    return "\n".join(filter(None, (message.text, *files))) or text_with_files(message)[0]
