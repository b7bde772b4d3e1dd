"""Text replacements for unsupported images and files."""

from __future__ import annotations

from rxloop.protocol.media import ResolvedMedia, resolve
from rxloop.protocol.messages import FilePart, ImagePart, Message
from rxloop.protocol.parts import add_placeholders

IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
"""Image types that every vision model accepts."""


def format_file(media: ResolvedMedia) -> str:
    """Format a named text file."""
    name = "" if media.name is None else ' name="{}"'.format(media.name.replace('"', "'"))
    return f'<file{name} type="{media.media_type}">\n{media.text}\n</file>'


def describe_omitted(part: ImagePart | FilePart, media: ResolvedMedia) -> str:
    """Describe an omitted part for a notice, including any damage."""
    return part.placeholder if media.problem is None else f"{part.placeholder} ({media.problem})"


def add_change(changes: list[str], part: ImagePart | FilePart, media: ResolvedMedia) -> None:
    """Append a description of the part to `changes` if it is not sent as declared."""
    if media.change is not None:
        changes.append(f"{part.placeholder} {media.change}")


def flatten_message(message: Message) -> tuple[str, list[str]]:
    """Convert a message to plain text, for roles without media support.

    Returns:
        Text including text files and placeholders, and descriptions for omitted parts.
    """
    if isinstance(message.content, str):
        return message.content, []
    texts: list[str] = []
    others: list[ImagePart | FilePart] = []
    omitted: list[str] = []
    for part in message.media:
        media = resolve(part)
        if media.kind == "text" and media.text is not None:
            texts.append(format_file(media))
        else:
            others.append(part)
            omitted.append(describe_omitted(part, media))
    text = add_placeholders(message.text, others)
    return "\n".join(filter(None, (text, *texts))), omitted


def flatten_answer(message: Message) -> str:
    """Return the assistant's text including text files.

    Placeholders for other files are only used if there is no text.
    """
    if isinstance(message.content, str):
        return message.content
    files = [format_file(media) for part in message.media if (media := resolve(part)).text and media.kind == "text"]
    return "\n".join(filter(None, (message.text, *files))) or flatten_message(message)[0]
