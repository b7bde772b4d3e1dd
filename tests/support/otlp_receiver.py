"""OTLP server on a real port that keeps the received spans."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """OTLP server that keeps the received spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.scopes: set[str] = set()
        self.services: set[str | None] = set()
        self.status = 200
        """Status of the responses."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                for resource in request.resource_spans:
                    receiver.services.add(find_attribute(resource.resource, "service.name"))
                    for scope in resource.scope_spans:
                        receiver.scopes.add(scope.scope.name)
                        receiver.spans += scope.spans
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def receive_spans() -> Generator[Receiver]:
    """Start a server, and stop it at the end."""
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


def find_attribute(span: Span | Resource, name: str) -> str | None:
    """Return a string attribute of a span or a resource, or None."""
    return next((each.value.string_value for each in span.attributes if each.key == name), None)
