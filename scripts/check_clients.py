"""Other people's clients against the daemon with the embedded model; logs are kept under build/clients.

    python scripts/check_clients.py --clients .venv-clients/bin
    python scripts/check_clients.py --node tests/clients
    python scripts/check_clients.py --load .venv-load/bin

The environments hold what `requirements.txt`, `package.json` and `load-requirements.txt` of `tests/clients`
name. Beside the clients in Python schemathesis asks by the thousand what `/openapi.json` allows, and what it
does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssd_runtime.models.convert import converted, default_cache_dir
from ssd_runtime.models.loading import resolve

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "clients"
PROGRAM = ROOT / "tests" / "clients" / "python_clients.py"
MODEL = "smollm2-135m"
PYTHON_CLIENTS = ("openai", "litellm", "langchain", "llm", "llm-comply")
DAEMON = [sys.executable, "-c", "from ssd_runtime.cli.main import main; main()"]
SHARED = ("--mode", "ssd", "--set", "server.port=0", "--set", "log.format=json")
SMALL = ("--set", "scheduler.max_tokens=48", "--set", "engine.max_batch_size=32", "--set", "log.level=debug")
"""So that thousands of answers, some of 128 choices, take minutes."""
KEY = "a-key-of-this-run"
"""With which the fuzzed daemon runs, because `/admin` is closed without one."""
GENERATING = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
PARTS = {name: ("--include-path", path) for name, path in GENERATING.items()} | {
    "others": tuple(part for path in GENERATING.values() for part in ("--exclude-path", path))
}
"""The operations that schemathesis asks for in a process of its own."""
PHASES = ("examples,coverage", "fuzzing")
LEAST_EXAMPLES = 2000
TOOLS = {"chat-tool-stream-reassembly", "chat-tool-result-turn"}
"""What llmprobe expects of models that know tools; the template of this one has no place for them."""
LOAD_SECONDS = 30
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
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


def run(name: str, command: Sequence[str | Path], *, status: int = 0, **variables: str) -> bool:
    """Run one client; whether it ended with `status`, which says that all was as it should be."""
    path = LOGS / f"{name}.log"
    started = time.monotonic()
    with path.open("w", encoding="utf-8") as log:
        ended = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, check=False, env={**os.environ, **variables}
        )
    good = ended.returncode == status
    seconds = time.monotonic() - started
    sys.stdout.write(f"{name}: {'good' if good else 'BAD'}, {seconds:.0f} s, see {path.relative_to(ROOT)}\n")
    sys.stdout.flush()
    return good


def probe(folder: Path, url: str) -> bool:
    """llmprobe: all that it says an engine must do, but for tools."""
    report = LOGS / "llmprobe.json"
    report.unlink(missing_ok=True)
    good = run(
        "llmprobe",
        [
            *(folder / "node_modules" / ".bin" / "llmprobe", url, "--model", MODEL, "--timeout", "300"),
            *("--no-bench", "--no-save", "--no-color", "--save", report),
        ],
        status=1,
    )
    told = json.loads(report.read_text(encoding="utf-8"))["conformance"]
    failed = {result["id"] for result in told["results"] if result["outcome"] == "fail"}
    sys.stdout.write(f"llmprobe: {told['passed']} of {told['total']}; not {', '.join(sorted(failed))}\n")
    return good and failed == TOOLS


def load(folder: Path, url: str) -> bool:
    """guidellm: a load of eight chats at once, none of which fails; with the tokenizer from our cache."""
    report = LOGS / "guidellm.json"
    report.unlink(missing_ok=True)
    source = resolve(MODEL)
    if source.path is None:
        raise SystemExit(f"{MODEL} is not the embedded model")
    tokenizer = converted(source.path, default_cache_dir(), lambda *_: None)
    good = run(
        "guidellm",
        [
            *(folder / "guidellm", "run", "--backend", f"kind=openai_http,target={url},model={MODEL}"),
            *("--profile", "kind=concurrent,streams=8"),
            *("--constraint", f"kind=max_duration,seconds={LOAD_SECONDS}"),
            *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
            *("--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"),
            *("--output", f"kind=json,path={report}", "--output", "kind=console", "--disable-progress"),
        ],
        HF_HUB_OFFLINE="1",
    )
    [told] = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    counts = told["metrics"]["request_totals"]
    sys.stdout.write(f"guidellm: {counts['successful']} answers, {counts['errored']} errors\n")
    return good and counts["successful"] > 0 and not counts["errored"]


def fuzz(folder: Path, url: str, examples: int) -> bool:
    """schemathesis: everything that the document allows, and what it forbids; side by side, in one batch.

    Each with one worker: Python before 3.11.8 parses code in several threads wrongly, which Hypothesis does.
    """
    parts = [(part, phases) for part in PARTS for phases in PHASES]
    with ThreadPoolExecutor(len(parts)) as pool:
        asked = [pool.submit(fuzz_part, folder, url, examples, *part) for part in parts]
    results = [each.result() for each in asked]
    total = sum(count for _, count in results)
    sys.stdout.write(f"schemathesis: {total} examples\n")
    return total >= LEAST_EXAMPLES and all(good for good, _ in results)


def fuzz_part(folder: Path, url: str, examples: int, part: str, phases: str) -> tuple[bool, int]:
    """Some of the operations in some of the phases; whether all is well, and the number of examples."""
    name = f"schemathesis-{part}-{phases.rpartition(',')[2]}"
    good = run(
        name,
        [
            *(folder / "st", "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS)),
            *("--max-examples", str(examples), "--workers", "1", "--request-timeout", "300"),
            *("--report", "junit", "--report-junit-path", LOGS / f"{name}.xml", "--no-color"),
            *("--continue-on-failure", "--phases", phases, "--seed", "1"),
            *("--header", f"Authorization: Bearer {KEY}", *PARTS[part]),
        ],
    )
    found = re.findall(r"(\d+) generated", (LOGS / f"{name}.log").read_text(encoding="utf-8"))
    return good, sum(map(int, found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=Path, help="the bin folder of the Python clients' environment")
    parser.add_argument("--node", type=Path, help="the folder with the node_modules of the Node clients")
    parser.add_argument("--load", type=Path, help="the bin folder of guidellm's environment")
    parser.add_argument("--examples", type=int, default=100, help="most examples for each operation")
    parser.add_argument("--only", choices=[*PYTHON_CLIENTS, "schemathesis"], action="append")
    options = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    good = True
    if options.clients:
        good &= python_clients(options)
    if options.node:
        command = str(Path(sys.executable).with_name("ssd-run"))
        good &= run("openai-node", ["npm", "--prefix", options.node, "test"], DAEMON=command)
        with daemon("daemon-probed") as url:
            good &= probe(options.node, url)
    if options.load:
        with daemon("daemon-loaded") as url:
            good &= load(options.load, url)
    return not good


def python_clients(options: argparse.Namespace) -> bool:
    """Those that `--only` names, by default all."""
    wanted = options.only or [*PYTHON_CLIENTS, "schemathesis"]
    good = True
    asked = [name for name in PYTHON_CLIENTS if name in wanted]
    if asked:
        with daemon("daemon") as url:
            for name in asked:
                good &= run(name, [options.clients / "python", PROGRAM, name, url])
    if "schemathesis" in wanted:
        with daemon("daemon-fuzzed", *SMALL, "--set", f"server.api_key={KEY}") as url:
            good &= fuzz(options.clients, url, options.examples)
    return good


if __name__ == "__main__":
    sys.exit(main())
