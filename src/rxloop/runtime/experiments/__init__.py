"""Evaluation as a fold over runs: cases that are asked of variants of an agent, scored, reported and compared."""

from __future__ import annotations

from rxloop.runtime.experiments import score

__all__ = ["score"]
