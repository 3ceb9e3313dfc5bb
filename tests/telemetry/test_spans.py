"""Spans of requests: one inside its client's, with its phases inside; sent by OTLP when an address is set."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ssd_runtime.errors import ComputeError, ConfigError
from ssd_runtime.server.service import Service
from ssd_runtime.settings.schema import Settings
from ssd_runtime.telemetry.spans import Answered, Spans, open_spans
from ssd_runtime.testing.asgi import post, served
from ssd_runtime.testing.fake_engine import FakeEngine, Step
from ssd_runtime.types import FinishReason, Request

COMPLETIONS = "/v1/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass(frozen=True, slots=True)
class Recording:
    """Spans, and what becomes of them."""

    spans: Spans
    exporter: InMemorySpanExporter

    def finished(self) -> dict[str, ReadableSpan]:
        """The spans by name."""
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture(name="recording")
def a_recording() -> Recording:
    exporter = InMemorySpanExporter()
    return Recording(Spans("smollm2-135m", SimpleSpanProcessor(exporter)), exporter)


async def ask(recording: Recording, engine: FakeEngine, body: dict[str, Any], **headers: str) -> None:
    service = Service(Settings())
    service.spans = recording.spans
    async with served(engine, service) as (app, _):
        await post(app, COMPLETIONS, body, **headers)


async def test_a_request_is_a_span_with_what_was_asked_and_answered(recording: Recording) -> None:
    """Under vLLM's names; the engine's warm-up is none."""
    await ask(recording, FakeEngine(), {"prompt": "a b", "max_tokens": 9, "temperature": 0.5})
    span = recording.finished()["llm_request"]
    assert span.kind is SpanKind.SERVER
    assert span.attributes is not None
    told = dict(span.attributes)
    assert told["gen_ai.request.id"].startswith("cmpl-")  # type: ignore[union-attr]  # a text
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.temperature"]) == (9, 0.5)
    assert (told["gen_ai.usage.prompt_tokens"], told["gen_ai.usage.completion_tokens"]) == (3, 2)
    assert (told["gen_ai.latency.time_in_queue"], told["gen_ai.latency.e2e"]) == (0.25, 2.0)
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert told["ssd.speculation.rounds"] == 2
    assert (
        sum(name == "llm_request" for name in [s.name for s in recording.exporter.get_finished_spans()]) == 1
    )


async def test_its_phases_follow_each_other_inside_it(recording: Recording) -> None:
    """Waiting, prefill, decoding: as long as the engine says."""
    await ask(recording, FakeEngine(), {"prompt": "a b"})
    found = recording.finished()
    phases = [found[name] for name in ("queue", "prefill", "decode")]
    assert all(phase.parent == found["llm_request"].context for phase in phases)
    lengths = [(phase.end_time or 0) - (phase.start_time or 0) for phase in phases]
    assert lengths == [25e7, 25e7, 15e8]
    assert [phases[0].end_time, phases[1].end_time] == [phases[1].start_time, phases[2].start_time]


async def test_a_clients_trace_goes_on(recording: Recording) -> None:
    """W3C's `traceparent` names the span that ours belongs to."""
    await ask(recording, FakeEngine(), {"prompt": "a"}, traceparent=PARENT)
    span = recording.finished()["llm_request"]
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]


async def test_a_failed_request_is_a_failed_span(recording: Recording) -> None:
    """It has no phases, as nobody knows them."""

    def script(request: Request) -> Iterable[Step]:
        return [] if request.id == "warm-up" else [ComputeError("not finite")]

    await ask(recording, FakeEngine(script), {"prompt": "a"})
    assert set(recording.finished()) == {"llm_request"}
    assert recording.finished()["llm_request"].status.status_code is StatusCode.ERROR


def test_without_an_address_nothing_is_imported() -> None:
    """Nor made."""
    assert open_spans(None, "m") is None


def test_without_the_libraries_an_address_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"server\.otlp_endpoint: .* pip install 'ssd-runtime\[otel\]'"):
        open_spans("http://127.0.0.1:4318", "m")


def test_spans_reach_a_receiver() -> None:
    """OTLP over HTTP, at the path that receivers have for traces; all are sent before the end."""
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing is logged."""

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        spans = open_spans(f"http://127.0.0.1:{server.server_port}/", "m")
        assert spans is not None
        spans.record(Answered(Request("a", "hi"), 1, 2, FinishReason.STOP, 1), {})
        spans.close()
        server.shutdown()
        thread.join()
    [(path, sent)] = received
    assert path == "/v1/traces"
    assert sent.resource_spans[0].scope_spans[0].spans[0].name == "llm_request"
    assert "opentelemetry" in sys.modules
