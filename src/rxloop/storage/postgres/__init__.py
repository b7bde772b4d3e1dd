"""What the log and the stores in Postgres are made of: `postgres.py` and the files beside it are their faces."""

from rxloop.errors import ConfigurationError

try:
    import psycopg as psycopg
except ModuleNotFoundError as error:
    raise ConfigurationError(
        "Postgres needs psycopg, which is not installed: pip install 'rxloop[postgres]'"
    ) from error
