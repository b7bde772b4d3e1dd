"""Workers that are killed and frozen while they carry out the runs of an agent, and a judge of what comes of it."""

from rxloop.testing.chaos.chaos import Chaos
from rxloop.testing.chaos.report import Report

__all__ = ["Chaos", "Report"]
