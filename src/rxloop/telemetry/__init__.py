"""OpenTelemetry spans and metrics, created from events. Use `op.spans` to subscribe them to runs."""
