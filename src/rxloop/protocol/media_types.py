"""Normalise media types, and guess them from file names and file signatures."""

from __future__ import annotations

import re
from typing import Literal

_ALIASES = {
    "application/acrobat": "application/pdf",
    "application/vnd.pdf": "application/pdf",
    "application/x-pdf": "application/pdf",
    "audio/m4a": "audio/mp4",
    "audio/mp3": "audio/mpeg",
    "audio/mpeg3": "audio/mpeg",
    "audio/mpg": "audio/mpeg",
    "audio/vnd.wave": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-aac": "audio/aac",
    "audio/x-aiff": "audio/aiff",
    "audio/x-flac": "audio/flac",
    "audio/x-m4a": "audio/mp4",
    "audio/x-mp3": "audio/mpeg",
    "audio/x-mpeg": "audio/mpeg",
    "audio/x-pn-wav": "audio/wav",
    "audio/x-wav": "audio/wav",
    "image/jfif": "image/jpeg",
    "image/jpe": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/pdf": "application/pdf",
    "image/pjpeg": "image/jpeg",
    "image/svg": "image/svg+xml",
    "image/tif": "image/tiff",
    "image/x-bmp": "image/bmp",
    "image/x-gif": "image/gif",
    "image/x-jpeg": "image/jpeg",
    "image/x-jpg": "image/jpeg",
    "image/x-ms-bmp": "image/bmp",
    "image/x-png": "image/png",
    "image/x-tiff": "image/tiff",
    "image/x-webp": "image/webp",
    "image/x-windows-bmp": "image/bmp",
    "text/pdf": "application/pdf",
    "text/x-pdf": "application/pdf",
}
_GENERIC = frozenset(
    f"{group}/{name}"
    for group in ("application", "binary")
    for name in ("octet-stream", "binary", "unknown", "download", "force-download", "x-download", "x-binary")
)
_TYPE = re.compile(r"[a-z0-9][\w.+-]{0,99}/[\w.+-]{1,100}", re.ASCII)
_TEXT = re.compile(
    r"text/.+|message/rfc822|image/svg\+xml|application/(.+\+(json|xml|yaml)"
    r"|(x-)?(json|jsonl|json5|jsonlines|ndjson|xml|yaml|toml|sql|csv|log|rtf|tex|latex|sh|shellscript|csh|javascript"
    r"|ecmascript|typescript|python|python-code|perl|ruby|httpd-php|php|powershell|graphql|subrip|ipynb\+json))"
)
_TEXT_NAMES = {
    "text/markdown": ("md", "markdown", "mdx"),
    "text/csv": ("csv",),
    "text/tab-separated-values": ("tsv", "tab"),
    "application/json": ("json", "ipynb", "geojson"),
    "application/x-ndjson": ("jsonl", "ndjson"),
    "application/xml": ("xml", "xsd", "xsl"),
    "application/yaml": ("yaml", "yml"),
    "application/toml": ("toml",),
    "application/sql": ("sql",),
    "text/html": ("html", "htm"),
    "text/css": ("css", "scss", "less"),
    "text/javascript": ("js", "mjs", "cjs", "jsx"),
    "text/x-typescript": ("ts", "tsx", "mts", "cts"),
    "text/x-python": ("py", "pyi"),
    "text/plain": (
        *(
            "txt",
            "text",
            "log",
            "ini",
            "cfg",
            "conf",
            "env",
            "properties",
            "rst",
            "adoc",
            "diff",
            "patch",
            "srt",
            "vtt",
        ),
        *("c", "h", "cc", "cpp", "hpp", "cxx", "cs", "go", "rs", "java", "kt", "swift", "scala", "rb", "php", "pl"),
        *("sh", "bash", "zsh", "fish", "ps1", "bat", "lua", "r", "jl", "hs", "ex", "exs", "erl", "clj", "dart", "vue"),
        *("svelte", "graphql", "gql", "proto", "tf", "gradle", "tex", "bib", "ics", "vcf", "eml", "lock", "makefile"),
        *("dockerfile", "gitignore", "editorconfig"),
    ),
}
_TYPE_OF_NAME = {end: kind for kind, ends in _TEXT_NAMES.items() for end in ends}
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"\xef\xbb\xbf%PDF-", "application/pdf"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"ID3\x02", "audio/mpeg"),
    (b"ID3\x03", "audio/mpeg"),
    (b"ID3\x04", "audio/mpeg"),
    (b"fLaC\x00", "audio/flac"),
    (b"OggS\x00", "audio/ogg"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"heis"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "image/heif"),
    **dict.fromkeys((b"avif", b"avis"), "image/avif"),
    **dict.fromkeys((b"M4A ", b"M4B "), "audio/mp4"),
    **dict.fromkeys((b"isom", b"iso2", b"mp41", b"mp42", b"avc1", b"dash", b"M4V "), "video/mp4"),
    b"qt  ": "video/quicktime",
}


def normalise_media_type(written: str | None) -> str | None:
    """Return the registered media type in lower case and without parameters, or None if the type is unspecific."""
    kind = (written or "").partition(";")[0].partition(",")[0].strip().strip("\"'").lower()
    if kind and "/" not in kind and "*" not in kind:
        # Some clients send a file name extension such as `png`.
        kind = guess_media_type(f"x.{kind.lstrip('.')}") or ""
    kind = _ALIASES.get(kind, kind)
    return kind if _TYPE.fullmatch(kind) and kind not in _GENERIC else None


def is_generic(written: str | None) -> bool:
    """Return True if a media type is missing or unspecific, such as `application/octet-stream` or `image/*`."""
    return normalise_media_type(written) is None


def guess_media_type(name: str | None) -> str | None:
    """Guess a media type from the extension of a file name or URL path."""
    if not name:
        return None
    _, dot, end = name.rpartition("/")[2].lower().rpartition(".")
    if end in _TYPE_OF_NAME and (dot or end in ("makefile", "dockerfile")):
        return _TYPE_OF_NAME[end]
    if not dot:
        return None
    # The first call reads the MIME tables of the operating system, so import it late.
    from mimetypes import guess_type

    kind = guess_type(f"x.{end}")[0]
    return normalise_media_type(kind)


def has_text_name(name: str | None) -> bool:
    """Return True if a file name has the extension of a text file, such as `a.csv` or `main.ts`."""
    return bool(name) and is_text(guess_media_type(name))


def is_text(media_type: str | None) -> bool:
    """Return True if files of a media type are text."""
    return media_type is not None and _TEXT.fullmatch(media_type) is not None


def get_media_kind(media_type: str | None) -> Literal["image", "pdf", "text", "audio", "video", "other"]:
    """Return the kind of a normalised media type."""
    group = (media_type or "").partition("/")[0]
    if group == "image" or group == "audio" or group == "video":
        return group
    if media_type == "application/pdf":
        return "pdf"
    return "text" if is_text(media_type) else "other"


def sniff(data: bytes) -> str | None:
    """Return the media type of a known file signature, or None."""
    for signature, kind in _SIGNATURES:
        if data.startswith(signature):
            return kind
    if data.startswith(b"RIFF"):
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12])
    if data.startswith(b"BM") and len(data) > 26 and int.from_bytes(data[14:18], "little") in (12, 40, 108, 124):
        return "image/bmp"
    return None
