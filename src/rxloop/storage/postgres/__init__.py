"""Internals of the Postgres event log and artifact store."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rxloop.errors import ConfigurationError


class _LazyModule(ModuleType):
    """Module of psycopg, imported on first use, because `from rxloop import *` must not require it."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = import_module(self.__name__)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "Postgres support requires psycopg. Install it with: pip install 'rxloop[postgres]'"
            ) from error
        # Later uses do not call this method.
        vars(self).update(vars(module))
        return getattr(module, name)


if TYPE_CHECKING:
    import psycopg as psycopg
    from psycopg import conninfo as conninfo
    from psycopg import sql as sql
else:
    psycopg = _LazyModule("psycopg")
    conninfo = _LazyModule("psycopg.conninfo")
    sql = _LazyModule("psycopg.sql")
