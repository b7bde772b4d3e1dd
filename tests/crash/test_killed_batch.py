"""Batches killed by SIGKILL at random moments and repeated by the same command."""

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

# Releases are tested with RXLOOP_DOCUMENTS=2000, which takes minutes.
DOCUMENTS = int(os.environ.get("RXLOOP_DOCUMENTS", "200"))
KILLS = 3


class KillingServer:
    """Model rule that counts requests per document and kills its client at the given count."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.kill_at = inf
        self.process: subprocess.Popen[bytes] | None = None

    def reply(self, conversation: Conversation) -> Reply:
        self.requests[conversation.question] += 1
        # A late request of the previous process may reach the number first, so each later request kills as well.
        if self.requests.total() >= self.kill_at and self.process is not None:
            self.process.kill()
        return Reply(text=answer(conversation.question))


def answer(document: str) -> str:
    number = int(re.findall(r"\d+", document)[0])
    return f"The square of {number} is {number * number}."


@pytest.mark.timeout(600)
@pytest.mark.parametrize("concurrency", [20 if DOCUMENTS < 2_000 else 50])
def test_killed_batch_answers_each_document_once_and_repeats_few_requests(tmp_path: Path, concurrency: int) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    server = KillingServer()
    model = OfflineModel(rules=[server.reply], delay=0.002)
    documents = [f"Square {number}, please." for number in range(DOCUMENTS)]
    (tmp_path / "in.jsonl").write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    command = ("map", "in.jsonl", "--out", "out.jsonl", "--concurrency", str(concurrency))
    kill_points = sorted(random.Random(seed).sample(range(DOCUMENTS // 10, DOCUMENTS), KILLS))
    with serve_offline(model) as url:
        workspace = Workspace(tmp_path, url)
        for kill_point in kill_points:
            server.kill_at = max(kill_point, server.requests.total() + 1)
            server.process = workspace.process(*command)
            _, output = server.process.communicate(timeout=300)
            assert server.process.returncode == -9, output.decode()
        server.kill_at = inf
        process = workspace.process(*command)
        _, output = process.communicate(timeout=500)
        assert process.returncode == 0, output.decode()

    answers = [orjson.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert Counter(line["key"] for line in answers) == Counter(documents)
    assert [line for line in answers if line["output"] != answer(line["key"])] == []
    assert set(server.requests) == set(documents)
    repeated = server.requests.total() - DOCUMENTS
    print(f"{DOCUMENTS} documents, killed at {kill_points} requests: {repeated} repeated")
    assert repeated <= KILLS * concurrency
    assert max(server.requests.values()) <= 1 + KILLS
