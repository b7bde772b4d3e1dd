"""Small disks that can be filled."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path


@cache
def is_supported() -> bool:
    """Return True if small disks can be mounted."""
    try:
        with small_disk(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def small_disk(megabytes: int) -> Generator[SmallDisk]:
    """Mount an empty disk for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="rxloop-disk-") as name:
        # Other users must be able to reach the mount point.
        Path(name).chmod(0o755)
        mount_point = Path(name) / "disk"
        mount_point.mkdir()
        options = f"size={megabytes}m,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", mount_point], check=True, capture_output=True)
        try:
            (mount_point / "folder").mkdir(mode=0o700)
            yield SmallDisk(mount_point)
        finally:
            subprocess.run(["umount", "--lazy", mount_point], check=True)


class SmallDisk:
    """Small disk with an empty folder."""

    def __init__(self, mount_point: Path) -> None:
        self.folder = mount_point / "folder"
        self._ballast = mount_point / "ballast"

    def fill(self) -> None:
        """Fill the disk."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(b"\0" * 4096) == 4096:
                pass

    def free(self) -> None:
        """Release the space allocated by `fill`."""
        self._ballast.unlink()
