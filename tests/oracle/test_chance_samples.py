"""χ² of 200 000 seeds with the real random numbers: rounds of draft, verdict and bonus by both samplers.

A test of these fails once in a million for a right sampler, were the seeds not fixed; they are. What does
not depend on the seed is worked out once, and the random words of all seeds are made together, which a
test holds against one seed at a time; the rest runs as in earnest, seed by seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare
from torch import Tensor

from ssd_kernels import streams
from ssd_kernels.gumbel import TOKEN_STREAM, array_noise, gumbel
from ssd_kernels.philox import MASK32, philox4x32
from ssd_plugins.rejection import RejectionSampler
from ssd_plugins.samplers import CoupledSampler
from ssd_runtime.hooks.kinds import Sampler, Verifier
from ssd_runtime.messages import Draw, Verdict
from ssd_runtime.sampling import chance, ranking
from ssd_runtime.sampling import draw as drawing
from ssd_runtime.sampling.odds import Odds
from ssd_runtime.sampling.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]
SEEDS = 200_000
STEP = 7919 * 2**20 + 1
"""Between two seeds, so that both words of a key change."""
ERROR_RATE = 1e-6
LENGTH = 2
TARGET = torch.tensor(
    [[1.0, 0.2, -0.5, 0.1], [0.0, 1.5, 0.3, -1.0], [-0.7, 0.4, 0.9, 0.2], [0.5, 0.5, -2.0, 1.0]]
)
DRAFT = torch.tensor(
    [[0.1, 1.0, 0.3, -0.8], [1.2, 0.0, 0.0, 0.4], [0.6, -0.2, 0.1, 0.8], [-0.5, 1.5, 0.2, 0.2]]
)
"""Logits of what follows each of four tokens."""
START = 0
LINE = (0, 0)
SAMPLERS: dict[str, Sampler] = {
    "coupled": CoupledSampler(),
    "rejection": RejectionSampler(),
    "rejection, c = 0.3": RejectionSampler(c=0.3, fan_out=2),
}


@cache
def words(stream: int, position: int, first: int = 0, settled: int = 0) -> NDArray[np.int64]:
    """The four words of every seed: `[4, SEEDS]`."""
    seeds = np.arange(SEEDS) * STEP
    counter = [np.full(SEEDS, word) for word in (first, position, settled, stream)]
    return np.stack(philox4x32(tuple(counter), (seeds & MASK32, seeds >> 32)))  # type: ignore[arg-type]


@cache
def noise(position: int) -> Tensor:
    """Of the four tokens for every seed: `[SEEDS, 4]`."""
    return torch.from_numpy(array_noise(words(TOKEN_STREAM, position)).T.copy())


def known_gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Instead of `gumbel`."""
    return noise(position)[seed // STEP][token_ids]


def known_position_word(seed: int, stream: int, position: int) -> int:
    """Instead of `position_word`: the first word of its counter is 0, as is the third."""
    low, high, *_ = words(stream, position)[:, seed // STEP].tolist()
    return int(high << 32 | low)


def known_proposal_word(seed: int, line: tuple[int, int], position: int) -> int:
    """Instead of `proposal_word`."""
    settled, first = line
    low, high, *_ = words(streams.PROPOSAL_STREAM, position, first, settled)[:, seed // STEP].tolist()
    return int(high << 32 | low)


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, worked out once for each of the rows above; of a draw only the temperature counts."""
    known: dict[object, Any] = {}

    def remembered(row: Any, *rest: Any) -> Any:
        scores = getattr(row, "scores", row)
        key = (scores.data_ptr(), *(getattr(each, "temperature", each) for each in rest))
        if key not in known:
            known[key] = function(row, *rest), row  # the row is kept, and with it its place in memory
        return known[key][0]

    return remembered


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All seeds' words at once, and each distribution once."""
    monkeypatch.setattr(ranking, "gumbel", known_gumbel)
    monkeypatch.setattr(streams, "position_word", known_position_word)
    monkeypatch.setattr(streams, "proposal_word", known_proposal_word)
    for module, name in ((drawing, "scaled"), (chance, "scaled"), (chance, "best"), (chance, "odds_of")):
        monkeypatch.setattr(module, name, once(getattr(module, name)))
    yield
    words.cache_clear()
    noise.cache_clear()


def drafted(sampler: Sampler, draw: Draw, last: int) -> tuple[list[int], list[Odds]]:
    """Two tokens, each drawn behind the one before."""
    tokens, odds = [], []
    for position in range(LENGTH):
        [step] = sampler.draft(DRAFT[last][None], [draw], [position], 2)
        tokens.append(last := step.token)
        if step.odds is not None:
            odds.append(step.odds)
    return tokens, odds


def judged(sampler: Sampler, drafts: Sequence[int], odds: Sequence[Odds], draw: Draw) -> Verdict:
    rows: list[Tensor] = [TARGET[last][None] for last in (START, *drafts)]
    if isinstance(sampler, Verifier):
        return sampler.verify(drafts, odds, rows, draw, 0)
    return verify(drafts, (sampler.draw(row, [draw], [i])[0] for i, row in enumerate(rows)))


def two_tokens(name: str, kind: str, seed: int) -> tuple[int, int]:
    """Those of one round; where it gave one token, the next is the sampler's own draw."""
    sampler, draw = SAMPLERS[name], Draw(seed, 1.0, line=LINE)
    drafts, odds = drafted(sampler, draw, START) if kind == "drawn" else ([1, 2], [])
    verdict = judged(sampler, drafts, odds, draw)
    text = [*drafts[: verdict.accepted], verdict.bonus]
    if len(text) == 1:
        text += sampler.draw(TARGET[text[0]][None], [draw], [1])
    return text[0], text[1]


EACH_WAY = pytest.mark.parametrize(
    ("name", "kind"), [*((name, "drawn") for name in SAMPLERS), ("rejection", "certain")]
)


@EACH_WAY
def test_the_quick_way_is_the_slow_way(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    """The same two tokens for 500 seeds."""
    seeds = [i * STEP for i in range(0, SEEDS, SEEDS // 500)]
    slow = [two_tokens(name, kind, seed) for seed in seeds]
    request.getfixturevalue("quick")
    assert [two_tokens(name, kind, seed) for seed in seeds] == slow
    assert torch.equal(known_gumbel(seeds[9], 1, torch.arange(4)), gumbel(seeds[9], 1, torch.arange(4)))


@pytest.mark.usefixtures("quick")
@EACH_WAY
def test_the_first_two_tokens_have_the_targets_frequencies(name: str, kind: str) -> None:
    """Over all pairs."""
    seen = Counter(two_tokens(name, kind, i * STEP) for i in range(SEEDS))
    p = TARGET.double().softmax(-1).numpy()
    expected = (p[START][:, None] * p).ravel()
    counts = np.array([seen[a, b] for a in range(4) for b in range(4)])
    assert chisquare(counts, expected * SEEDS).pvalue > ERROR_RATE
