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


MOST_BYTES = 120
"""Maximum length of an ID in bytes. File systems allow 255 bytes, which leaves space for prefixes and suffixes."""


def safe_id(artifact_id: str) -> str:
    """Return an ID in Unicode normal form, so that equivalent spellings are equal.

    Raises:
        ArtifactError: If the ID is not a valid file name.
    """
    if not isinstance(artifact_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArtifactError(f"the id of an artifact is a text, such as 'report.md', and not {artifact_id!r}")
    normal = normalize("NFC", artifact_id)
    shown = repr(replace_surrogates(artifact_id[:MOST_BYTES]))
    if not normal.isprintable() or any(mark in normal for mark in "/\\:"):
        raise ArtifactError(f"{shown} cannot be the id of an artifact: use a plain name, such as 'report.md'")
    if not normal.strip(" .") or normal[0] in " ." or normal[-1] in " .":
        raise ArtifactError(f"{shown} cannot be the id of an artifact: no dot or space may stand at either end")
    if len(normal.encode()) > MOST_BYTES:
        raise ArtifactError(f"{shown}... is too long for the id of an artifact: {MOST_BYTES} bytes are allowed")
    return normal


def check_range(offset: int, limit: int | None) -> None:
    """Check a byte range.

    Raises:
        ArtifactError: If a number is negative.
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ArtifactError(f"offset={offset!r} and limit={limit!r} must not be negative")


def exists(artifact_id: str) -> ArtifactExists:
    """Create an error for an existing artifact."""
    return ArtifactExists(
        f"there is an artifact {artifact_id!r} already: append to it, take another id, or create it with override=True "
        "to begin its next version"
    )


def unknown(artifact_id: str, version: int | None = None) -> UnknownArtifact:
    """Create an error for a missing artifact or version."""
    which = "" if version is None else f" in version {version}"
    return UnknownArtifact(f"this conversation has no artifact {artifact_id!r}{which}: list those that it has")


def version_of(versions: Sequence[ArtifactRecord], artifact_id: str, version: int | None) -> ArtifactRecord:
    """Return a version of an artifact, or the latest version if `version` is None.

    Raises:
        UnknownArtifact: If the version does not exist.
    """
    found = [record for record in versions if version in (None, record.version)]
    if not found:
        raise unknown(artifact_id, version if versions else None)
    return found[-1]


def next_version(versions: Sequence[ArtifactRecord], first: ArtifactRecord, override: bool) -> ArtifactRecord:
    """Return the record for a new version. `first` is returned unchanged if there are no versions.

    Raises:
        ArtifactExists: If the artifact exists and `override` is False.
    """
    if not versions:
        return first
    if not override:
        raise exists(first.artifact_id)
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
            f"version {version} of the artifact {record.artifact_id!r} takes no more: version {record.version} was "
            "begun since"
        )
    if record.complete:
        raise ArtifactError(
            f"the artifact {record.artifact_id!r} is complete: create it with override=True to begin its next version"
        )


def other_write(artifact_id: str) -> ArtifactError:
    """Create an error for a write key that was used with different data."""
    return ArtifactError(
        f"this call wrote something else to the artifact {artifact_id!r} when it was made before: what it wrote then "
        "stands, and nothing was written now"
    )
