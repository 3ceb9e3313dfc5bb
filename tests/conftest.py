"""What holds for every test."""

from __future__ import annotations

import signal

import structlog
from hypothesis import settings

settings.register_profile("project", deadline=None)  # an example that was slow says the machine was busy
settings.load_profile("project")

# A shell that starts a run in the background has it ignore SIGINT, and so would every daemon of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """What a test logs does not depend on the engines of those before it."""
    structlog.reset_defaults()
