"""Validation of values against JSON Schemas, within a number of steps."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Any

import orjson

from rxloop.support.json_schema.helpers import Schema, StepBudget
from rxloop.support.json_schema.value_check import TooComplex, ValueCheck

_INLINE_STEPS = 2_000
"""Maximum number of steps on the event loop. Longer validations run in a thread."""

_MAX_RESULTS = 256
"""Maximum number of stored results of long validations."""

_TOO_COMPLEX = "the value cannot be validated, because its schema is nested too deep or takes too long"


def find_mismatch(value: Any, schema: Schema, budget: StepBudget | None = None) -> str | None:
    """Return the reason why a value does not match a schema.

    These keywords are validated: `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `$ref`, `properties`, `required`,
    `additionalProperties`, `items`, `pattern`, and limits of numbers and lengths. Other keywords are ignored, because
    the caller parses the value again with the original type. `oneOf` is the same as `anyOf`.

    On the event loop, use `find_mismatch_off_loop` for values from outside. It stores the results of long validations,
    so that this function returns them immediately.

    Args:
        value: JSON value.
        schema: Valid JSON Schema; see `find_schema_error`.
        budget: Remaining steps of the message. None for a message with a single value.

    Returns:
        A clause such as `amount must be a JSON integer, got 'ten'`, or None if the value matches.
    """
    budget = budget or StepBudget()
    result = _check_inline(value, schema, budget) or _get_result(_make_key(value, schema), budget)
    if result is None:
        result = _check(value, schema, budget.remaining)
        _store_result(_make_key(value, schema), result)
    return _spend(result, budget)


async def find_mismatch_off_loop(value: Any, schema: Schema, budget: StepBudget | None = None) -> str | None:
    """Return the same as `find_mismatch`, without blocking the event loop. Long validations run in a thread."""
    budget = budget or StepBudget()
    result = _check_inline(value, schema, budget)
    if result is None:
        # Imported lazily, because most validations are short.
        from rxloop.support.threads import compute

        steps = budget.remaining

        def check() -> _Result:
            key = _make_key(value, schema)
            known = _get_result(key, budget)
            if known is None:
                known = _check(value, schema, steps)
                _store_result(key, known)
            return known

        result = await compute(check)
    return _spend(result, budget)


def accepts(value: Any, schema: Schema) -> bool:
    """Return True if a schema accepts a small value, such as None. Return False if validation would take too long."""
    return _check(value, schema, _INLINE_STEPS)[0] is None


_Result = tuple[str | None, int]
"""Mismatch and number of steps."""


def _check(value: Any, schema: Schema, steps: int) -> _Result:
    check = ValueCheck(schema, steps)
    try:
        mismatch = check.visit(value, schema, None, 0)
    except TooComplex:
        return _TOO_COMPLEX, steps
    return None if mismatch is None else mismatch(), steps - check.remaining


def _check_inline(value: Any, schema: Schema, budget: StepBudget) -> _Result | None:
    """Return the result of a short validation. Return None for a long one."""
    if budget.remaining <= _INLINE_STEPS:
        return _check(value, schema, budget.remaining)
    result = _check(value, schema, _INLINE_STEPS)
    return None if result[0] is _TOO_COMPLEX else result


def _spend(result: _Result, budget: StepBudget) -> str | None:
    mismatch, steps = result
    budget.remaining = max(budget.remaining - steps, 0)
    return mismatch


_results: OrderedDict[bytes, _Result] = OrderedDict()
"""Results of long validations, because several processes and attempts validate the same values."""


def _make_key(value: Any, schema: Schema) -> bytes | None:
    """Return a digest of a value and a schema. Return None if they are not JSON."""
    try:
        return sha256(orjson.dumps([schema, value])).digest()
    except TypeError:
        return None


def _get_result(key: bytes | None, budget: StepBudget) -> _Result | None:
    result = None if key is None else _results.get(key)
    if result is None:
        return None
    if result[0] is _TOO_COMPLEX:
        # With more steps, the validation might succeed.
        return (_TOO_COMPLEX, budget.remaining) if budget.remaining <= result[1] else None
    return result if result[1] <= budget.remaining else (_TOO_COMPLEX, budget.remaining)


def _store_result(key: bytes | None, result: _Result) -> None:
    if key is not None:
        _results[key] = result
        if len(_results) > _MAX_RESULTS:
            _results.popitem(last=False)
