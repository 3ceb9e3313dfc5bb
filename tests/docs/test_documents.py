"""The documents' blocks are executed as they stand, and messages that they quote are the product's own.

A comment before a block says what becomes of it: `runs`, `fails`, `runs in a notebook`, each also `with the
model`, or `parses`, for what takes hours. A block of `text` behind it is in what it prints. Blocks of YAML
load as configurations, and those of a named file lie there when commands run. What has no comment needs
rights that a test has not.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from ssd_runtime.cli.main import main
from ssd_runtime.errors import ConfigError
from ssd_runtime.settings.load import load_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {"http.md", "plugin-guide.md"}
"""`tests/server/test_http_documentation.py` and `tests/plugins/test_plugin_guide.py` execute theirs."""
NOT_RUN = {"quickstart.md": 4}
"""`make run`, containers and services; `tests/repo/test_packaging.py` looks at what they start."""
BLOCK = re.compile(
    r"(?:<!-- (?P<does>runs|fails|parses)(?P<how>[\w ]*) -->\n)?"
    r"^```(?P<kind>\w*)(?P<wrong> wrong)?\n(?P<code>.*?)^```(?:\n\n```text\n(?P<shown>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"^`([\w./-]+)`:\n\n```yaml[ \w]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT = "8000"
PLAIN = re.compile(r"ssd-run [^|<>&]*$")
NOTEBOOK = """
import ast, asyncio, inspect, sys
async def cell():
    code = compile(sys.argv[1], "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if inspect.iscoroutine(running := eval(code, {})):
        await running
asyncio.run(cell())
"""


@dataclass(frozen=True, slots=True)
class Example:
    """A block of a document. does, how: the comment before it. shown: what it is said to print."""

    document: str
    number: int
    does: str
    how: str
    kind: str
    code: str
    shown: str
    wrong: bool

    @property
    def needs_model(self) -> bool:
        return "with the model" in self.how or "notebook" in self.how

    def __str__(self) -> str:
        return f"{self.document}-{self.number}"


def examples_of(document: Path) -> list[Example]:
    """Its blocks in order."""
    return [
        Example(
            document.name,
            number,
            block["does"] or "",
            block["how"] or "",
            block["kind"],
            block["code"],
            block["shown"] or "",
            bool(block["wrong"]),
        )
        for number, block in enumerate(BLOCK.finditer(document.read_text(encoding="utf-8")), 1)
    ]


DOCUMENTS = sorted(path for path in DOCS.glob("*.md") if path.name not in ELSEWHERE)
EXAMPLES = [example for document in DOCUMENTS for example in examples_of(document)]
QUICK = [each for each in EXAMPLES if each.does in ("runs", "fails") and not each.needs_model]
WITH_MODEL = [each for each in EXAMPLES if each.needs_model]
PARSED = [
    pytest.param(each, marks=[pytest.mark.slow] if "python -m" in each.code else [], id=str(each))
    for each in EXAMPLES
    if each.does == "parses"
]
CONFIGURATIONS = [each for each in EXAMPLES if each.kind == "yaml"]


def commands(code: str) -> list[str]:
    """The lines of a shell block, continued ones joined."""
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]


def executed(example: Example, folder: Path) -> tuple[int, str]:
    """Exit status and everything printed, in a folder with the document's files; the port is a free one."""
    port = str(free_port())
    put_files(example, folder, port)
    code = example.code.replace(PORT, port)
    notebook = [sys.executable, "-c", NOTEBOOK, code]
    process = subprocess.Popen(
        notebook if "notebook" in example.how else [*INTERPRETERS[example.kind], code],
        cwd=folder,
        env={**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        if example.does == "runs":
            printed, _ = process.communicate()
        else:  # it may leave something behind that holds the pipe open
            process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, printed.replace(port, PORT)


def put_files(example: Example, folder: Path, port: str = PORT) -> None:
    """The files that the document shows by name, with `port` in them."""
    for name, text in FILE.findall((DOCS / example.document).read_text(encoding="utf-8")):
        (folder / name).write_text(text.replace(PORT, port), encoding="utf-8")


INTERPRETERS = {"sh": ["sh", "-e", "-c"], "python": [sys.executable, "-W", "error", "-c"]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check(example: Example, folder: Path) -> None:
    """It succeeds or fails as the document says, and prints what stands there."""
    status, printed = executed(example, folder)
    assert (status == 0) == (example.does == "runs"), printed
    missing = [line for line in example.shown.splitlines() if line not in printed]
    assert not missing, printed
    assert "Traceback" not in printed


def check_here(example: Example, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As `check`, for commands that are ours alone: nothing is loaded anew."""
    put_files(example, folder)
    for command in commands(example.code):
        with pytest.raises(SystemExit) as end:
            main(shlex.split(command, comments=True)[1:])
        assert (not end.value.code) == (example.does == "runs")
    told = capfd.readouterr()
    assert [line for line in example.shown.splitlines() if line not in told.out + told.err] == []


@pytest.mark.parametrize("example", QUICK, ids=str)
def test_an_example_does_what_the_document_says(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a model. Plain `ssd-run` commands are run in this process, which is quicker."""
    if "without a GPU" in example.how and Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    if example.kind == "sh" and all(PLAIN.match(command) for command in commands(example.code)):
        monkeypatch.chdir(tmp_path)
        check_here(example, tmp_path, capfd)
    else:
        check(example, tmp_path)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", WITH_MODEL, ids=str)
def test_an_example_with_the_model_does_what_the_document_says(example: Example, tmp_path: Path) -> None:
    """With the embedded one, and few tokens."""
    check(example, tmp_path)


@pytest.mark.parametrize("example", PARSED)
def test_an_example_that_takes_hours_parses(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option exists and takes its value; `--help` behind it keeps it from being run."""
    for command in commands(example.code):
        words = [*shlex.split(command, comments=True), "--help"]
        if words[0] == "ssd-run":
            with pytest.raises(SystemExit) as end:
                main(words[1:])
            assert end.value.code == 0, capsys.readouterr().err
        else:
            assert words[0] == "python"
            done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", CONFIGURATIONS, ids=str)
def test_a_configuration_loads_unless_it_is_said_to_be_wrong(example: Example, tmp_path: Path) -> None:
    """`wrong` behind the language says so."""
    path = tmp_path / "engine.yaml"
    path.write_text(example.code, encoding="utf-8")
    if example.wrong:
        with pytest.raises(ConfigError):
            load_settings(path, environ={})
    else:
        load_settings(path, environ={})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_has_no_block_that_nobody_executes(document: Path) -> None:
    """But those that are listed above."""
    left = [each for each in examples_of(document) if not each.does and each.kind != "yaml"]
    assert len(left) == NOT_RUN.get(document.name, 0), [each.code for each in left]


@pytest.mark.parametrize("document", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_a_link_leads_somewhere(document: Path) -> None:
    """To a file, and where it names a heading, to one of that name."""
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    for name, _, heading in (link.partition("#") for link in links if "://" not in link):
        target = document.parent / name if name else document
        assert target.exists(), name
        assert not heading or heading in _headings(target.read_text(encoding="utf-8")), heading


def _headings(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
