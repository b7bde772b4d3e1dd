"""AG-UI: the door for user interfaces that speak the Agent User Interaction protocol, version 1.0."""

try:
    import ag_ui.core as _  # noqa: F401
except ModuleNotFoundError as error:
    from rxloop.errors import ConfigurationError

    raise ConfigurationError(
        "agui() needs ag-ui-protocol, which is not installed: pip install 'rxloop[agui]'"
    ) from error
