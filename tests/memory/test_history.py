"""Packed histories read like the lists that they were made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.errors import NotAvailableError
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.inventory import check_parts
from ssd_runtime.memory import history
from ssd_runtime.memory.history import PackedTokens, history_codecs
from ssd_runtime.settings.load import load_settings


@given(st.lists(st.integers(0, 2**31 - 1), max_size=300), st.integers(-400, 400), st.integers(-400, 400))
def test_it_reads_as_the_list_does(token_ids: list[int], first: int, last: int) -> None:
    """Length, every token, every slice, and from the end."""
    packed = PackedTokens(token_ids)
    assert len(packed) == len(token_ids)
    assert list(packed) == token_ids
    assert packed[first:last] == token_ids[first:last]
    if token_ids:
        assert packed[-1] == token_ids[-1]


def test_a_text_takes_less_memory() -> None:
    """Than four bytes a token; how much less is for the benchmark to say."""
    text = [(at * at) % 500 for at in range(2000)]
    assert PackedTokens(text).nbytes < 4 * len(text)


def test_without_a_library_there_is_no_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a configuration that names it is refused at the start."""
    monkeypatch.setattr(history, "_zstd", lambda: None)
    assert set(history_codecs()) == {"none"}
    loaded = load_settings(None, ["engine.history_codec=zstd"], environ={})
    with pytest.raises(NotAvailableError, match="history_codec: 'zstd' is not available; available: none"):
        check_parts(loaded, Registries())
