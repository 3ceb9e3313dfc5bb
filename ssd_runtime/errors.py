"""The errors that users of ssd_runtime can meet, as one tree.

    SSDError
    ├── ConfigError            wrong configuration or command line (exit status 2)
    │   └── NotAvailableError  a valid name whose part does not exist here
    ├── ModelError             a model could not be found, read or used
    ├── RequestError           one request is wrong; the engine goes on (HTTP 400)
    │   └── ContextLengthError the request does not fit the context
    ├── PluginError            a plugin broke its contract
    └── EngineError            the engine cannot serve
        ├── EngineClosedError  it was closed, or is closing
        ├── QueueFullError     too many requests are waiting (HTTP 429)
        └── ComputeError       a row's result is unusable (for example not finite)

A message says what went wrong, where, what was got, what was expected, and what to do.
"""

from __future__ import annotations


class SSDError(Exception):
    """Base of every error that ssd_runtime raises on purpose.

    `type` is the machine-readable name in JSON answers.
    """

    type = "internal_error"


class ConfigError(SSDError):
    """The configuration, the environment or the command line is wrong."""

    type = "config_error"


class NotAvailableError(ConfigError):
    """A configured name is well formed, but nothing here provides it."""


class ModelError(SSDError):
    """A model could not be found, read, converted or used."""

    type = "model_error"


class RequestError(SSDError):
    """One request is wrong. `param` names the field, dotted where it is nested."""

    type = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """Prompt and requested completion do not fit the context."""

    type = "context_length_exceeded"


class PluginError(SSDError):
    """A plugin broke the contract of its kind."""

    type = "plugin_error"


class EngineError(SSDError):
    """The engine cannot serve this request."""

    type = "engine_error"


class EngineClosedError(EngineError):
    """The engine is closed, or is closing and admits nothing."""

    type = "engine_closed"


class QueueFullError(EngineError):
    """Too many requests are waiting already; try again later."""

    type = "queue_full"


class ComputeError(EngineError):
    """The model's numbers for one row are unusable; other rows are unaffected."""

    type = "compute_error"
