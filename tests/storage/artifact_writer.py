"""Program that appends to the artifact `a.txt`: `artifact_writer.py KIND FOLDER NAME COUNT`.

The key of each chunk follows from name and number, so a second process with the same name writes no duplicates.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rxloop.storage import FolderArtifacts, SqliteArtifacts


async def main(kind: str, folder: Path, name: str, count: int) -> None:
    store = SqliteArtifacts(folder / "app.db") if kind == "sqlite" else FolderArtifacts(folder / "files")
    for n in range(count):
        data = f"{name}{n}\n".encode()
        chunk = await store.append("c", "a.txt", data, version=None, last=False, key=f"{name}/{n}", now=n)
        print(chunk.index, flush=True)
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
