"""Settings: what is accepted, who wins, and what a mistake is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from ssd_runtime.errors import ConfigError
from ssd_runtime.settings.load import Loaded, load_settings
from ssd_runtime.settings.schema import NamedPart, Settings
from ssd_runtime.settings.show import as_yaml

ARTICLE = """\
engine:
  max_batch_size: 8
  speculative_length: 6
  draft_model: "mamba-130m"
  temperature: 0.7
  top_p: 0.9
scheduler:
  policy: "hybrid"
  max_tokens: 4096
  preempt_mode: "recompute"
"""


def load(tmp_path: Path, text: str, *overrides: str, **environ: str) -> Loaded:
    path = tmp_path / "engine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, overrides, environ)


def complaint(tmp_path: Path, text: str, *overrides: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides, **environ)
    return str(caught.value).replace(f"{tmp_path}/", "")


class TestValues:
    def test_the_articles_yaml_loads_as_it_stands(self, tmp_path: Path) -> None:
        """Every value of the article's example arrives where it belongs."""
        settings = load(tmp_path, ARTICLE).settings
        assert settings.engine.draft_model == "mamba-130m"
        assert settings.engine.speculative_length == 6
        assert (settings.engine.temperature, settings.engine.top_p) == (0.7, 0.9)
        assert settings.scheduler.max_tokens == 4096
        assert settings.scheduler.preempt_mode == "recompute"

    def test_no_file_means_defaults(self) -> None:
        """Without a file, a variable or an override, everything has its default."""
        loaded = load_settings(None, environ={})
        assert loaded.settings == Settings()
        assert loaded.origins == {}

    @pytest.mark.parametrize("text", ["", "# nothing\n", "engine:\n", "engine: {}\n"])
    def test_empty_files_and_sections_mean_defaults(self, tmp_path: Path, text: str) -> None:
        """A section whose keys are all commented out is not a mistake."""
        assert load(tmp_path, text).settings == Settings()

    def test_target_model_is_another_name_of_model(self, tmp_path: Path) -> None:
        """The alias sets the same field, and its line is the field's origin."""
        loaded = load(tmp_path, "engine: {target_model: x.gguf}")
        assert loaded.settings.engine.model == "x.gguf"
        assert loaded.origin("engine.model").endswith("engine.yaml:1")

    def test_a_policy_takes_options_from_a_mapping(self, tmp_path: Path) -> None:
        """Everything beside the name is an option of the part, `lambda` too."""
        loaded = load(tmp_path, "engine: {cache_policy: {name: geometric, lambda: 0.8}}")
        assert loaded.settings.engine.cache_policy == NamedPart.model_validate(
            {"name": "geometric", "lambda": 0.8}
        )
        assert loaded.settings.engine.cache_policy.options == {"lambda": 0.8}

    def test_a_fallback_takes_options_from_a_mapping(self, tmp_path: Path) -> None:
        """Beside others that are plain names; shown as it was written."""
        text = "[ngram, {name: suffix, max_cached_requests: 9}]"
        loaded = load(tmp_path, f"engine: {{fallback: {text}}}")
        parts = loaded.settings.engine.fallback
        assert [(part.name, part.options) for part in parts] == [
            ("ngram", {}),
            ("suffix", {"max_cached_requests": 9}),
        ]
        assert "fallback: [ngram, {max_cached_requests: 9, name: suffix}]" in as_yaml(loaded)

    def test_quantization_is_a_name_or_three_keys(self, tmp_path: Path) -> None:
        """A name is one format for every batch; a mapping splits at the threshold."""
        one = load(tmp_path, "engine: {quantization: int8}").settings.engine.quantization
        two = load(tmp_path, "engine: {quantization: {small: none, large: int8, threshold: 4}}")
        assert one.names == ("int8",)
        assert two.settings.engine.quantization.names == ("none", "int8")
        assert two.settings.engine.quantization.threshold == 4

    @pytest.mark.parametrize("place", ["auto", "cpu:0", "cpu:0-3", "cuda:1"])
    def test_every_documented_place_is_accepted(self, tmp_path: Path, place: str) -> None:
        """A place is kept as it was written."""
        assert load(tmp_path, f"placement: {{draft: '{place}'}}").settings.placement.draft == place

    def test_a_place_may_be_several_devices(self, tmp_path: Path) -> None:
        """A list of devices is a tuple afterwards, since settings are frozen."""
        loaded = load(tmp_path, "placement: {target: ['cuda:2', 'cuda:3']}")
        assert loaded.settings.placement.target == ("cuda:2", "cuda:3")

    def test_settings_cannot_be_changed(self) -> None:
        """Assignment fails at every level."""
        with pytest.raises(ValidationError, match="frozen"):
            Settings().engine.model = "other"  # type: ignore[misc]  # the point of the test


