"""What `rxloop doctor` finds."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Grade(Enum):
    """What a finding means."""

    good = "good"
    note = "note"
    """Worth knowing: nothing is broken."""
    bad = "bad"
    """Something that is needed does not work."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    grade: Grade
    says: str
    hint: str = ""
    """What to do."""


Findings = Iterable[Finding]
