"""What every event log must do, as checks for logs of your own.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_log_keeps_the_contract(check):
        await check(MyLog)

Each check is an async function that makes new, empty logs with the function it is given, and raises an
`AssertionError` if a log does something else. None needs pytest. Checks of folds and of stored transient events skip a
log that does not store them.

A log that several processes may use at once has to keep `SHARED_CHECKS` too, which are given a function that makes two
log objects over one store:

    @pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.__name__)
    async def test_two_of_my_logs_keep_the_contract(check):
        store = new_store()
        await check(lambda: (MyLog(store), MyLog(store)))
"""

from __future__ import annotations

from rxloop.testing.event_log_contract import append, coordination, follow, records
from rxloop.testing.event_log_contract.toolkit import Check, MakeLog, MakeTwo, SharedCheck

__all__ = ["CHECKS", "SHARED_CHECKS", "Check", "MakeLog", "MakeTwo", "SharedCheck", "check_event_log"]

CHECKS: tuple[Check, ...] = (*append.CHECKS, *records.CHECKS, *follow.CHECKS, *coordination.CHECKS)
"""All checks of the contract of one log object."""
SHARED_CHECKS: tuple[SharedCheck, ...] = (*append.SHARED, *follow.SHARED, *coordination.SHARED)
"""All checks of the contract between two log objects over one store."""


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
