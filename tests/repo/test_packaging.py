"""The Dockerfile, its ignore file and the systemd unit agree with the repository, and start what exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from ssd_runtime.cli.main import main
from ssd_runtime.settings.load import load_settings
from ssd_runtime.settings.schema import ServerSettings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
UNIT = ROOT / "packaging" / "ssd-run.service"
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
SCRIPTS = PROJECT["project"]["scripts"]


def instructions() -> Iterator[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, continued lines joined."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def arguments(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def final_stage() -> list[tuple[str, str]]:
    """What stands behind the last FROM."""
    every = list(instructions())
    start = max(index for index, (name, _) in enumerate(every) if name == "FROM")
    return every[start:]


def copied() -> set[str]:
    """The names in the repository that the image is built from."""
    sources = [rest.split()[:-1] for rest in arguments("COPY") if not rest.startswith("--from")]
    return {source for each in sources for source in each}


class TestDockerfile:
    def test_what_is_copied_exists_and_is_not_ignored(self) -> None:
        """The ignore file lets through exactly what the image needs."""
        assert all((ROOT / name).exists() for name in copied())
        assert IGNORED[1] == "*"
        assert {line[1:] for line in IGNORED if line.startswith("!")} == copied()

    def test_everything_the_wheel_is_built_from_is_copied(self) -> None:
        """Packages, the configuration, the build's own code and the README of the metadata."""
        wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
        needed = {path.partition("/")[0] for path in [*wheel["packages"], *wheel["force-include"]]}
        assert copied() == needed | {"pyproject.toml", "hatch_build.py", PROJECT["project"]["readme"]}

    def test_it_does_not_run_as_root(self) -> None:
        """By number, so that Kubernetes can see it; nothing behind it changes that."""
        users = [rest for name, rest in final_stage() if name == "USER"]
        assert len(users) == 1
        assert int(users[0]) >= 1000
        assert any(f"useradd --uid {users[0]} " in rest for name, rest in final_stage() if name == "RUN")

    def test_it_starts_a_command_of_the_project(self) -> None:
        """`docker run ssd-inference pipe` works too."""
        assert [json.loads(rest)[0] in SCRIPTS for rest in arguments("ENTRYPOINT")] == [True]

    def test_it_listens_where_the_port_is_published(self) -> None:
        """The variables are settings, and the port is the default one, which the check asks too."""
        variables = dict(pair.split("=", 1) for rest in arguments("ENV") for pair in shlex.split(rest))
        environ = {name: value for name, value in variables.items() if name.startswith("SSD_")}
        server = load_settings(None, environ=environ).settings.server
        assert server.host == "0.0.0.0"
        assert arguments("EXPOSE") == [str(server.port)]
        assert f":{server.port}/health" in arguments("HEALTHCHECK")[0]

    def test_the_health_check_is_python(self) -> None:
        """A slim image has no curl."""
        command = json.loads(arguments("HEALTHCHECK")[0].partition("CMD ")[2])
        assert command[:2] == ["python", "-c"]
        compile(command[2], "HEALTHCHECK", "exec")

    @pytest.mark.parametrize("command", arguments("RUN"))
    def test_its_commands_are_whole(self, command: str) -> None:
        """The shell reads them to the end, and extras exist."""
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0
        extras = re.search(r'"\.\[([\w,]+)\]"', command)
        known = PROJECT["project"]["optional-dependencies"]
        assert all(extra in known for extra in (extras[1].split(",") if extras else []))

    def test_its_python_is_one_that_the_project_takes(self) -> None:
        """`requires-python` says from which version on."""
        version = next(rest for rest in arguments("ARG") if rest.startswith("PYTHON="))
        least = PROJECT["project"]["requires-python"].removeprefix(">=")
        assert _numbers(version.partition("=")[2]) >= _numbers(least)

    def test_its_first_lines_are_those_of_the_quick_start(self) -> None:
        """One image name, the same options, both variants."""
        commands = re.findall(r"^# (docker .*)$", DOCKERFILE, re.MULTILINE)
        assert len(commands) == 4
        joined = QUICKSTART.replace("\\\n  ", "")
        assert [command for command in commands if command not in joined] == []
        assert all("ssd-inference" in command for command in commands)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


class TestUnit:
    @pytest.fixture
    def service(self) -> dict[str, str]:
        """The section `Service`; of a name that stands there twice, the last."""
        parser = ConfigParser(strict=False, interpolation=None, delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read(UNIT, encoding="utf-8")
        return dict(parser["Service"])

    def test_it_starts_a_command_of_the_project(self, service: dict[str, str]) -> None:
        """With options that exist."""
        command, *options = service["ExecStart"].split()
        assert Path(command).name in SCRIPTS
        with pytest.raises(SystemExit) as end:
            main([*options, "--help"])
        assert end.value.code == 0

    def test_a_reload_is_a_hangup_and_a_stop_waits_for_what_runs(self, service: dict[str, str]) -> None:
        """SIGHUP is what the daemon reloads on; draining ends before systemd loses its patience."""
        assert service["ExecReload"].endswith("kill -HUP $MAINPID")
        assert int(service["TimeoutStopSec"]) > ServerSettings().drain_seconds

    def test_it_does_not_run_as_root_and_keeps_its_cache(self, service: dict[str, str]) -> None:
        """A user of its own, who may write to one folder."""
        assert service["DynamicUser"] == "yes"
        assert f"XDG_CACHE_HOME=%C/{service['CacheDirectory']}" in service["Environment"]

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
    def test_systemd_has_nothing_to_say_about_it(self, service: dict[str, str], tmp_path: Path) -> None:
        """With a command in place of the installed one, which is not there."""
        text = UNIT.read_text(encoding="utf-8")
        path = tmp_path / UNIT.name
        path.write_text(text.replace(service["ExecStart"].split()[0], sys.executable), encoding="utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
