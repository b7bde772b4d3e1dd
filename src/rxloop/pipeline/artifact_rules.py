"""Validation rules for artifact stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import normalize

from rxloop.errors import ArtifactError, ArtifactExists, UnknownArtifact
from rxloop.protocol.json_data import replace_surrogates


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """Metadata of an artifact version."""

    artifact_id: str
    version: int
    """Version number, starting from 1."""
    name: str
    """Display name."""
    media_type: str
    created: int
    """Creation time of the first version, in milliseconds since 1970."""
    updated: int
    """Time of the last write, in milliseconds since 1970."""
    size: int = 0
    """Size in bytes."""
    chunks: int = 0
    """Number of chunks."""
    complete: bool = False
    """True if the last chunk was written."""


@dataclass(frozen=True, slots=True)
class ArtifactChunk:
    """Position of a stored chunk."""

    record: ArtifactRecord
    """Metadata of the version after the write."""
    index: int
    """Zero-based chunk index."""
    offset: int
    """Start offset in bytes."""


MAX_ID_BYTES = 120
"""Maximum length of an ID in bytes. File systems allow 255 bytes, which leaves space for prefixes and suffixes."""
_MAX_NAME = 200
"""Maximum length of a display name or media type in characters."""


def normalize_id(artifact_id: str) -> str:
    """Return an ID in Unicode normal form, so that equivalent spellings are equal.

    Raises:
        ArtifactError: If the ID is not a valid file name.
    """
    if not isinstance(artifact_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArtifactError(f"artifact_id must be a string such as 'report.md', got {artifact_id!r}")
    normal = normalize("NFC", artifact_id)
    display_id = repr(replace_surrogates(artifact_id[:MAX_ID_BYTES]))
    if not normal.isprintable() or any(mark in normal for mark in "/\\:"):
        raise ArtifactError(f"artifact_id must be a plain file name such as 'report.md', got {display_id}")
    if not normal.strip(" .") or normal[0] in " ." or normal[-1] in " .":
        raise ArtifactError(f"artifact_id must not start or end with a dot or space, got {display_id}")
    if len(normal.encode()) > MAX_ID_BYTES:
        raise ArtifactError(f"artifact_id must have at most {MAX_ID_BYTES} bytes, got {display_id}...")
    return normal


def check_range(offset: int, limit: int | None) -> None:
    """Check a byte range.

    Raises:
        ArtifactError: If a number is negative.
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ArtifactError(f"offset={offset!r} and limit={limit!r} must not be negative")


def make_artifact_exists_error(artifact_id: str) -> ArtifactExists:
    """Create an error for an existing artifact."""
    return ArtifactExists(
        f"artifact {artifact_id!r} already exists; append to it, choose another id, or create a new version with "
        "override=True"
    )


def make_unknown_artifact_error(artifact_id: str, version: int | None = None) -> UnknownArtifact:
    """Create an error for a missing artifact or version."""
    detail = "" if version is None else f" in version {version}"
    return UnknownArtifact(f"this conversation has no artifact {artifact_id!r}{detail}; list its artifacts first")


def find_version(versions: Sequence[ArtifactRecord], artifact_id: str, version: int | None) -> ArtifactRecord:
    """Return a version of an artifact, or the latest version if `version` is None.

    Raises:
        UnknownArtifact: If the version does not exist.
    """
    matching = [record for record in versions if version in (None, record.version)]
    if not matching:
        raise make_unknown_artifact_error(artifact_id, version if versions else None)
    return matching[-1]


def next_version(versions: Sequence[ArtifactRecord], first: ArtifactRecord, override: bool) -> ArtifactRecord:
    """Return the record for a new version. `first` is returned unchanged if there are no versions.

    Raises:
        ArtifactExists: If the artifact exists and `override` is False.
    """
    if not versions:
        return first
    if not override:
        raise make_artifact_exists_error(first.artifact_id)
    return replace(first, version=len(versions) + 1, created=versions[0].created)


def check_open(record: ArtifactRecord, version: int | None) -> None:
    """Check that the latest version accepts another chunk.

    Args:
        record: Latest version.
        version: Expected version, or None for the latest.

    Raises:
        ArtifactError: If the version is complete, or is not the latest.
    """
    if version not in (None, record.version):
        raise ArtifactError(
            f"cannot append to version {version} of artifact {record.artifact_id!r}, because version {record.version} "
            "exists"
        )
    if record.complete:
        raise ArtifactError(f"artifact {record.artifact_id!r} is complete; create a new version with override=True")


def make_key_conflict_error(artifact_id: str) -> ArtifactError:
    """Create an error for a write key that was used with different data."""
    return ArtifactError(
        f"an earlier attempt of this call wrote different data to artifact {artifact_id!r}; the earlier data is kept"
    )


def check_line(text: str, field: str) -> str:
    """Return a display string after checking that it is a single line of limited length.

    Raises:
        ArtifactError: If the string is invalid.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_NAME or not text.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArtifactError(f"{field} must be a single line of up to {_MAX_NAME} characters, got {text!r:.100}")
    return text
