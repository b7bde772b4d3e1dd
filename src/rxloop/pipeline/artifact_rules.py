"""Rules of every artifact store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import normalize

from rxloop.errors import ArtifactError, ArtifactExists, UnknownArtifact
from rxloop.protocol.json_data import replace_surrogates


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """What a store knows of one version of an artifact without its content."""

    artifact_id: str
    version: int
    """Counts how often the artifact was begun, from 1."""
    name: str
    """What people call it."""
    media_type: str
    created: int
    """When the first version was begun, in milliseconds since 1970."""
    updated: int
    """Milliseconds since 1970."""
    size: int = 0
    """Bytes."""
    chunks: int = 0
    """How many chunks it has: the index of the next one."""
    complete: bool = False
    """Whether the last chunk is there."""


@dataclass(frozen=True, slots=True)
class ArtifactChunk:
    """A chunk as it stands in the store."""

    record: ArtifactRecord
    """The version that it belongs to, as it is now."""
    index: int
    """Its place in that version, from 0."""
    offset: int
    """The bytes before it."""


MOST_BYTES = 120
"""Of an id; file systems take 255, and others write something before it or behind it."""


def safe_id(artifact_id: str) -> str:
    """Return an id in its normal form: the same letters in different code points are one artifact.

    Raises:
        ArtifactError: It cannot be the name of a file.
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
    """Refuse a range that is none.

    Raises:
        ArtifactError: A number is negative.
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ArtifactError(f"offset={offset!r} and limit={limit!r} must not be negative")


def exists(artifact_id: str) -> ArtifactExists:
    """Make the error of an artifact that is there already."""
    return ArtifactExists(
        f"there is an artifact {artifact_id!r} already: append to it, take another id, or create it with override=True "
        "to begin its next version"
    )


def unknown(artifact_id: str, version: int | None = None) -> UnknownArtifact:
    """Make the error of an artifact, or a version of one, that is not there."""
    which = "" if version is None else f" in version {version}"
    return UnknownArtifact(f"this conversation has no artifact {artifact_id!r}{which}: list those that it has")


def version_of(versions: Sequence[ArtifactRecord], artifact_id: str, version: int | None) -> ArtifactRecord:
    """Find a version of an artifact, the newest where none is named.

    Raises:
        UnknownArtifact: There is none.
    """
    found = [record for record in versions if version in (None, record.version)]
    if not found:
        raise unknown(artifact_id, version if versions else None)
    return found[-1]


def next_version(versions: Sequence[ArtifactRecord], first: ArtifactRecord, override: bool) -> ArtifactRecord:
    """Number an artifact that is to begin: `first` as it is, or as the next of the versions that there are.

    Raises:
        ArtifactExists: There are some, and no `override`.
    """
    if not versions:
        return first
    if not override:
        raise exists(first.artifact_id)
    return replace(first, version=len(versions) + 1, created=versions[0].created)


def check_open(record: ArtifactRecord, version: int | None) -> None:
    """See that the newest version of an artifact takes another chunk.

    Args:
        record: The newest version.
        version: The version that is meant; None for the newest.

    Raises:
        ArtifactError: It does not.
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
    """Make the error of a key that comes a second time with something else to write."""
    return ArtifactError(
        f"this call wrote something else to the artifact {artifact_id!r} when it was made before: what it wrote then "
        "stands, and nothing was written now"
    )
