"""What is logged goes to stderr, as lines for people or as JSON; the libraries' own logging too."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import structlog
from structlog.typing import Processor

from ssd_runtime.settings.schema import LogSettings


def configure_logging(settings: LogSettings) -> None:
    """Set up structlog, and Python's logging beside it, for this process."""
    _configure_structlog(settings)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(settings.format)],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(_level(settings), logging.WARNING), force=True)


def provide_logging(settings: LogSettings) -> None:
    """Set up structlog where the program has not: by itself it prints everything, and to stdout."""
    if not structlog.is_configured():
        _configure_structlog(settings)


def _configure_structlog(settings: LogSettings) -> None:
    structlog.configure(
        processors=[*_shared(), *_rendering(settings.format)],
        wrapper_class=structlog.make_filtering_bound_logger(_level(settings)),
        logger_factory=lambda *names: structlog.PrintLogger(sys.stderr),
    )


def _level(settings: LogSettings) -> int:
    return logging.getLevelNamesMapping()[settings.level.upper()]


def _shared() -> Sequence[Processor]:
    return (
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )


def _rendering(form: str) -> Sequence[Processor]:
    if form == "json":
        return (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    # the default shows the values of local variables, which are prompts, and takes seconds
    plain = structlog.dev.plain_traceback
    return (structlog.dev.ConsoleRenderer(colors=is_terminal, exception_formatter=plain),)
