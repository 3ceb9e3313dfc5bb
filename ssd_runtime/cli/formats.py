"""The two forms of `ssd-run pipe`: one prompt a line, or one JSON object a line."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from ssd_runtime.cli.streams import MAX_LINE_BYTES
from ssd_runtime.errors import RequestError, SSDError
from ssd_runtime.faces import described, speculation_fields
from ssd_runtime.settings.json_object import json_object
from ssd_runtime.types import Answer

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_PLAIN = {escaped: plain for plain, escaped in _ESCAPES.items()}


class Format(Protocol):
    """Turns lines into request bodies, and answers into lines.

    streams: pieces may be shown. errors_in: where a reader of stderr finds what was wrong.
    """

    streams: bool
    errors_in: str

    def body(self, line: bytes) -> Mapping[str, Any]:
        """The request's fields; raises `RequestError`."""
        ...

    def answer(self, request_id: object, answer: Answer) -> str:
        """One line, without its newline."""
        ...

    def error(self, request_id: object, index: int, error: SSDError) -> str:
        """The line that stands in the place of the answer to line `index`, counted from 0."""
        ...


class TextFormat:
    """A prompt a line, an escaped answer a line; an error goes to stderr and leaves its line empty."""

    streams = True
    errors_in = "see above"

    def __init__(self, complain: Callable[[str], None], *, raw: bool = False) -> None:
        self._complain = complain
        self._raw = raw

    def body(self, line: bytes) -> Mapping[str, Any]:
        """The whole line is the prompt."""
        return {"prompt": decoded(line), "raw": self._raw}

    def answer(self, request_id: object, answer: Answer) -> str:
        """The text alone."""
        return escape(answer.text)

    def error(self, request_id: object, index: int, error: SSDError) -> str:
        """Nothing, so that line n of the output belongs to line n of the input."""
        self._complain(_message(index, error))
        return ""


class JsonLinesFormat:
    """A JSON object a line, in and out."""

    streams = False
    errors_in = "see error in the output lines"

    def body(self, line: bytes) -> Mapping[str, Any]:
        """The line's object."""
        text = decoded(line)
        if not text.strip():
            raise RequestError("empty; expected a JSON object")
        try:
            return json_object(text)
        except RequestError as error:
            raise _within_line(error) from None

    def answer(self, request_id: object, answer: Answer) -> str:
        """Everything that is known about the answer; of several, the first and then all as `choices`."""
        every = answer.every
        return _line(
            {
                "id": request_id,
                "text": answer.text,
                "prompt_token_ids": answer.prompt_token_ids,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "seed": answer.seed,
                "usage": {
                    "prompt_tokens": len(answer.prompt_token_ids),
                    "completion_tokens": sum(len(each.token_ids) for each in every),
                },
                "timing": asdict(answer.timing),
                "speculation": speculation_fields(answer.speculation),
                **_logprobs(answer),
                **({"choices": list(map(_choice, every))} if answer.choices else {}),
            }
        )

    def error(self, request_id: object, index: int, error: SSDError) -> str:
        """The error in the place of the answer; `id` null where the line has none that can be read."""
        param = error.param if isinstance(error, RequestError) else None
        fields = {"type": error.type, "message": _message(index, error), "param": param}
        return _line({"id": request_id, "error": fields})


def _message(index: int, error: SSDError) -> str:
    return f"line {index + 1}: {error}"


def _within_line(error: RequestError) -> RequestError:
    """`error` with the column alone: the decoder counts lines too, and has only ever seen this one."""
    found = error.__context__
    if not isinstance(found, json.JSONDecodeError):
        return error
    return RequestError(f"not valid JSON: column {found.colno}: {found.msg}")


def _choice(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        "timing": asdict(answer.timing),
        "speculation": speculation_fields(answer.speculation),
        **_logprobs(answer),
    }


def _logprobs(answer: Answer) -> dict[str, Any]:
    given = {"logprobs": answer.logprobs, "prompt_logprobs": answer.prompt_logprobs}
    return {name: list(map(described, entries)) for name, entries in given.items() if entries}


def decoded(line: bytes) -> str:
    """`line` as text, without the return of a CRLF and without a byte order mark; raises `RequestError`."""
    if len(line) > MAX_LINE_BYTES:
        raise RequestError(f"the line is too long: expected at most {MAX_LINE_BYTES} bytes")
    try:
        return line.removesuffix(b"\r").removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = line[error.start]
        raise RequestError(
            f"not valid UTF-8: got byte 0x{wrong:02x} at offset {error.start}, expected UTF-8 text"
        ) from None


def escape(text: str) -> str:
    r"""`text` on one line: newline, return and backslash become `\n`, `\r` and `\\`."""
    return re.sub(r"[\\\n\r]", lambda found: _ESCAPES[found[0]], text)


def unescape(line: str) -> str:
    """The text that `escape` made `line` of."""
    return re.sub(r"\\[\\nr]", lambda found: _PLAIN[found[0]], line)


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
