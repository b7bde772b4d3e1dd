"""What passes through the seams."""

from rxloop.pipeline.records import RunRecord
from rxloop.protocol.messages import ErrorInfo

MARK = "PLANTED"


def test_a_record_in_a_log_of_the_program_shows_nothing_of_what_stays_on_the_server() -> None:
    record = RunRecord(
        "run", "c", "helper", "failed", 1, 9, 0, 0,
        owner=MARK, metadata={"tenant": MARK}, error=ErrorInfo(code="server", message=MARK),
    )  # fmt: skip

    assert MARK not in repr(record)
    assert len({record, record}) == 1
