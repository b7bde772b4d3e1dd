"""A batch that is killed, for real, at random moments, and is carried out again by the same command."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from math import inf
from pathlib import Path

import orjson
import pytest

from rxloop.demo.conversation import Conversation, Reply
from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace
from support.offline_server import serve_offline

# More of them take minutes: RXLOOP_DOCUMENTS=2000 is what a release is measured by.
DOCUMENTS = int(os.environ.get("RXLOOP_DOCUMENTS", "200"))
KILLS = 3


class Server:
    """Answers each document, counts how often it is asked for which, and kills the process at a number of requests."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.at = inf
        self.process: subprocess.Popen[bytes] | None = None

    def reply(self, conversation: Conversation) -> Reply:
        self.asked[conversation.question] += 1
        # A late request of the process before may come to the number, and this process has to be killed all the same.
        if self.asked.total() >= self.at and self.process is not None:
            self.process.kill()
        return Reply(text=answer(conversation.question))


def answer(document: str) -> str:
    number = int(re.findall(r"\d+", document)[0])
    return f"The square of {number} is {number * number}."


@pytest.mark.timeout(600)
@pytest.mark.parametrize("concurrency", [20 if DOCUMENTS < 2_000 else 50])
def test_each_document_is_answered_once_and_few_are_asked_again(tmp_path: Path, concurrency: int) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    server = Server()
    model = OfflineModel(rules=[server.reply], delay=0.002)
    documents = [f"Square {number}, please." for number in range(DOCUMENTS)]
    (tmp_path / "in.jsonl").write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    command = ("map", "in.jsonl", "--out", "out.jsonl", "--concurrency", str(concurrency))
    # So that each of them is killed in the middle of its work, and not at its beginning.
    moments = sorted(random.Random(seed).sample(range(DOCUMENTS // 10, DOCUMENTS), KILLS))
    with serve_offline(model) as url:
        place = Workspace(tmp_path, url)
        for moment in moments:
            server.at = max(moment, server.asked.total() + 1)
            server.process = place.process(*command)
            _, said = server.process.communicate(timeout=300)
            assert server.process.returncode == -9, said.decode()
        server.at = inf
        last = place.process(*command)
        _, said = last.communicate(timeout=500)
        assert last.returncode == 0, said.decode()

    answers = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert Counter(line["key"] for line in answers) == Counter(documents)
    assert [line for line in answers if line["output"] != answer(line["key"])] == []
    assert set(server.asked) == set(documents)
    again = server.asked.total() - DOCUMENTS
    print(f"{DOCUMENTS} documents, killed at {moments} requests: {again} asked again")
    assert again <= KILLS * concurrency
    assert max(server.asked.values()) <= 1 + KILLS
