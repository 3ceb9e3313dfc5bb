"""Hub models through a hub of our own on this machine: fetched once, safetensors only."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

REPO = "somebody/toy"
COMMIT = "0" * 40
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": (2).to_bytes(8, "little") + b"{}",
    "pytorch_model.bin": b"never to be fetched",
    "tokenizer.json": b"{}",
}


class Hub(ThreadingHTTPServer):
    """The part of the hub's interface that a download of `REPO` uses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        """The endpoint's address."""
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    """Serves the repository's description and its files."""

    server: Hub

    def do_GET(self) -> None:
        """Answer, and remember which files were asked for."""
        name = self.path.rsplit("/", 1)[-1]
        if self.path.startswith(f"/api/models/{REPO}/tree/"):
            self._send(
                [{"type": "file", "path": name, "size": len(FILES[name]), "oid": "1"} for name in FILES]
            )
        elif self.path.startswith(f"/api/models/{REPO}"):
            siblings = [{"rfilename": name} for name in FILES]
            self._send({"id": REPO, "sha": COMMIT, "siblings": siblings, "private": False})
        elif self.path.startswith(f"/{REPO}/resolve/") and name in FILES:
            self.server.fetched.append(name)
            self._content(FILES[name])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _send(self, value: object) -> None:
        self._content(json.dumps(value).encode())

    def _content(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A running hub."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


_FETCH = """
import sys
from ssd_runtime.errors import ModelError
from ssd_runtime.models.hub import fetch
try:
    folder = fetch(sys.argv[1], lambda what, done, total: print("progress", what))
except ModelError as error:
    sys.exit(f"error {error}")
print(*sorted(path.name for path in folder.iterdir()))
"""


def fetch(repo: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Fetch in a process of its own: the hub's client reads its environment when it is imported."""
    inherited = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment = inherited | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    command = [sys.executable, "-c", _FETCH, repo]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_a_model_is_fetched_once_and_without_pickles(hub: Hub, tmp_path: Path) -> None:
    """The first call downloads what is needed, with progress; the second asks the hub nothing."""
    first = fetch(REPO, hub.url, tmp_path)
    lines = first.stdout.splitlines()
    assert lines, first.stderr
    assert lines[-1] == "config.json model.safetensors tokenizer.json", first.stderr
    assert f"progress downloading {REPO}" in lines
    assert "pytorch_model.bin" not in hub.fetched
    hub.fetched.clear()
    second = fetch(REPO, "http://127.0.0.1:9", tmp_path)
    assert second.stdout.splitlines() == [lines[-1]], second.stderr


def test_an_unknown_model_and_no_network_are_told_apart(hub: Hub, tmp_path: Path) -> None:
    """Either way the error names the model and what to do."""
    unknown = fetch("somebody/else", hub.url, tmp_path)
    assert "error the hub has no model 'somebody/else'" in unknown.stderr
    offline = fetch(REPO, "http://127.0.0.1:9", tmp_path)
    assert f"error model '{REPO}' is not in the local cache and cannot be downloaded" in offline.stderr
