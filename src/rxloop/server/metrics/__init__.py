"""Adapter that serves metrics of a runtime to Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute
from typing_extensions import Unpack, override

from rxloop.errors import ConfigurationError
from rxloop.operators.views.spans import view_operations
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, AdapterOptions, Call, Endpoint
from rxloop.server.core.errors import Refused, write_problem
from rxloop.support.threads import run_in_thread
from rxloop.telemetry.operations import OperationFold

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class MetricsAdapter(Adapter):
    """Adapter for metrics, created by `metrics`."""

    def __init__(self, runtime: Runtime, registry: CollectorRegistry | None, options: AdapterOptions) -> None:
        """Initialize the adapter for `metrics`."""
        super().__init__(runtime, **options)
        try:
            from prometheus_client import CollectorRegistry, exposition
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "metrics need prometheus-client, which is not installed: pip install 'rxloop[metrics]'"
            ) from error
        # Imported lazily because the extra is optional.
        from rxloop.server.metrics.figures import RuntimeFigures
        from rxloop.telemetry.measurements import make_prometheus_recorder

        self._registry = CollectorRegistry() if registry is None else registry
        self._choose_encoder = exposition.choose_encoder
        self._figures = RuntimeFigures(runtime)
        try:
            recorder = make_prometheus_recorder(self._registry)
        except ValueError as error:
            raise ConfigurationError(
                "registry must be a new one for each runtime; it already has the metrics"
            ) from error
        self._registry.register(self._figures)
        runtime.add_views([view_operations(lambda emit: OperationFold(recorder))])

    @override
    def endpoints(self) -> Sequence[Endpoint | BaseRoute]:
        # The path depends on how the adapter is mounted.
        return [Endpoint("GET", "/{path:path}", self._serve)]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return write_problem(refused)

    async def _serve(self, call: Call[Any, Any]) -> Response:
        if not call.principal.scopes & {"metrics", "others"}:
            raise Refused(403, "forbidden", "metrics require the metrics scope")
        await self._figures.refresh()
        try:
            encode, media_type = self._choose_encoder(", ".join(call.request.headers.getlist("accept")))
        except (TypeError, ValueError):
            # prometheus_client does not validate the version of the format.
            encode, media_type = self._choose_encoder("")
        body = await run_in_thread(lambda: encode(self._registry))
        return Response(body, headers={"content-type": media_type, "cache-control": "no-store"})


def metrics(
    runtime: Runtime, *, registry: CollectorRegistry | None = None, **options: Unpack[AdapterOptions]
) -> MetricsAdapter:
    """Create an adapter that serves metrics to Prometheus, usually mounted at `/metrics`.

    The metrics are histograms of the runs that this process starts after this call, with the names and buckets of the
    GenAI semantic conventions, and figures of the runtime, such as the number of runs by state. They are written in the
    text format or as OpenMetrics, depending on the `Accept` header. Requires the extra `metrics`.

    The metrics include the runs of all clients. With `auth`, principals therefore need the scope `metrics` or `others`.

    Args:
        runtime: Runtime whose runs are measured.
        registry: Registry of `prometheus_client` for the metrics, such as its global `REGISTRY`. None creates one.
        options: Common adapter options; see `AdapterOptions`.

    Raises:
        ConfigurationError: If the package prometheus-client is not installed, an argument is invalid, or the registry
            already contains the metrics of a runtime.

    Example:
        >>> app = Starlette(routes=[Route("/metrics", metrics(runtime)), Mount("/", api(runtime))])
    """
    return MetricsAdapter(runtime, registry, options)
