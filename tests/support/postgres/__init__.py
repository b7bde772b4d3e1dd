"""Postgres servers, logs and queues."""
