"""The command line around the commands: options before and after, exit status, messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from ssd_runtime import __version__
from ssd_runtime.cli.command import OptionsCommand
from ssd_runtime.cli.main import app, main
from ssd_runtime.settings.load import load_settings


def run(*arguments: str) -> int:
    """Run one command line in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


class TestConfig:
    def test_show_prints_a_configuration_file(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """What is printed loads to what was asked for, and nothing else goes to stdout."""
        assert run("config", "show", "--set", "engine.top_p=0.5", "--mode", "ssd") == 0
        path = tmp_path / "shown.yaml"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        settings = load_settings(path, environ={}).settings
        assert settings.engine.top_p == 0.5
        assert settings.scheduler.policy == "ssd"

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--config", "FILE", "--set", "engine.top_p=0.5", "config", "show"),
            ("--config=FILE", "--set=engine.top_p=0.5", "config", "show"),
            ("config", "show", "--set", "engine.top_p=0.5", "--config", "FILE"),
        ],
    )
    def test_shared_options_stand_before_or_after_the_command(
        self, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """All ways to write it mean the same."""
        path = tmp_path / "engine.yaml"
        path.write_text("engine: {block_size: 32}\n", encoding="utf-8")
        assert run(*(argument.replace("FILE", str(path)) for argument in arguments)) == 0
        shown = yaml.safe_load(capsys.readouterr().out)
        assert shown["engine"]["block_size"] == 32
        assert shown["engine"]["top_p"] == 0.5

    def test_schema_is_json_schema(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Editors read it: sections, descriptions, limits."""
        assert run("config", "schema") == 0
        schema = json.loads(capsys.readouterr().out)
        length = schema["$defs"]["EngineSettings"]["properties"]["speculative_length"]
        assert (length["minimum"], length["maximum"], length["default"]) == (0, 64, 6)


class TestLooking:
    def test_version_names_itself_and_torch(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What a bug report needs."""
        assert run("version") == 0
        out = capsys.readouterr().out
        assert out.startswith(f"ssd_runtime {__version__}\n")
        assert re.search(r"^torch \d", out, re.MULTILINE)

    def test_plugins_lists_parts_by_kind(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The built-in parts are there."""
        assert run("plugins") == 0
        out = capsys.readouterr().out
        assert "plugins: builtin" in out
        assert re.search(r"^samplers: .*coupled", out, re.MULTILINE)


def test_a_dash_means_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """`ssd-run --config FILE -` reads prompts from stdin."""
    assert run("--mode", "ssd", "-", "--help") == 0
    assert "Answer the prompts on stdin" in capsys.readouterr().out


class TestCheck:
    def test_a_model_on_the_hub_is_not_fetched(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`check` says what would happen, and does none of it."""
        assert run("check", "--set", "engine.model=owner/name", "--mode", "autoregressive") == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert lines["target"] == "owner/name: from the hub, or its cache on this machine"
        assert lines["mode"] == "autoregressive"
        assert lines["plugins"].startswith("builtin")

    @pytest.mark.parametrize(
        ("arguments", "draft"),
        [
            (("--mode", "ssd"), "self, up to 6 tokens a round, int8 weights, outcomes adaptive"),
            (("--set", "engine.draft_model=suffix"), "suffix, up to 6 tokens a round, without a model"),
            (("--mode", "autoregressive"), "none"),
            (("--set", "engine.draft_model=none"), "none"),
        ],
    )
    def test_the_draft_is_what_the_mode_will_use(
        self, arguments: tuple[str, ...], draft: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Nothing is said about weights that will not be loaded."""
        assert run("check", "--set", "engine.model=owner/name", *arguments) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert lines["draft"] == draft

    @pytest.mark.model
    def test_the_embedded_model_is_described_from_its_header(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """File, size, shape, the context that is left, and the memory of the KV cache."""
        assert run("check", "--set", "engine.max_batch_size=1", "--set", "scheduler.max_tokens=10000") == 0
        out = capsys.readouterr().out
        assert re.search(r"^target +smollm2-135m: .*\.gguf \(gguf, \d+ MB\)$", out, re.MULTILINE)
        assert "30 layers, width 576, vocabulary 49152" in out
        assert "8192 tokens a request, the model's own limit (scheduler.max_tokens: 10000)" in out
        assert "10000 tokens, float32, 461 MB" in out

    @pytest.mark.model
    def test_a_cache_larger_than_the_machine_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What would not start does not pass the check either."""
        assert run("check", "--set", "engine.kv_cache_tokens=100000000000") == 2
        printed = capsys.readouterr()
        assert "ssd-run: the target's KV cache of 100000000000 tokens takes 429153" in printed.err
        assert printed.out == ""


class TestMistakes:
    @pytest.mark.parametrize("command", ["pipe", "chat", "bench", "check", "plugins", "config show"])
    def test_a_model_that_is_given_without_an_option_gets_a_hint(
        self, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Other engines take it so; here every command names it with `--set`."""
        assert run(*command.split(), "/path/x.gguf", "more") == 2
        captured = capsys.readouterr()
        assert "'/path/x.gguf', expected options alone" in captured.err
        assert "did you mean --set engine.model=/path/x.gguf?" in captured.err
        assert captured.out == ""

    @pytest.mark.parametrize("model", ["x.gguf", "owner/name"])
    def test_a_model_in_the_place_of_a_command_gets_a_hint(
        self, model: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The daemon has no name of its own, so a path there looks like a command."""
        assert run(model) == 2
        assert f"{model!r}; did you mean --set engine.model={model}?" in capsys.readouterr().err

    @pytest.mark.parametrize("command", ["version", "config schema"])
    def test_a_command_without_settings_suggests_none(
        self, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A hint that is an error itself helps nobody."""
        assert run(*command.split(), "x.gguf") == 2
        assert capsys.readouterr().err.endswith("Got unexpected argument 'x.gguf', expected options alone\n")

    def test_every_mistake_carries_the_prefix(self, capsys: pytest.CaptureFixture[str]) -> None:
        """In a log of many programs a line without it is nobody's."""
        wrong = ("engine.top_p=7", "engine.temprature=1", "port=1")
        assert run("check", *(part for each in wrong for part in ("--set", each))) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 4
        assert all(line.startswith("ssd-run: --set ") for line in lines)

    def test_every_command_takes_options_alone(self) -> None:
        """A new one too is registered with the class that gives the hint."""
        groups = [get_command(app)]
        commands = []
        while groups:
            group = groups.pop()
            inner = list(getattr(group, "commands", {}).values())
            groups += [each for each in inner if hasattr(each, "commands")]
            commands += [each for each in inner if not hasattr(each, "commands")]
        assert len(commands) >= 8
        assert all(isinstance(command, OptionsCommand) for command in commands)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("config", "show", "--config", "no.yaml"), "ssd-run: no.yaml: the configuration cannot be read"),
            (("config", "show", "--set", "engine.top_p=7"), "ssd-run: --set engine.top_p: got 7, expected"),
            (("check", "--set", "port=18303"), "--set port: did you mean server.port?"),
            (("check", "--set", "max_tokens=64"), "--set max_tokens: did you mean scheduler.max_tokens?"),
            (("plugins", "--set", "plugins=[no_such_module]"), "ssd-run: plugin 'no_such_module'"),
            (
                ("--set", "server.host=192.0.2.1"),
                "ssd-run: server: cannot listen on 192.0.2.1, port 8000: ",
            ),
            (
                ("--set", "server.port=0", "--trace", "no/folder/trace.json"),
                "ssd-run: --trace no/folder/trace.json: cannot be written",
            ),
            (("config", "show", "--mode", "fast"), "fast"),
            (("check", "--set", "engine.model=no.gguf"), "ssd-run: model 'no.gguf' not found"),
            (
                ("check", "--set", "engine.sampler=magic"),
                "ssd-run: --set engine.sampler: 'magic' is not available; available: coupled",
            ),
            (
                ("check", "--set", "placement.draft=cuda:0"),
                "ssd-run: --set placement.draft: 'cuda:0' needs a GPU and a build of PyTorch with CUDA; ",
            ),
            (
                ("check", "--set", "placement.draft=cpu:4000"),
                "ssd-run: --set placement.draft: 'cpu:4000' names cores [4000], available: ",
            ),
            (
                ("check", "--set", "engine.cache_policy={name: adaptive, slope: 0}"),
                "ssd-run: --set engine.cache_policy: cache policy 'adaptive' cannot be made: option 'slope'",
            ),
            (("swim",), "swim"),
            (("config", "show", "--no-such-option"), "--no-such-option"),
        ],
    )
    def test_a_wrong_start_is_status_2_with_a_message_and_no_traceback(
        self, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """stderr says what is wrong; stdout stays empty."""
        assert run(*arguments) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert "Traceback" not in captured.err
        assert captured.out == ""
