"""What holds for all tests."""

import signal

from hypothesis import settings

# In this order: services asks postgres.
pytest_plugins = ["postgres", "services"]

# A job in the background of a shell ignores Ctrl-C, and so would the commands that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes says more about the machine than about the code.
settings.register_profile("rxloop", deadline=None)
settings.load_profile("rxloop")
