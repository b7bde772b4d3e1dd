from rxloop.pipeline.records import RunRecord
from rxloop.protocol.messages import ErrorInfo

MARK = "PLANTED"


def test_repr_of_a_record_hides_private_fields() -> None:
    record = RunRecord(
        "run", "c", "helper", "failed", 1, 9, 0, 0,
        owner=MARK, metadata={"tenant": MARK}, error=ErrorInfo(code="server", message=MARK),
    )  # fmt: skip

    assert MARK not in repr(record)
    assert len({record, record}) == 1
