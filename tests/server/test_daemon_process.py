"""The daemon as a process: OpenAI's client, signals, a kill, a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, BadRequestError, InternalServerError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from ssd_runtime.stats import RoundTotals
from ssd_runtime.telemetry.trace import read_trace
from ssd_runtime.testing.daemon import COMMAND, QUIET, Daemon, running, toy

LONG = {"prompt": "tell me", "max_tokens": 500, "ignore_eos": True, "stream": True}
QUESTION = "Why is the sky blue?"


class TestSignals:
    def test_a_stop_lets_requests_finish_and_ends_with_0(self) -> None:
        """The stream that runs is whole; the log says that nothing was cancelled."""
        with toy() as daemon:
            response = daemon.post(LONG).getresponse()
            first = response.read(20)
            daemon.process.send_signal(signal.SIGTERM)
            assert (first + response.read()).endswith(b"data: [DONE]\n\n")
            assert daemon.logged("stopped")["cancelled"] == 0
            assert daemon.process.wait(20) == 0

    def test_a_stop_that_may_not_wait_cancels_and_says_how_many(self) -> None:
        """The client gets an error as its last event."""
        with toy("server.drain_seconds=0") as daemon:
            responses = [daemon.post(LONG).getresponse() for _ in range(2)]
            daemon.process.send_signal(signal.SIGINT)
            assert daemon.logged("stopped")["cancelled"] == 2
            assert all(b"the server is stopping" in response.read() for response in responses)
            assert daemon.process.wait(20) == 130

    def test_a_second_signal_ends_at_once(self) -> None:
        """Though a request still runs and there would be time."""
        with toy() as daemon:
            daemon.post({**LONG, "max_tokens": 500}).getresponse()
            daemon.process.send_signal(signal.SIGTERM)
            daemon.logged("stopping")
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.logged("ended at once")["active"] == 1
            assert daemon.process.wait(20) == 128 + signal.SIGTERM

    def test_a_daemon_that_was_killed_leaves_nothing_that_hinders_the_next(self) -> None:
        """The same port is free at once, though a client was connected."""
        with toy() as daemon:
            daemon.post(LONG).getresponse()
            daemon.process.send_signal(signal.SIGKILL)
            daemon.process.wait()
            with toy(f"server.port={daemon.port}") as again:
                assert again.port == daemon.port
                assert again.get("/ready")[0] == 200

    def test_a_port_that_is_taken_is_a_wrong_configuration(self) -> None:
        """Said before anything is loaded."""
        with toy() as daemon:
            command = [sys.executable, *COMMAND, "--set", f"server.port={daemon.port}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        place = f"127.0.0.1, port {daemon.port}"
        assert done.stderr.startswith(f"ssd-run: server: cannot listen on {place}: Address already in use; ")


class TestClient:
    def test_openais_client_raises_its_own_errors(self) -> None:
        """Status, code and field arrive where the client looks for them."""
        with toy() as daemon:
            client = client_of(daemon)
            with pytest.raises(BadRequestError) as caught:
                client.completions.create(model="smollm2-135m", prompt="a", temperature=2.5)
            assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
            with pytest.raises(APIStatusError) as missing:
                client.completions.create(model="gpt-4o", prompt="a")
            assert (missing.value.status_code, missing.value.code) == (404, "model_not_found")
            client.close()

    def test_openais_client_meets_a_deadline_as_a_server_error(self) -> None:
        """504, so that it may try again."""
        with toy("server.request_timeout=0.001") as daemon, client_of(daemon) as client:
            with pytest.raises(InternalServerError) as caught:
                client.completions.create(model="smollm2-135m", prompt="a" * 300)
            assert caught.value.status_code == 504

    def test_a_connection_that_breaks_frees_everything(self) -> None:
        """Streaming or not, within a second; seen from outside, in the gauges."""
        with toy() as daemon:
            daemon.post({**LONG, "stream": False})
            daemon.post(LONG).getresponse().read(20)
            daemon.hang_up()
            deadline = time.monotonic() + 1
            while gauges(daemon) != [0, 0, 0]:
                assert time.monotonic() < deadline


@pytest.mark.slow
def test_an_idle_daemon_takes_less_than_a_hundredth_of_a_core() -> None:
    """Nothing polls fast: measured by the system over three seconds after a request."""
    with toy() as daemon:
        daemon.post({**LONG, "max_tokens": 20}).getresponse().read()
        before = cpu_seconds(daemon.process.pid)
        time.sleep(3)
        assert cpu_seconds(daemon.process.pid) - before < 0.03


def client_of(daemon: Daemon) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{daemon.port}/v1", api_key="none", max_retries=0)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def gauges(daemon: Daemon) -> list[float]:
    """Running, waiting, used part of the KV cache."""
    values = metrics(daemon)
    return [
        values[f"ssd:{name}"]
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    ]


def metrics(daemon: Daemon) -> dict[str, float]:
    """The samples by name; those of positions with the position behind it."""
    families = text_string_to_metric_families(daemon.get("/metrics")[1])
    return {
        sample.name + sample.labels.get("position", ""): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.model
@pytest.mark.slow
class TestModel:
    def test_openais_client_gets_what_pipe_gives(self, tmp_path: Path) -> None:
        """Streamed and whole, chat and completion, in SSD mode; and the counters are those of the trace."""
        trace = tmp_path / "trace.json"
        with running(*COMMAND, "--mode", "ssd", "--trace", str(trace), *QUIET) as daemon:
            daemon.logged("ready")
            with client_of(daemon) as client:
                given: dict[str, Any] = {
                    "model": "smollm2-135m",
                    "max_tokens": 24,
                    "seed": 7,
                    "temperature": 0.8,
                }
                messages: Any = [{"role": "user", "content": QUESTION}]
                chat = client.chat.completions.create(messages=messages, **given)
                options: Any = {"include_usage": True}
                *chunks, last = client.chat.completions.create(
                    messages=messages, stream=True, stream_options=options, **given
                )
                text = client.completions.create(prompt=QUESTION, **given)
            found = metrics(daemon)
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(20) == 0
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert [chat.choices[0].message.content, text.choices[0].text] == piped()
        assert streamed == chat.choices[0].message.content
        assert last.usage is not None
        assert chat.usage is not None
        assert last.usage.total_tokens == chat.usage.total_tokens
        assert chat.model_extra is not None
        assert chat.model_extra["speculation"]["mode"] == "ssd"
        check_counters(found, trace)


def piped() -> list[str]:
    """What `ssd-run pipe` answers to the same requests."""
    chat = {"prompt": QUESTION, "max_tokens": 24, "seed": 7, "temperature": 0.8}
    lines = "".join(json.dumps(line) + "\n" for line in (chat, {**chat, "raw": True}))
    command = [sys.executable, *COMMAND, "pipe", "--format", "jsonl", "--mode", "autoregressive"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


def check_counters(found: dict[str, float], trace: Path) -> None:
    _, rounds = read_trace(trace)
    totals = RoundTotals.of(rounds)
    expected = {
        "num_drafts": sum(record.proposed > 0 for record in rounds),
        "num_draft_tokens": totals.draft_tokens,
        "num_accepted_tokens": totals.accepted_tokens,
        "cache_hits": totals.hits,
        "cache_misses": totals.misses,
    }
    positions = {
        f"ssd:spec_decode_num_accepted_tokens_per_pos_total{position}": count
        for position, count in enumerate(totals.accepted_per_position)
    }
    expected = {f"ssd:spec_decode_{name}_total": value for name, value in expected.items()} | positions
    assert {name: found[name] for name in expected} == expected
    assert totals.draft_tokens > 0
