"""The README's examples run as they stand, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r"<!-- runs(?P<model> with the model)? -->\n```(?P<kind>sh|python)\n(?P<code>.*?)```", re.S
)
EXAMPLES = list(EXAMPLE.finditer(README))
WITH_MODEL = [example for example in EXAMPLES if example["model"]]
WITHOUT_MODEL = [example for example in EXAMPLES if not example["model"]]


def first_line(example: re.Match[str]) -> str:
    return example["code"].splitlines()[0][:40]


def output_of(example: re.Match[str], folder: Path) -> str:
    """What an example prints, run outside the repository by a shell that stops at the first failure."""
    interpreter = {"sh": ["sh", "-e", "-c"], "python": [sys.executable, "-W", "error", "-c"]}[example["kind"]]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    process = subprocess.Popen(
        [*interpreter, example["code"].replace("8000", str(free_port()))],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate()
    finally:
        with suppress(ProcessLookupError):  # an example that fails may leave its daemon behind
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return output


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", WITH_MODEL, ids=first_line)
def test_an_example_answers(example: re.Match[str], tmp_path: Path) -> None:
    """Pipe, JSON lines, chat, the daemon and both libraries print an answer."""
    assert len(output_of(example, tmp_path).split()) > 3


@pytest.mark.parametrize("example", WITHOUT_MODEL, ids=first_line)
def test_a_command_that_only_looks_says_something(example: re.Match[str], tmp_path: Path) -> None:
    """They need no model, and fetch none."""
    assert "builtin" in output_of(example, tmp_path)


def test_most_blocks_are_run() -> None:
    """Only the first, which sets everything up, is left to whoever reads it."""
    assert len(EXAMPLES) == README.count("```") // 2 - 1
    assert (len(WITH_MODEL), len(WITHOUT_MODEL)) == (6, 1)


def test_the_first_commands_are_targets_of_the_makefile() -> None:
    """`make run` and `make test`, before anything else."""
    first = README.partition("```sh\n")[2].partition("```")[0]
    targets = re.findall(r"^make (\w+)", first, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == ["run", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_every_document_is_in_the_index() -> None:
    """Each file in docs/ is linked, and each link to a file of the repository leads to one."""
    links = {link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link}
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_readme_fits_one_sitting() -> None:
    """Details belong into docs/."""
    assert len(README.splitlines()) < 200
