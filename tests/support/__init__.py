"""Helper modules for tests, listed in tests/README.md."""
