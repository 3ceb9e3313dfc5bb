"""Other people's clients against the daemon with the embedded model; logs are kept under build/clients.

    python scripts/check_clients.py --clients .venv-clients/bin

The environment of `--clients` holds what `tests/clients/requirements.txt` names. Beside the clients in Python
schemathesis asks by the thousand what `/openapi.json` allows, and what it does not.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "clients"
PROGRAM = ROOT / "tests" / "clients" / "python_clients.py"
PYTHON_CLIENTS = ("openai", "litellm", "langchain", "llm")
DAEMON = [sys.executable, "-c", "from ssd_runtime.cli.main import main; main()"]
SHARED = ("--mode", "ssd", "--set", "server.port=0", "--set", "log.format=json")
SMALL = ("--set", "scheduler.max_tokens=48", "--set", "engine.max_batch_size=32")
"""So that thousands of answers, some of 128 choices, take minutes."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
"""All but that what the document allows is answered: context, model and fields together may forbid it."""
START_SECONDS = 300


@contextmanager
def daemon(name: str, *options: str) -> Iterator[str]:
    """A daemon's address, once it is ready; its log is kept as `name`."""
    path = LOGS / f"{name}.log"
    with path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen([*DAEMON, *SHARED, *options], stderr=log, cwd=ROOT)
        try:
            logged(process, path, "ready")
            yield logged(process, path, "listening")["url"]
            process.terminate()
            status = process.wait(60)
            if status:
                raise SystemExit(f"the daemon ended with status {status}; see {path}")
        finally:
            process.kill()


def logged(process: subprocess.Popen[bytes], path: Path, event: str) -> dict[str, Any]:
    """The entry of the daemon's log that says `event`."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] == event:
                return entry
        time.sleep(0.2)
    raise SystemExit(f"the daemon did not say {event!r}; see {path}")


def run(name: str, command: Sequence[str | Path]) -> bool:
    """Run one client; whether all was as it should be."""
    path = LOGS / f"{name}.log"
    started = time.monotonic()
    with path.open("w", encoding="utf-8") as log:
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"{name}: {'good' if status == 0 else 'BAD'}, {seconds:.0f} s, see {path.relative_to(ROOT)}\n"
    )
    sys.stdout.flush()
    return status == 0


def fuzz(folder: Path, url: str, examples: int) -> bool:
    """schemathesis: everything that the document allows, and what it forbids.

    With one worker: Python before 3.11.8 parses code in several threads wrongly, which Hypothesis does.
    """
    report = LOGS / "schemathesis.xml"
    good = run(
        "schemathesis",
        [
            *(folder / "st", "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS)),
            *("--max-examples", str(examples), "--workers", "1", "--request-timeout", "300"),
            *("--report", "junit", "--report-junit-path", report, "--no-color", "--continue-on-failure"),
            *("--phases", "examples,coverage,fuzzing", "--seed", "1"),
        ],
    )
    found = re.findall(r"(\d+) generated", (LOGS / "schemathesis.log").read_text(encoding="utf-8"))
    sys.stdout.write(f"schemathesis: {' and '.join(found) or 'unknown'} examples\n")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--clients", type=Path, required=True, help="the bin folder of the clients' environment"
    )
    parser.add_argument("--examples", type=int, default=100, help="most examples for each operation")
    parser.add_argument("--only", choices=[*PYTHON_CLIENTS, "schemathesis"], action="append")
    options = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    wanted = options.only or [*PYTHON_CLIENTS, "schemathesis"]
    good = True
    asked = [name for name in PYTHON_CLIENTS if name in wanted]
    if asked:
        with daemon("daemon") as url:
            for name in asked:
                good &= run(name, [options.clients / "python", PROGRAM, name, url])
    if "schemathesis" in wanted:
        with daemon("daemon-fuzzed", *SMALL) as url:
            good &= fuzz(options.clients, url, options.examples)
    return not good


if __name__ == "__main__":
    sys.exit(main())
