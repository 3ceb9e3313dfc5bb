"""The two line formats: what a line asks, and what stands in its place in the output."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.cli.formats import JsonLinesFormat, TextFormat, escape, unescape
from ssd_runtime.cli.streams import MAX_LINE_BYTES, LineSplitter
from ssd_runtime.cli.summary import Summary, counted
from ssd_runtime.clock import ManualClock
from ssd_runtime.errors import EngineError, RequestError
from ssd_runtime.types import Answer, FinishReason, SpeculationStats, Timing, TokenLogprob


def answer(text: str = "hi", **speculation: Any) -> Answer:
    stats = SpeculationStats(mode="ssd", accepted_per_position=(2, 1), **speculation)
    return Answer("7", text, (1, 2), FinishReason.STOP, (5, 6, 7), 9, Timing(0.1, 0.2, 0.3, 0.6), stats)


@given(st.text())
def test_an_escaped_text_is_one_line_and_can_be_read_back(text: str) -> None:
    """Escaping is reversible, whatever the text holds."""
    assert not set("\n\r") & set(escape(text))
    assert unescape(escape(text)) == text


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_lines_do_not_depend_on_how_they_are_cut_into_chunks(lines: list[bytes], size: int) -> None:
    """Any chunking gives the same lines, and a last line needs no newline."""
    data = b"".join(line + b"\n" for line in lines) + b"end"
    splitter = LineSplitter()
    got = [line for start in range(0, len(data), size) for line in splitter.push(data[start : start + size])]
    assert got + splitter.finish() == [*lines, b"end"]


def test_a_line_without_end_is_not_kept_in_memory() -> None:
    """One byte more than the limit is kept, which is how the reader of the line knows."""
    splitter = LineSplitter(limit=10)
    assert [splitter.push(b"x" * 100) for _ in range(3)] == [[], [], []]
    assert splitter.push(b"x\nshort\n") == [b"x" * 11, b"short"]
    assert splitter.finish() == []


def test_text_lines_are_prompts() -> None:
    """The return of a CRLF and a byte order mark are not part of the prompt."""
    assert TextFormat(print, raw=True).body(b"hi you\r") == {"prompt": "hi you", "raw": True}
    assert TextFormat(print).body(b"\xef\xbb\xbfhi") == {"prompt": "hi", "raw": False}


@pytest.mark.parametrize("form", [TextFormat(print), JsonLinesFormat()])
def test_bytes_that_are_no_text_are_named(form: TextFormat | JsonLinesFormat) -> None:
    """Which byte, and where."""
    with pytest.raises(RequestError, match="not valid UTF-8: got byte 0xff at offset 2"):
        form.body(b"hi\xff")


def test_a_line_beyond_the_limit_is_refused() -> None:
    """It was cut by the reader, so it must not be answered."""
    with pytest.raises(RequestError, match="too long: expected at most 16777216 bytes"):
        TextFormat(print).body(b"x" * (MAX_LINE_BYTES + 1))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "^empty; expected a JSON object$"),
        (b" \t\r", "^empty; expected a JSON object$"),
        (b"{", "^not valid JSON: column 2: Expecting property name"),
        (b'{"prompt": "a",, "n": 1}', "^not valid JSON: column 16: Expecting property name"),
        (b'{"prompt": "a"} {}', "^not valid JSON: column 17: Extra data$"),
        (b"[1]", r"got list \[1\], expected a JSON object"),
        (b"5", "got int 5, expected a JSON object"),
        (b'{"temperature": NaN}', "not valid JSON: got NaN"),
        (b'{"temperature": -Infinity}', "not valid JSON: got -Infinity"),
        (b'{"prompt": "a", "prompt": "b"}', "not valid JSON: 'prompt' is given twice"),
        (b'{"prompt": "a\0b"}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "not valid JSON"),
    ],
)
def test_lines_that_are_no_json_object_are_refused(line: bytes, message: str) -> None:
    """Nothing but a strict JSON object is taken."""
    with pytest.raises(RequestError, match=message):
        JsonLinesFormat().body(line)


def test_a_json_answer_has_every_field_of_the_contract() -> None:
    """The whole line, exactly."""
    line = JsonLinesFormat().answer(7, answer("a\n€", rounds=3, hits=2, misses=1, draft_tokens=6))
    assert "\n" not in line
    assert json.loads(line) == {
        "id": 7,
        "text": "a\n€",
        "prompt_token_ids": [5, 6, 7],
        "token_ids": [1, 2],
        "finish_reason": "stop",
        "seed": 9,
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "timing": {
            "queue_seconds": 0.1,
            "first_token_seconds": 0.2,
            "decode_seconds": 0.3,
            "total_seconds": 0.6,
        },
        "speculation": {
            "mode": "ssd",
            "rounds": 3,
            "hits": 2,
            "misses": 1,
            "draft_tokens": 6,
            "accepted_tokens": 0,
            "accepted_per_position": [2, 1],
            "draft_weight_bytes": 0,
        },
    }


def test_errors_stand_in_the_place_of_the_answer() -> None:
    """JSON has the error in the line, text has an empty line and the error beside it."""
    error = RequestError("no", "top_k")
    assert json.loads(JsonLinesFormat().error("a", 4, error)) == {
        "id": "a",
        "error": {"type": "invalid_request_error", "message": "line 5: no", "param": "top_k"},
    }
    assert json.loads(JsonLinesFormat().error(None, 4, EngineError("broken"))) == {
        "id": None,
        "error": {"type": "engine_error", "message": "line 5: broken", "param": None},
    }
    notes: list[str] = []
    assert TextFormat(notes.append).error("a", 4, error) == ""
    assert notes == ["line 5: no"]


def test_the_summary_counts_answers_and_failures() -> None:
    """Requests, tokens, speed, first token, and the speculation figures as they are defined."""
    clock = ManualClock()
    summary = Summary(clock)
    summary.add(answer(rounds=4, hits=3, misses=1, draft_tokens=10, accepted_tokens=6))
    summary.add_failure()
    clock.advance(2.0)
    assert str(summary) == (
        "2 requests, 1 failed; 2 tokens in 2.0 s: 1.0 tokens/s; first token P50 0.200 s; "
        "acceptance rate 0.60; mean acceptance length 2.50; hit rate 0.75"
    )


@pytest.mark.parametrize(("number", "text"), [(0, "0 requests"), (1, "1 request"), (2, "2 requests")])
def test_one_of_a_thing_is_no_plural(number: int, text: str) -> None:
    """In every line for people."""
    assert counted(number, "request") == text


def test_the_summary_says_where_failures_are_told() -> None:
    """Only when there are some: stderr alone does not show what stands in the output."""
    summary = Summary(ManualClock(), JsonLinesFormat().errors_in)
    summary.add(answer())
    assert "output" not in str(summary)
    summary.add_failure()
    assert "1 failed (see error in the output lines); 2 tokens" in str(summary)


def test_the_summary_leaves_out_what_is_not_defined() -> None:
    """No drafts, no rate; no lookup, no hit rate; no time, no speed."""
    summary = Summary(ManualClock())
    summary.add(answer(rounds=4))
    assert str(summary) == "1 request, 0 failed; 2 tokens in 0.0 s; first token P50 0.200 s"


def test_several_answers_stand_beside_the_first() -> None:
    """The line is the first answer's, with all of them as `choices`; the usage is their sum."""
    one, two = answer("a"), answer("b")
    several = replace(one, choices=(one, two))
    line = json.loads(JsonLinesFormat().answer("x", several))
    assert line["text"] == "a"
    assert [choice["text"] for choice in line["choices"]] == ["a", "b"]
    assert line["choices"][1].keys() == {
        "text",
        "token_ids",
        "finish_reason",
        "seed",
        "timing",
        "speculation",
    }
    assert line["usage"] == {"prompt_tokens": 3, "completion_tokens": 4}
    assert "choices" not in json.loads(JsonLinesFormat().answer("x", one))


