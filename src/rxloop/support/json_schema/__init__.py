"""JSON Schemas: validation of values and schemas within limits, regular expressions, and helpers."""

from __future__ import annotations

from rxloop.support.json_schema.definitions import MAX_SCHEMA_STEPS as MAX_SCHEMA_STEPS
from rxloop.support.json_schema.definitions import find_schema_error as find_schema_error
from rxloop.support.json_schema.helpers import MAX_STEPS as MAX_STEPS
from rxloop.support.json_schema.helpers import TYPES as TYPES
from rxloop.support.json_schema.helpers import VALUE_ERROR as VALUE_ERROR
from rxloop.support.json_schema.helpers import Schema as Schema
from rxloop.support.json_schema.helpers import StepBudget as StepBudget
from rxloop.support.json_schema.helpers import close_objects as close_objects
from rxloop.support.json_schema.helpers import explain_schema_error as explain_schema_error
from rxloop.support.json_schema.helpers import map_subschemas as map_subschemas
from rxloop.support.json_schema.helpers import quote_value as quote_value
from rxloop.support.json_schema.helpers import resolve_reference as resolve_reference
from rxloop.support.json_schema.patterns import is_valid_pattern as is_valid_pattern
from rxloop.support.json_schema.validation import accepts as accepts
from rxloop.support.json_schema.validation import find_mismatch as find_mismatch
from rxloop.support.json_schema.validation import find_mismatch_off_loop as find_mismatch_off_loop
