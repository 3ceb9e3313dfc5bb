"""Names that nothing provides stop the start, with file, line, key and what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_runtime.errors import NotAvailableError
from ssd_runtime.settings.available import check_available
from ssd_runtime.settings.load import load_settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engine.sampler", "magic"),
        ("engine.cache_policy", "magic"),
        ("engine.draft_quantization", "magic"),
        ("engine.draft_model", "magic"),
        ("engine.kv_cache_dtype", "fp8"),
        ("scheduler.order", "magic"),
        ("engine.history_codec", "zstd"),
        ("scheduler.policy", "ssd"),
    ],
)
def test_a_name_without_a_part_is_refused_where_it_stands(tmp_path: Path, key: str, value: str) -> None:
    """The message is the contract's, to the letter."""
    section, name = key.split(".")
    path = tmp_path / "engine.yaml"
    path.write_text(f"{section}:\n  {name}: {value}\n")
    with pytest.raises(NotAvailableError) as caught:
        check_available(load_settings(path, environ={}), {key: ("b", "a")})
    assert str(caught.value) == f"{path}:2 {key}: {value!r} is not available; available: a, b"


def test_every_missing_name_is_listed() -> None:
    """Both formats of a split and every fallback are looked at."""
    loaded = load_settings(
        None,
        ["engine.quantization={small: x, large: y, threshold: 2}", "engine.fallback=[ngram, z]"],
        environ={},
    )
    with pytest.raises(NotAvailableError) as caught:
        check_available(loaded, {"engine.quantization": (), "engine.fallback": ("ngram",)})
    assert str(caught.value).splitlines() == [
        "--set engine.fallback: 'z' is not available; available: ngram",
        "--set engine.quantization: 'x' is not available; available: none",
        "--set engine.quantization: 'y' is not available; available: none",
    ]


def test_a_draft_may_also_be_a_model() -> None:
    """Whoever knows models decides about a name that is no part's."""
    loaded = load_settings(None, ["engine.draft_model=mamba-130m"], environ={})
    asked: list[str] = []

    def is_draft(name: str) -> bool:
        asked.append(name)
        return True

    check_available(loaded, {"engine.draft_model": ("ngram",)}, is_draft)
    assert asked == ["mamba-130m"]


def test_keys_that_nobody_speaks_for_are_not_checked() -> None:
    """The caller decides what is checked."""
    check_available(load_settings(None, environ={}), {})
