"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("project", deadline=None)  # an example that was slow says the machine was busy
settings.load_profile("project")

# A shell that starts a run in the background has it ignore SIGINT, and so would every daemon of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
