"""Hostile responses end in a typed error that names the exceeded bound.

They need little memory and do not block the event loop.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rxloop import errors
from support.vendors import hostile_vendor

MEMORY = 64
"""Maximum additional memory in megabytes."""
HELD = 250
"""Maximum blocking time of the event loop in milliseconds. Less than 50 on an idle machine."""
BOUND = {
    "endless line": "document",
    "endless event": "document",
    "endless comments in one event": "document",
    "endless empty events": "answer",
    "endless short texts": "answer",
    "endless text": "text",
    "endless reasoning": "text",
    "endless arguments": "arguments",
    "endless thoughts": "text",
    "stop tokens in one event": "text",
    "thoughts in one event": "text",
    "gzip bomb": "document",
    "gzip bomb, not streamed": "document",
    "deflate bomb": "document",
    "raw deflate bomb": "document",
    "a million calls": "calls",
    "a million calls at once": "document",
    "a call of many megabytes": "arguments",
    "deep JSON": "depth",
    "deep lists": "depth",
    "deep JSON without an end": "depth",
    "rather deep JSON": "depth",
    "deep arguments": "depth",
    "deep JSON, not streamed": "depth",
    "many small lists": "values",
    "many numbers": "values",
    "many strings": "values",
    "many bad numbers": "values",
    "a whole answer of many megabytes": "document",
    "a page without an end": "document",
    "endless objects in an array": "answer",
    "endless small objects in an array": "answer",
    "deep objects in an array": "depth",
    "too long a message of AWS": "document",
    "endless messages of AWS": "answer",
    "deep JSON of AWS": "depth",
    "many small lists of AWS": "values",
}
COMMENTS = (
    "endless comments",
    "endless empty comments",
    "endless blank lines",
    "gzip bomb of comments",
    "endless text in an array",
    "endless strings in an array",
    "endless escapes in an array",
    "endless numbers in an array",
    "endless spaces in an array",
    "endless empty messages of AWS",
)
TIME = ("one comment a moment", "one byte a moment", "one byte a moment, not streamed", "an interim answer a moment")


def run_attack(transport: str, pattern: str = "") -> dict[str, dict[str, Any]]:
    """Run an attack in a separate process, and measure its memory."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(hostile_vendor.__file__)), transport, pattern]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert not done.returncode, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["kind"]: each for each in found}


@cache
def measure_best(transport: str) -> dict[str, dict[str, Any]]:
    """Return the best of five measurements per attack, because another process may delay a single one."""
    found = run_attack(transport)
    for _ in range(4):
        if late := [kind for kind, each in found.items() if each["milliseconds"] >= HELD]:
            again = run_attack(transport, f"^({'|'.join(re.escape(kind) for kind in late)})$")
            found |= {kind: min(found[kind], each, key=lambda it: it["milliseconds"]) for kind, each in again.items()}
    return found


@pytest.fixture(params=["httpx", "aiohttp"])
def results(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of the memory of a process is known on Linux alone")
    return measure_best(request.param)


def test_every_hostile_response_ends_in_a_provider_error(results: dict[str, dict[str, Any]]) -> None:
    assert set(results) == set(hostile_vendor.ATTACKS)
    for each in results.values():
        assert issubclass(getattr(errors, each["error"], object), errors.ProviderError), each


def test_hostile_responses_need_little_memory_and_time(results: dict[str, dict[str, Any]]) -> None:
    for each in results.values():
        assert each["megabytes"] < MEMORY, each
        assert each["seconds"] < hostile_vendor.TIMEOUTS.total, each


def test_hostile_responses_do_not_block_the_event_loop(results: dict[str, dict[str, Any]]) -> None:
    for each in results.values():
        assert each["milliseconds"] < HELD, each


@pytest.mark.parametrize("kind", ["endless headers", "an endless header", "an endless status"])
def test_endless_response_head_is_rejected_by_both_transports(
    results: dict[str, dict[str, Any]], kind: str, request: pytest.FixtureRequest
) -> None:
    # httpx has its own limit.
    said = {"httpx": "sent an oversized line", "aiohttp": "bounds=Bounds(head="}[
        request.node.callspec.params["results"]
    ]
    assert said in results[kind]["message"], results[kind]


def test_error_names_the_bound_and_how_to_raise_it(results: dict[str, dict[str, Any]]) -> None:
    for kind, bound in BOUND.items():
        assert f"bounds=Bounds({bound}=" in results[kind]["message"], results[kind]
    for kind in TIME:
        assert "timeout=Timeouts(event=" in results[kind]["message"], results[kind]


@pytest.mark.parametrize("encoding", ["br", "zstd"])
def test_unsupported_content_encoding_is_rejected(results: dict[str, dict[str, Any]], encoding: str) -> None:
    assert f"content-encoding must be gzip or deflate, got '{encoding}'" in results[f"{encoding} bomb"]["message"]


@pytest.mark.parametrize("kind", ["endless interim answers", *COMMENTS])
def test_lines_without_an_event_do_not_reset_the_timeout(results: dict[str, dict[str, Any]], kind: str) -> None:
    # The first exceeded bound depends on the speed of the server.
    told = results[kind]["message"]
    assert "bounds=Bounds(" in told or "timeout=Timeouts(event=" in told, results[kind]


def test_repeated_brackets_around_an_array_are_rejected(results: dict[str, dict[str, Any]]) -> None:
    assert "is not JSON" in results["endless brackets in an array"]["message"]
