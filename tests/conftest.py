"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("project", deadline=None)  # an example that was slow says the machine was busy
settings.load_profile("project")
