"""Experiments: cases that are asked of variants of an agent, scored, reported and compared."""

from __future__ import annotations

from rxloop.evals import score

__all__ = ["score"]
