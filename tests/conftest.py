"""What holds for all tests."""

import os
import signal
from pathlib import Path

from hypothesis import settings

# In this order: services asks postgres.
pytest_plugins = ["support.timeout_plugin", "support.postgres.server", "support.processes.services"]

# Each client of httpx would read the certificates of all authorities, which takes 40 ms; those in a folder are read
# when they are needed. No test speaks to a stranger: one that wants TLS has an authority of its own.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# A job in the background of a shell ignores Ctrl-C, and so would the commands that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes says more about the machine than about the code.
settings.register_profile("rxloop", deadline=None)
settings.load_profile("rxloop")
