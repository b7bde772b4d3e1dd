"""When a model call that failed is sent again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rxloop.errors import ProviderError, ProviderTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often, and after what wait, a request is sent again that failed before the first event of its answer.

    Only failures that may pass by themselves count: too many requests, a vendor in trouble, a connection that was not
    made or broke. A timeout does not: the caller has waited long enough. Once anything of the answer has been shown,
    nothing is sent again.
    """

    attempts: int = 3
    """Requests in all; 1 means none is sent again."""
    first: float = 0.5
    """Seconds before the second request; doubled before each further one."""
    longest: float = 60.0
    """Seconds to wait at most. If the vendor asks for more, the call fails at once and the error says how long."""
    jitter: float = 0.25
    """The part of a wait that chance may take off, so that clients do not come back all at once."""

    def wait(self, error: ProviderError, attempt: int) -> float | None:
        """The seconds to wait after that failure.

        Args:
            error: What went wrong.
            attempt: How many requests have been sent, from 1.

        Returns:
            None if the request is not to be sent again.
        """
        if attempt >= self.attempts or not error.retryable or isinstance(error, ProviderTimeout):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.longest else None
        wait = min(self.longest, self.first * 2 ** (attempt - 1))
        return wait * (1 - self.jitter * random.random())
