from __future__ import annotations

import pytest

from rxloop.providers.bounds import OutOfBounds
from rxloop.providers.transport._head import Head

FINAL = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"


def fed(*pieces: bytes, most: int = 100) -> Head:
    head = Head(most)
    for piece in pieces:
        head.feed(piece)
    return head


def test_a_head_is_over_with_the_blank_line_of_the_final_answer() -> None:
    assert not fed(FINAL[:-1]).over
    assert fed(FINAL).over
    assert fed(*(bytes([byte]) for byte in FINAL)).over
    assert fed(b"HTTP/1.1 101 Switching\r\n\r\n").over


def test_interim_answers_come_before_it() -> None:
    assert not fed(INTERIM).over
    assert fed(INTERIM + FINAL + b"more than a hundred bytes of a body" * 10).over


@pytest.mark.parametrize("pieces", [[INTERIM] * 3, [FINAL[:-2]] + [b"a: b\r\n"] * 20, [b"HTTP/1.1 200 " + b"x" * 100]])
def test_what_is_longer_is_out_of_bounds(pieces: list[bytes]) -> None:
    with pytest.raises(OutOfBounds, match=r"head of more than 100 bytes.*Bounds\(head="):
        fed(*pieces)