class TestPrecedence:
    FILE = "engine:\n  max_batch_size: 2\n"

    def test_the_file_beats_the_default(self, tmp_path: Path) -> None:
        """A value of the file counts, and file and line are its origin."""
        loaded = load(tmp_path, self.FILE)
        assert loaded.settings.engine.max_batch_size == 2
        assert loaded.origin("engine.max_batch_size") == f"{tmp_path}/engine.yaml:2"
        assert loaded.origin("engine.model") == "default"

    def test_the_environment_beats_the_file(self, tmp_path: Path) -> None:
        """A variable counts more than a line."""
        loaded = load(tmp_path, self.FILE, SSD_ENGINE__MAX_BATCH_SIZE="3")
        assert loaded.settings.engine.max_batch_size == 3
        assert loaded.origin("engine.max_batch_size") == "SSD_ENGINE__MAX_BATCH_SIZE"

    def test_the_command_line_beats_all(self, tmp_path: Path) -> None:
        """The last --set of a key counts."""
        loaded = load(
            tmp_path,
            self.FILE,
            "engine.max_batch_size=4",
            "engine.max_batch_size=5",
            SSD_ENGINE__MAX_BATCH_SIZE="3",
        )
        assert loaded.settings.engine.max_batch_size == 5
        assert loaded.origin("engine.max_batch_size") == "--set engine.max_batch_size"

    def test_an_override_may_be_a_list_or_a_mapping(self, tmp_path: Path) -> None:
        """Values are YAML, also on the command line and in the environment."""
        loaded = load(
            tmp_path, "", "engine.fallback=[ngram, suffix]", SSD_ENGINE__CACHE_POLICY="{name: x, a: 1}"
        )
        assert [part.name for part in loaded.settings.engine.fallback] == ["ngram", "suffix"]
        assert loaded.settings.engine.cache_policy.options == {"a": 1}

    def test_one_key_of_a_mapping_may_be_overridden(self, tmp_path: Path) -> None:
        """The other keys stay, and each key knows who gave it."""
        text = "engine:\n  quantization: {small: none, large: int8, threshold: 4}\n"
        loaded = load(tmp_path, text, "engine.quantization.threshold=2")
        assert loaded.settings.engine.quantization.threshold == 2
        assert loaded.settings.engine.quantization.large == "int8"
        assert loaded.origin("engine.quantization.threshold") == "--set engine.quantization.threshold"

    def test_a_mapping_given_whole_replaces_the_one_before(self, tmp_path: Path) -> None:
        """Another policy does not inherit the options of the one in the file."""
        text = "engine:\n  cache_policy: {name: geometric, lambda: 0.8}\n"
        loaded = load(tmp_path, text, "engine.cache_policy={name: adaptive}")
        assert loaded.settings.engine.cache_policy == NamedPart(name="adaptive")
        assert loaded.origin("engine.cache_policy.name") == "--set engine.cache_policy"

    def test_a_key_of_a_mapping_outlives_the_mapping_in_an_earlier_place(self, tmp_path: Path) -> None:
        """The variable's mapping replaces the file's, and the command line changes one key of it."""
        loaded = load(
            tmp_path,
            "engine:\n  quantization: {small: a, large: b, threshold: 9}\n",
            "engine.quantization.threshold=2",
            SSD_ENGINE__QUANTIZATION="{small: c, large: d, threshold: 3}",
        )
        assert loaded.settings.engine.quantization.names == ("c", "d")
        assert loaded.settings.engine.quantization.threshold == 2

    def test_settings_made_in_code_read_no_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a program passes is what it gets, whatever the process's variables say."""
        monkeypatch.setenv("SSD_LOG__LEVEL", "debug")
        monkeypatch.setenv("LOG", '{"level": "error"}')
        monkeypatch.setenv("PLUGINS", '["x"]')
        assert Settings().log.level == "info"
        assert Settings().plugins == ()
        assert load_settings(None).settings.log.level == "debug"

    def test_other_variables_are_not_ours(self, tmp_path: Path) -> None:
        """Only the prefix SSD_ is looked at."""
        assert load(tmp_path, "", PATH="/bin", SSDX="1").settings == Settings()

    def test_text_that_is_no_yaml_stands_for_itself(self, tmp_path: Path) -> None:
        """A value such as `@home` needs no quotes on the command line."""
        assert load(tmp_path, "", "engine.model=@home").settings.engine.model == "@home"


