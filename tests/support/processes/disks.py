"""A small disk, which can be full."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path


@cache
def possible() -> bool:
    """Whether there may be small disks."""
    try:
        with small_disk(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def small_disk(megabytes: int) -> Generator[SmallDisk]:
    """An empty disk, for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="rxloop-disk-") as name:
        # Others are to reach what is in it.
        Path(name).chmod(0o755)
        place = Path(name) / "disk"
        place.mkdir()
        options = f"size={megabytes}m,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True, capture_output=True)
        try:
            (place / "folder").mkdir(mode=0o700)
            yield SmallDisk(place)
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)


class SmallDisk:
    """A disk, with an empty folder for whoever needs one."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "folder"
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Leave no room on it."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(b"\0" * 4096) == 4096:
                pass

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()
