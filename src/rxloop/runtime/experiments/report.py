"""What an experiment came to, and how it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import ValidationError
from typing_extensions import override

from rxloop.errors import ConfigurationError
from rxloop.runtime.experiments.page import page
from rxloop.runtime.experiments.table import report_table, report_text
from rxloop.runtime.experiments.trials import Trials

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable


class Report(Trials):
    """What an experiment came to: its trials, their statistics, and how they are written.

    Printed it is a table; `rich.print` colours it.
    """

    def to_json(self) -> bytes:
        """Write it as JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read what `to_json` has written.

        Raises:
            ConfigurationError: It is something else.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ConfigurationError(f"this is not a report of an experiment: {error.errors()[0]['msg']}") from error

    def to_html(self) -> str:
        """Write one page that opens in any browser and loads nothing. What a model wrote is text there, no markup."""
        return page(self)

    @override
    def __str__(self) -> str:
        return report_text(self)

    def __rich__(self) -> ConsoleRenderable:
        return report_table(self)