class TestMistakes:
    def test_a_number_out_of_range_names_file_line_key_and_limits(self, tmp_path: Path) -> None:
        """The format that the contract gives, to the letter."""
        text = "engine:\n  model: m\n  # K\n\n  speculative_length: -1\n"
        assert complaint(tmp_path, text) == (
            "engine.yaml:5 engine.speculative_length: got -1, expected 0 to 64"
        )

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("engine: {top_p: 0}", "engine.top_p: got 0, expected above 0, up to 1"),
            ("engine: {top_p: .nan}", "engine.top_p: got nan, expected a number, above 0, up to 1"),
            ("engine: {temperature: hot}", "engine.temperature: got 'hot', expected a number, 0 to 2"),
            (
                "engine: {max_batch_size: true}",
                "engine.max_batch_size: got True, expected an integer, 1 to 1024",
            ),
            (
                "engine: {max_batch_size: 2.0}",
                "engine.max_batch_size: got 2.0, expected an integer, 1 to 1024",
            ),
            (
                "engine: {kv_cache_tokens: x}",
                "engine.kv_cache_tokens: got 'x', expected an integer, at least 1",
            ),
            (
                "engine: {enable_prefix_caching: 1}",
                "engine.enable_prefix_caching: got 1, expected true or false",
            ),
            ("engine: {fallback: ngram}", "engine.fallback: got 'ngram', expected a list"),
            ("engine: {cache_policy: 5}", "engine.cache_policy: got 5, expected a name or a mapping"),
            ("engine: {model: null}", "engine.model: got None, expected a string"),
            ("log: {level: loud}", "log.level: got 'loud', expected one of debug, info, warning, error"),
            (
                "scheduler: {policy: fast}",
                "scheduler.policy: got 'fast', expected one of autoregressive, speculative, ssd, hybrid",
            ),
            ("server: 5", "server: got 5, expected a mapping"),
            (
                "placement: {target: 'gpu'}",
                "placement.target: got 'gpu', "
                "expected auto, cpu:0, cpu:0-3, cuda:0 or a list like [cuda:2, cuda:3]",
            ),
            (
                "engine: {quantization: {small: none, large: int8}}",
                "engine.quantization.threshold: missing, and it has no default",
            ),
            (
                "engine: {max_batch_size: 600}",
                "scheduler.max_batch_tokens: got 512, expected at least engine.max_batch_size, which is 600",
            ),
        ],
    )
    def test_what_was_got_and_what_is_allowed(self, tmp_path: Path, line: str, expected: str) -> None:
        """Each kind of mistake has one line, with key, value and limits."""
        _, _, text = complaint(tmp_path, line).partition(" ")
        assert text == expected

    def test_all_mistakes_are_listed(self, tmp_path: Path) -> None:
        """One start shows them all, one a line."""
        lines = complaint(tmp_path, "engine: {top_p: 2}\nserver: {port: -1}\n").splitlines()
        assert [line.split(" ")[1] for line in lines] == ["engine.top_p:", "server.port:"]

    def test_an_unknown_key_gets_a_suggestion(self, tmp_path: Path) -> None:
        """The near name comes first, then every allowed one."""
        text = complaint(tmp_path, "log:\n  levl: info\n")
        assert text == "engine.yaml:2 log.levl: unknown key; did you mean 'level'? allowed: format, level"

    def test_an_unknown_section_names_the_known_ones(self, tmp_path: Path) -> None:
        """A misspelt section is an error at its own line."""
        assert complaint(tmp_path, "log: {}\nengin: {x: 1}\n").startswith(
            "engine.yaml:2 engin: unknown key; did you mean 'engine'?"
        )

    def test_a_key_given_twice_names_both_lines(self, tmp_path: Path) -> None:
        """YAML would silently keep the last one."""
        text = complaint(tmp_path, "engine:\n  top_p: 1\n  model: x\n  top_p: 0.5\n")
        assert text == "engine.yaml:4 engine.top_p: given twice, first on line 2; keep one"

    def test_model_under_both_names_is_given_twice(self, tmp_path: Path) -> None:
        """The alias and the name are one key."""
        text = complaint(tmp_path, "engine:\n  model: x\n  target_model: y\n")
        assert text == "engine.yaml:3 engine.target_model: the same as engine.model on line 2; keep one"

    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        """It is never taken for an empty one."""
        with pytest.raises(
            ConfigError, match=r"nothing\.yaml: the configuration cannot be read: No such file"
        ):
            load_settings(tmp_path / "nothing.yaml", environ={})

    @pytest.mark.parametrize(
        ("text", "start"),
        [
            ("engine: [1\n", "engine.yaml:2 is not YAML: "),
            ("a: b: c\n", "engine.yaml:1 is not YAML: "),
            ("\0", "engine.yaml is not YAML: "),
            ("- 1\n", "engine.yaml:1 got [1], expected sections"),
            ("&a {x: *a}\n", "engine.yaml: nested too deeply"),
            ("on: 1\n", "engine.yaml:1 True: unknown key"),
        ],
    )
    def test_what_is_not_a_configuration_says_where(self, tmp_path: Path, text: str, start: str) -> None:
        """Broken YAML and odd YAML are ConfigErrors, not tracebacks."""
        assert complaint(tmp_path, text).startswith(start)

    def test_a_file_that_is_not_text_is_an_error(self, tmp_path: Path) -> None:
        """A model given as the configuration is refused politely."""
        path = tmp_path / "model.gguf"
        path.write_bytes(b"GGUF\xff\xfe\x00")
        with pytest.raises(ConfigError, match="it is not UTF-8 text"):
            load_settings(path, environ={})

    @pytest.mark.parametrize("name", ["SSD_ENGIN__MODEL", "SSD_MODEL", "SSD_ENGINE__MODLE"])
    def test_an_unknown_variable_is_an_error_that_names_it(self, tmp_path: Path, name: str) -> None:
        """A misspelt variable would otherwise be silently ignored."""
        assert complaint(tmp_path, "", **{name: "x"}).startswith(f"{name} ")

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("SSD_ENGINE_MODEL", "SSD_ENGINE__MODEL"),
            ("SSD_ENGINE_MAX_BATCH_SIZE", "SSD_ENGINE__MAX_BATCH_SIZE"),
            ("SSD_SCHEDULER__POLCY", "SSD_SCHEDULER__POLICY"),
            ("SSD_ENGINE__QUANTIZATION__TRESHOLD", "SSD_ENGINE__QUANTIZATION__THRESHOLD"),
        ],
    )
    def test_an_unknown_variable_gets_a_suggestion(self, tmp_path: Path, name: str, meant: str) -> None:
        """The whole variable as it should be written; one underscore too few is the usual mistake."""
        text = "engine: {quantization: {small: a, large: b, threshold: 9}}"
        assert f": unknown key; did you mean {meant!r}? allowed: " in complaint(tmp_path, text, **{name: "1"})

    def test_names_of_sections_are_written_small(self, tmp_path: Path) -> None:
        """`Engine` is no other spelling of `engine`: one of the two would be lost."""
        assert "Engine: unknown key; did you mean 'engine'?" in complaint(tmp_path, "Engine: {top_p: 1}")

    def test_a_wrong_variable_and_override_name_themselves(self, tmp_path: Path) -> None:
        """Whoever gave the value is named, not the file."""
        text = complaint(tmp_path, "", "engine.top_p=2", SSD_ENGINE__BLOCK_SIZE="0")
        assert text.splitlines() == [
            "--set engine.top_p: got 2, expected above 0, up to 1",
            "SSD_ENGINE__BLOCK_SIZE engine.block_size: got 0, expected 1 to 1024",
        ]

    @pytest.mark.parametrize("override", ["engine.top_p", "=1", ""])
    def test_an_override_needs_key_and_value(self, tmp_path: Path, override: str) -> None:
        """The message shows how it is done."""
        assert "expected key=value" in complaint(tmp_path, "", override)


