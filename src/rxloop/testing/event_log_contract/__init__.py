"""Contract tests for event logs.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_log_passes_the_contract(check):
        await check(MyLog)

Each check is an async function that accepts a factory for new, empty logs, and raises `AssertionError` on failure. The
checks do not require pytest. Checks for folds and stored transient events are skipped if the log does not store them.

Logs with support for multiple processes must also pass `SHARED_CHECKS`. These accept a factory for two log objects with
shared storage:

    @pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.__name__)
    async def test_two_of_my_logs_pass_the_contract(check):
        store = new_store()
        await check(lambda: (MyLog(store), MyLog(store)))
"""

from __future__ import annotations

from rxloop.testing.event_log_contract import append, coordination, follow, records
from rxloop.testing.event_log_contract.toolkit import Check, MakeLog, MakeTwo, SharedCheck

__all__ = ["CHECKS", "SHARED_CHECKS", "Check", "MakeLog", "MakeTwo", "SharedCheck", "check_event_log"]

CHECKS: tuple[Check, ...] = (*append.CHECKS, *records.CHECKS, *follow.CHECKS, *coordination.CHECKS)
"""All contract checks for a single log."""
SHARED_CHECKS: tuple[SharedCheck, ...] = (*append.SHARED, *follow.SHARED, *coordination.SHARED)
"""All contract checks for two log objects with shared storage."""


async def check_event_log(make_log: MakeLog) -> None:
    """Run all checks sequentially.

    Args:
        make_log: Factory for new, empty logs.

    Raises:
        AssertionError: A check failed. Its name is added as a note.
    """
    for check in CHECKS:
        try:
            await check(make_log)
        except BaseException as error:
            error.add_note(f"event log contract: {check.__name__}")
            raise
