"""What every event log must do, as checks for logs of your own.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_log_keeps_the_contract(check):
        await check(MyLog)

Each check is an async function that makes new, empty logs with the function it is given, and raises an
`AssertionError` if a log does something else. None needs pytest.
"""

from __future__ import annotations

from rxloop.testing.event_log_contract import _following, _writing
from rxloop.testing.event_log_contract._tools import Check, MakeLog

__all__ = ["CHECKS", "Check", "MakeLog", "check_event_log"]

CHECKS: tuple[Check, ...] = (*_writing.CHECKS, *_following.CHECKS)
"""All checks of the contract."""


async def check_event_log(make_log: MakeLog) -> None:
    """Run all checks, one after the other.

    Args:
        make_log: Makes a new, empty log at each call.

    Raises:
        AssertionError: A check failed; a note on it names the check.
    """
    for check in CHECKS:
        try:
            await check(make_log)
        except BaseException as error:
            error.add_note(f"event log contract: {check.__name__}")
            raise