class TestShow:
    def test_what_is_shown_loads_to_the_same_settings(self, tmp_path: Path) -> None:
        """`config show` prints a configuration file."""
        loaded = load(
            tmp_path,
            "engine: {cache_policy: {name: geometric, lambda: 0.8}, model: 'a: b # c'}",
            "engine.quantization={small: none, large: int8, threshold: 4}",
            "placement.target=['cuda:0', 'cuda:1']",
        )
        assert load(tmp_path, as_yaml(loaded)).settings == loaded.settings

    def test_each_value_shows_its_origin(self, tmp_path: Path) -> None:
        """File and line, variable, override or default, as a comment."""
        shown = as_yaml(load(tmp_path, "engine:\n  top_p: 1\n", SSD_LOG__LEVEL="debug"))
        assert f"  top_p: 1.0  # {tmp_path}/engine.yaml:2\n" in shown
        assert "  level: debug  # SSD_LOG__LEVEL\n" in shown
        assert "  block_size: 16  # default\n" in shown


def test_every_setting_has_a_description() -> None:
    """The reference in docs/ and the JSON schema are made of them."""

    def undescribed(model: type[BaseModel]) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            if not field.description:
                found.append(f"{model.__name__}.{name}")
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                found.extend(undescribed(field.annotation))
        return found

    assert undescribed(Settings) == []
