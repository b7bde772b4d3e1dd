"""AG-UI 1.0 adapter, for user interfaces that use the Agent User Interaction protocol."""

try:
    import ag_ui.core as _  # noqa: F401
except ModuleNotFoundError as error:
    from rxloop.errors import ConfigurationError

    raise ConfigurationError(
        "agui() requires the ag-ui-protocol package. Install it with: pip install 'rxloop[agui]'"
    ) from error
