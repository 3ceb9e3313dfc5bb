"""What a file that is read again changes, what needs a restart, and what keeps holding."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_runtime.errors import ConfigError
from ssd_runtime.settings.difference import RELOADABLE, Change, Difference, difference, followed
from ssd_runtime.settings.load import load_settings
from ssd_runtime.settings.schema import Settings
from ssd_runtime.settings.show import as_yaml


def found(*overrides: str, before: tuple[str, ...] = ()) -> Difference:
    old, new = (load_settings(None, given, environ={}).settings for given in (before, overrides))
    return difference(old, new)


def test_the_same_settings_differ_in_nothing() -> None:
    """However they are written."""
    assert found() == Difference()
    assert found("engine.sampler={name: coupled}", "engine.fallback=[{name: ngram}]") == Difference()


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("engine.draft_model=ngram", Change("engine.draft_model", "self", "ngram")),
        ("engine.draft_quantization=none", Change("engine.draft_quantization", "int8", "none")),
        ("engine.fallback=[suffix, draft]", Change("engine.fallback", "[ngram]", "[suffix, draft]")),
        (
            "engine.sampler={name: rejection, c: 0.5}",
            Change("engine.sampler", "coupled", "{c: 0.5, name: rejection}"),
        ),
        ("engine.cache_policy=uniform", Change("engine.cache_policy", "adaptive", "uniform")),
        ("engine.speculative_length=3", Change("engine.speculative_length", "6", "3")),
        ("engine.top_p=1.0", Change("engine.top_p", "0.9", "1.0")),
        ("scheduler.policy=ssd", Change("scheduler.policy", "hybrid", "ssd")),
        ("plugins=[mine]", Change("plugins", "[]", "[mine]")),
    ],
)
def test_what_a_running_engine_can_follow_is_changed(override: str, change: Change) -> None:
    """The five kinds of parts, the policy and what belongs to them; values as in YAML."""
    assert found(override) == Difference(changed=(change,))


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("server.port=9000", Change("server.port", "8000", "9000")),
        ("engine.model=other", Change("engine.model", "smollm2-135m", "other")),
        ("engine.target_model=other", Change("engine.model", "smollm2-135m", "other")),
        ("engine.quantization=int8", Change("engine.quantization", "none", "int8")),
        ("engine.kv_cache_tokens=512", Change("engine.kv_cache_tokens", "null", "512")),
        ("placement.target=cpu:0", Change("placement.target", "auto", "cpu:0")),
        ("scheduler.order=priority", Change("scheduler.order", "fcfs", "priority")),
        ("log.level=debug", Change("log.level", "info", "debug")),
    ],
)
def test_everything_else_needs_a_restart(override: str, change: Change) -> None:
    """By its name, with both values."""
    assert found(override) == Difference(needs_restart=(change,))


def test_a_key_is_never_shown() -> None:
    """That it is another one is."""
    [change] = found("server.api_key=new", before=("server.api_key=old",)).needs_restart
    assert change.setting == "server.api_key"
    assert "old" not in change.old
    assert "new" not in change.new


def test_several_changes_come_in_the_schemas_order() -> None:
    """Each on its own side."""
    given = ("server.port=1", "scheduler.policy=ssd", "engine.draft_model=none", "engine.model=m")
    two = found(*given)
    assert [change.setting for change in two.changed] == ["engine.draft_model", "scheduler.policy"]
    assert [change.setting for change in two.needs_restart] == ["engine.model", "server.port"]


def test_what_can_be_followed_is_a_setting() -> None:
    """No key of the list is misspelt."""
    keys = set(Settings.model_fields) | {
        f"{section}.{key}" for section, value in Settings().model_dump().items() if value for key in value
    }
    assert keys >= RELOADABLE


def test_what_cannot_be_followed_stays_as_it_was() -> None:
    """So that it is named again at the next reload."""
    old = load_settings(None, environ={})
    new = load_settings(None, ["server.port=9000", "scheduler.policy=ssd", "plugins=[json]"], environ={})
    now = followed(old, new)
    assert (now.settings.server.port, now.settings.scheduler.policy) == (8000, "ssd")
    assert now.settings.plugins == ("json",)
    assert difference(now.settings, new.settings).needs_restart == (Change("server.port", "8000", "9000"),)
    assert followed(old, old).settings == old.settings


class TestReadingAgain:
    def test_the_same_file_is_read_and_overrides_keep_holding(self, tmp_path: Path) -> None:
        """And so does the environment that there was."""
        path = tmp_path / "engine.yaml"
        path.write_text("engine: {top_p: 0.5, temperature: 0.5, draft_model: ngram}", encoding="utf-8")
        loaded = load_settings(path, ["engine.top_p=0.6"], {"SSD_ENGINE__TEMPERATURE": "0.1"})
        path.write_text("engine: {top_p: 0.7, temperature: 0.7, draft_model: none}", encoding="utf-8")
        engine = loaded.again().settings.engine
        assert (engine.top_p, engine.temperature, engine.draft_model) == (0.6, 0.1, "none")

    def test_it_can_be_read_again_and_again(self, tmp_path: Path) -> None:
        """What was followed knows its sources too."""
        path = tmp_path / "engine.yaml"
        path.write_text("engine: {top_p: 0.5}", encoding="utf-8")
        first = load_settings(path, ["log.level=debug"], {})
        for top_p in (0.6, 0.7):
            path.write_text(f"engine: {{top_p: {top_p}}}", encoding="utf-8")
            first = followed(first, first.again())
            assert (first.settings.engine.top_p, first.settings.log.level) == (top_p, "debug")
            assert f"top_p: {top_p}  # {path}:1" in as_yaml(first)

    def test_without_a_file_there_is_nothing_new(self) -> None:
        """The defaults are always the same."""
        loaded = load_settings(None, ["engine.top_p=0.6"], {})
        assert loaded.again() == loaded

    def test_a_file_that_is_wrong_by_now_is_refused_as_at_the_start(self, tmp_path: Path) -> None:
        """With the line, and when it is gone too."""
        path = tmp_path / "engine.yaml"
        path.write_text("", encoding="utf-8")
        loaded = load_settings(path, [], {})
        path.write_text("engine:\n  speculative_length: -1\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"engine.yaml:2 engine.speculative_length: got -1"):
            loaded.again()
        path.unlink()
        with pytest.raises(ConfigError, match=r"engine.yaml"):
            loaded.again()
