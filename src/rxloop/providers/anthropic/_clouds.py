"""Claude in the clouds of Google and Amazon: the same protocol at other addresses, with other fields in the body."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlsplit, urlunsplit

from rxloop.providers.anthropic._encode import Host
from rxloop.providers.anthropic._wire import MessagesWire


class VertexWire(MessagesWire):
    """The wire of one model of Claude on Vertex AI, whose `base` ends in `/publishers/anthropic`."""

    # Holding an answer to a schema is off there until the policy of an organization lets it.
    host = Host(version="vertex-2023-10-16", named=False, fetches=False, late_system=False, schemas=False)

    def url(self, base: str) -> str:
        """The address of a request."""
        return _below(
            base, f"models/{quote(self.model, safe='@')}:{'streamRawPredict' if self.stream else 'rawPredict'}"
        )


class BedrockWire(MessagesWire):
    """The wire of one model of Claude on Bedrock, by its id or by that of an inference profile."""

    host = Host(
        version="bedrock-2023-05-31",
        named=False,
        says_stream=False,
        betas_in_body=True,
        fetches=False,
        late_system=False,
    )

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of all requests; what is accepted is said of the documents in a stream, and not of its frames."""
        return {**super().headers, "accept": "application/json"}

    def url(self, base: str) -> str:
        """The address of a request."""
        action = "invoke-with-response-stream" if self.stream else "invoke"
        return _below(base, f"model/{quote(self.model, safe=':@')}/{action}")


def _below(base: str, path: str) -> str:
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{path}"))
