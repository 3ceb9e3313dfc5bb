"""Options of other engines: each becomes a setting of ours, or a hint that names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ssd_runtime.cli.aliases import ALIASES, NEEDLESS, REFUSED, TAKEN
from ssd_runtime.cli.familiar import Alias, translated
from ssd_runtime.cli.main import main, valued_options
from ssd_runtime.errors import ConfigError

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"


def read(*arguments: str) -> list[str]:
    """What a command line is translated to."""
    return translated(arguments, ALIASES, valued_options())


def hint(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (("--max-model-len", "512"), "scheduler.max_tokens=512"),
        (("--max-model-len=512",), "scheduler.max_tokens=512"),
        (("-c", "512"), "scheduler.max_tokens=512"),
        (("-m", "model.gguf"), "engine.model=model.gguf"),
        (("-np", "4"), "engine.max_batch_size=4"),
        (("--max-num-seqs", "4"), "engine.max_batch_size=4"),
        (("-md", "draft.gguf"), "engine.draft_model=draft.gguf"),
        (("--speculative-model", "[ngram]"), "engine.draft_model=ngram"),
        (("--draft-max", "8"), "engine.speculative_length=8"),
        (("--spec-type", "ngram-simple,ngram-mod"), "engine.draft_model=ngram"),
        (("--speculative-algorithm", "NGRAM"), "engine.draft_model=ngram"),
        (("--kv-cache-dtype", "fp8_e4m3"), "engine.kv_cache_dtype=fp8"),
        (("--no-enable-prefix-caching",), "engine.enable_prefix_caching=false"),
        (("--host", "0.0.0.0"), "server.host=0.0.0.0"),
        (("--port", "9000"), "server.port=9000"),
        (("-hf", "owner/name"), "engine.model=owner/name"),
        (("serve", "owner/name"), "engine.model=owner/name"),
    ],
)
def test_a_familiar_option_is_a_setting(arguments: tuple[str, ...], setting: str) -> None:
    """As if `--set` had been written."""
    assert read(*arguments) == ["--set", setting]


def test_options_of_ours_stay_as_they_are() -> None:
    """Neither they nor their values are looked at: a value may look like anything."""
    line = ["pipe", "--stop", "-m", "--seed", "7", "--set", "engine.top_p=0.5", "-"]
    assert read(*line) == line


def test_what_is_so_anyway_is_taken_without_effect() -> None:
    """A start script of another engine may ask for it."""
    assert read("--enable-chunked-prefill", "--tensor-parallel-size", "1", "-ngl", "0", "--jinja") == []
    assert read("--spec-type", "draft-simple") == []


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (
            '{"method": "ngram", "num_speculative_tokens": 4}',
            ["engine.draft_model=ngram", "engine.speculative_length=4"],
        ),
        (
            '{"model": "owner/draft", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}',
            ["engine.draft_model=owner/draft", "engine.speculative_length=5"],
        ),
        (
            '{"method": "draft_model", "model": "a", "quantization": "int8"}',
            ["engine.draft_model=a", 'engine.draft_quantization="int8"'],
        ),
        ('{"model": "[ngram]"}', ["engine.draft_model=ngram"]),
    ],
)
def test_a_speculative_config_names_the_draft_and_its_length(text: str, settings: list[str]) -> None:
    """vLLM's JSON, also in the form of its earlier versions."""
    assert read("--speculative-config", text)[1::2] == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--speculative-config: got no JSON ("),
        ("[1]", "--speculative-config: got [1], expected an object such as"),
        (
            '{"method": "eagle3"}',
            "method: got 'eagle3', expected ngram, suffix, draft_model; engine.draft_model",
        ),
        ('{"num_speculative_tokens": 3}', "model: got None, expected a name; engine.draft_model: self"),
        ('{"method": "ngram", "prompt_lookup_max": 3}', "prompt_lookup_max: not taken here; engine.fallback"),
        ('{"method": "ngram", "wheels": 4}', "wheels: not taken here; expected method, model, "),
        ('{"model": "a", "draft_tensor_parallel_size": 2}', "draft_tensor_parallel_size: not taken here; "),
    ],
)
def test_a_speculative_config_that_means_nothing_here_is_refused(text: str, message: str) -> None:
    """By field, with what there is instead."""
    assert message in hint("--speculative-config", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--tensor-parallel-size", "2"),
            "--tensor-parallel-size: got 2, expected 1; a role runs on one device",
        ),
        (("--gpu-memory-utilization", "0.9"), "--gpu-memory-utilization: engine.kv_cache_tokens says"),
        (("-ngl", "99"), "-ngl: got 99, expected 0; a GPU is placement.target=cuda:0"),
        (("-hf", "owner/name:Q4_K_M"), "-hf: got owner/name:Q4_K_M; for one file of a repository fetch it"),
        (("-c",), "-c: got no value, expected one behind it"),
        (("--enable-prefix-caching=yes",), "--enable-prefix-caching: got the value 'yes', expected none"),
        (("--speculative-algorithm", "EAGLE"), "got EAGLE, expected STANDALONE or NGRAM"),
        (("--spec-type", "draft-mtp"), "got draft-mtp, expected none, draft-simple or ngram-…"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_there_is(arguments: tuple[str, ...], message: str) -> None:
    """The hint names a setting or an option of ours."""
    assert message in hint(*arguments)


@pytest.mark.parametrize("name", [name for alias in REFUSED for name in alias.names])
def test_every_refusal_tells_its_name(name: str) -> None:
    """And none is taken in silence."""
    assert hint(name, "1").startswith(f"{name}: ")


def test_no_alias_hides_an_option_of_ours_and_none_is_there_twice() -> None:
    """One name, one meaning."""
    names = [name for alias in ALIASES for name in alias.names]
    assert len(names) == len(set(names))
    assert not set(names) & (valued_options() | {"--help", "--raw", "--ignore-eos"})


def test_every_setting_that_an_alias_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Their values are checked like any other's."""
    valid = {
        "server.host": "h",
        "engine.model": "m",
        "scheduler.preempt_mode": "swap",
        "scheduler.order": "fcfs",
    }
    for alias in TAKEN:
        for setting in alias.read(_value_for(alias.names[0])):
            key, _, value = setting.partition("=")
            with pytest.raises(SystemExit) as end:
                main(["config", "show", "--set", f"{key}={valid.get(key, value)}"])
            assert not end.value.code, (alias.names, capsys.readouterr().err)


def _value_for(name: str) -> str:
    special = {
        "--speculative-config": '{"method": "ngram"}',
        "--speculative-algorithm": "NGRAM",
        "--spec-type": "none",
        "--kv-cache-dtype": "auto",
        "--logprobs-mode": "raw_logprobs",
        "--speculative-model": "m",
        "--hf-repo": "m",
        "--spec-draft-hf": "m",
        "--quantization": "int8",
        "--temp": "0.5",
    }
    return special.get(name, "16")


def test_stderr_tells_how_a_line_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    """So that later messages, which name settings, are understood; also before the command."""
    with pytest.raises(SystemExit):
        main(["-c", "64", "config", "show", "--max-num-seqs", "2"])
    told = capsys.readouterr()
    assert told.err == "ssd-run: read as --set scheduler.max_tokens=64 --set engine.max_batch_size=2\n"
    shown = yaml.safe_load(told.out)
    assert (shown["scheduler"]["max_tokens"], shown["engine"]["max_batch_size"]) == (64, 2)


def test_a_wrong_value_is_answered_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """By our own message, which names the setting."""
    with pytest.raises(SystemExit) as end:
        main(["check", "--draft-max", "many"])
    assert end.value.code == 2
    assert "--set engine.speculative_length: got 'many', expected" in capsys.readouterr().err


@pytest.mark.parametrize("alias", [*TAKEN, *NEEDLESS], ids=lambda alias: alias.names[0])
def test_the_quick_start_lists_what_is_taken(alias: Alias) -> None:
    """Every name, so that one may search for it."""
    listed = set(re.findall(r"`(-[\w-]+)`", QUICKSTART.read_text(encoding="utf-8")))
    assert set(alias.names) <= listed
