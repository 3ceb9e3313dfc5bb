"""OpenTelemetry spans of requests, for whoever configures a receiver. Nobody else needs its libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssd_runtime.errors import ConfigError
from ssd_runtime.types import FinishReason, Output, Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

SPAN = "llm_request"
SEND_SECONDS = 5
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that ended. started, ended: nanoseconds since 1970. ends: the last piece of each choice."""

    request: Request
    started: int
    ended: int
    reason: FinishReason
    completion_tokens: int
    ends: tuple[Output, ...] = ()


class Spans:
    """Makes a span of each request, with its waiting, prefill and decoding inside.

    Names of attributes are vLLM's and OpenTelemetry's, where they have one.
    """

    def __init__(self, model: str, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._model = model
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "ssd_runtime"}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ssd_runtime")

    def record(self, answered: Answered, headers: Mapping[str, str]) -> None:
        """The span of a request, inside its client's where `headers` name one (`traceparent`)."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        span = self._tracer.start_span(
            SPAN,
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            attributes=self._attributes(answered),
            start_time=answered.started,
        )
        if answered.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            span.set_status(Status(StatusCode.ERROR, answered.reason.value))
        context = set_span_in_context(span)
        for name, (start, end) in _phases(answered).items():
            self._tracer.start_span(name, context=context, start_time=start).end(end)
        span.end(answered.ended)

    def close(self) -> None:
        """Send what is left; takes some seconds where nobody answers."""
        self._provider.shutdown()

    def _attributes(self, answered: Answered) -> dict[str, Any]:
        params, ends = answered.request.params, answered.ends
        found: dict[str, Any] = {
            "gen_ai.request.id": answered.request.id,
            "gen_ai.request.model": self._model,
            "gen_ai.request.n": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.response.finish_reasons": [answered.reason.value],
            "gen_ai.usage.prompt_tokens": max((len(end.prompt_token_ids) for end in ends), default=None),
            "gen_ai.usage.completion_tokens": answered.completion_tokens,
        }
        if ends and ends[0].timing is not None and ends[0].speculation is not None:
            timing, speculation = ends[0].timing, ends[0].speculation
            found["gen_ai.latency.time_in_queue"] = timing.queue_seconds
            found["gen_ai.latency.time_to_first_token"] = timing.first_token_seconds
            found["gen_ai.latency.time_in_model_decode"] = timing.decode_seconds
            found["gen_ai.latency.e2e"] = timing.total_seconds
            found["ssd.speculation.mode"] = str(speculation.mode)
            for name in ("rounds", "hits", "misses", "draft_tokens", "accepted_tokens"):
                found[f"ssd.speculation.{name}"] = getattr(speculation, name)
        return {name: value for name, value in found.items() if value is not None}


def open_spans(endpoint: str | None, model: str) -> Spans | None:
    """What sends spans to `endpoint`, None where there is none. Raises `ConfigError` without libraries."""
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"server.otlp_endpoint: needs OpenTelemetry, which is not installed ({error}); "
            "pip install 'ssd-runtime[otel]', or leave it out"
        ) from None
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=SEND_SECONDS)
    return Spans(model, BatchSpanProcessor(exporter))


def _phases(answered: Answered) -> Mapping[str, tuple[int, int]]:
    """Where the time of the first choice went; its last piece came when the request ended, or before."""
    timing = answered.ends[0].timing if answered.ends else None
    if timing is None:
        return {}
    end = answered.ended
    submitted = end - _nanoseconds(timing.total_seconds)
    scheduled = submitted + _nanoseconds(timing.queue_seconds)
    first = submitted + _nanoseconds(timing.first_token_seconds)
    return {"queue": (submitted, scheduled), "prefill": (scheduled, first), "decode": (first, end)}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
