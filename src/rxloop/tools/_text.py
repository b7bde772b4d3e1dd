"""Decodes ranges of texts."""

from __future__ import annotations


def text_of(data: bytes, *, first: bool, whole: bool) -> tuple[int, str] | None:
    """Decode a range of a text that may begin and end inside a character, which is then left out.

    Args:
        data: The range.
        first: It begins where the text begins.
        whole: It ends where the text ends.

    Returns:
        How many bytes are left out at the beginning, and the text; None if it is not text.
    """
    begin = 0
    # A character of UTF-8 has up to three bytes after its first.
    while not first and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    for end in range(len(data), max(begin, len(data) - 4) - 1, -1):
        try:
            text = data[begin:end].decode()
        except UnicodeDecodeError:
            if whole:
                break
            continue
        return None if "\0" in text else (begin, text)
    return None
