"""The transform accepts what is right and rejects what is wrong; a token's class is its place."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.pit import BONUS, HIT, MISS, judge, origins, transform
from ssd_runtime.stats import RoundRecord

P = np.array([0.1, 0.0, 0.6, 0.3])


def verdict(tokens: list[int]) -> bool:
    uniforms = np.random.default_rng(1)
    values = [transform(token, P, uniforms) for token in tokens]
    return judge("all", [[value for value in values if value is not None]]).passes


def test_samples_of_p_pass() -> None:
    """2000 draws with a fixed seed; one seed in 400 would fail."""
    assert verdict(np.random.default_rng(2).choice(4, size=2000, p=P).tolist())


@pytest.mark.parametrize("wrong", [[0.2, 0.0, 0.5, 0.3], [0.1, 0.0, 0.5, 0.4], [0.0, 0.0, 0.7, 0.3]])
def test_samples_of_another_distribution_fail(wrong: list[float]) -> None:
    """A tenth of the mass in the wrong place is KS·√n of 4.5 on average."""
    assert not verdict(np.random.default_rng(2).choice(4, size=2000, p=wrong).tolist())


def test_tokens_that_repeat_fail() -> None:
    """The right frequencies in the wrong order: each token follows an equal one."""
    tokens = np.random.default_rng(2).choice(4, size=1000, p=P)
    assert not verdict(np.repeat(tokens, 2).tolist())


def test_impossible_token_has_no_transform() -> None:
    """Probability zero is reported, not smoothed over."""
    assert transform(1, P, np.random.default_rng(0)) is None


def test_nothing_judged_is_no_pass() -> None:
    """An empty class proves nothing."""
    assert not judge("hit", []).passes


def test_places_are_named_by_what_was_verified_there() -> None:
    """A rejected draft's place belongs to its proposal; only behind the whole proposal is a bonus."""
    rounds = [
        RoundRecord("a", "none", False, proposed=0, accepted=0, emitted=1),
        RoundRecord("a", "cache", True, proposed=3, accepted=1, emitted=2),
        RoundRecord("a", "cache", True, proposed=2, accepted=2, emitted=3),
        RoundRecord("a", "ngram", True, proposed=1, accepted=0, emitted=1),
        RoundRecord("a", "cache", True, proposed=2, accepted=2, emitted=2),
    ]
    assert origins(rounds) == [MISS, HIT, HIT, HIT, HIT, BONUS, MISS, HIT, HIT]
