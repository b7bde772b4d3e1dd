"""Plugins and environment of all tests."""

import gc
import os
import signal
from pathlib import Path

from hypothesis import settings

# The order matters, because services uses postgres.
pytest_plugins = ["support.timeout_plugin", "support.postgres.server", "support.processes.services", "support.browser"]

# Without this, each httpx client would load all CA certificates, which takes 40 ms. Certificates in a folder are
# loaded on demand. Tests only connect to local servers, and TLS tests use their own CA.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# Background jobs of a shell ignore Ctrl-C, and commands started by tests would inherit this.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The duration of examples depends on the machine.
settings.register_profile("rxloop", deadline=None)
settings.load_profile("rxloop")


def pytest_collection_finish() -> None:
    """Exclude the collected tests from later garbage collections, which would take longer than most tests."""
    gc.collect()
    gc.freeze()