def test_log_probabilities_are_numbers_that_json_has() -> None:
    """Impossible is -9999, the first token of a prompt has null; half a character is U+FFFD and bytes."""
    told = TokenLogprob(1, -0.5, (TokenLogprob(2, -0.25, spelling="é".encode()[:1]),), b"a")
    first, never = TokenLogprob(5, None, spelling=b"x"), TokenLogprob(6, -math.inf, spelling=b"y")
    line = json.loads(
        JsonLinesFormat().answer("x", replace(answer(), logprobs=(told,), prompt_logprobs=(first, never)))
    )
    other = {"token": "\ufffd", "token_id": 2, "logprob": -0.25, "bytes": [0xC3]}
    assert line["logprobs"] == [
        {"token": "a", "token_id": 1, "logprob": -0.5, "bytes": [97], "top_logprobs": [other]}
    ]
    assert [entry["logprob"] for entry in line["prompt_logprobs"]] == [None, -9999.0]


def test_the_summary_counts_every_answer_of_a_request() -> None:
    """One request, the tokens and rounds of both answers."""
    clock = ManualClock()
    summary = Summary(clock)
    one = answer(rounds=2, draft_tokens=4)
    summary.add(replace(one, choices=(one, one)))
    clock.advance(2.0)
    assert str(summary).startswith("1 request, 0 failed; 4 tokens in 2.0 s: 2.0 tokens/s")
