"""χ² of 200 000 seeds with the real random numbers: rounds of draft, verdict and bonus by both samplers.

A test of these fails once in a million for a right sampler, were the seeds not fixed; they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from ssd_plugins.rejection import RejectionSampler
from ssd_plugins.samplers import CoupledSampler
from ssd_runtime.hooks.kinds import Sampler, Verifier
from ssd_runtime.messages import Draw, Verdict
from ssd_runtime.sampling.odds import Odds
from ssd_runtime.sampling.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
SEEDS = 200_000
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
SAMPLERS: dict[str, Sampler] = {
    "coupled": CoupledSampler(),
    "rejection": RejectionSampler(),
    "rejection, c = 0.3": RejectionSampler(c=0.3, fan_out=2),
}


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


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "drawn") for name in SAMPLERS), ("rejection", "certain")]
)
def test_the_first_two_tokens_have_the_targets_frequencies(name: str, kind: str) -> None:
    """Over all pairs; where a round gave one token, the next is the sampler's own draw."""
    sampler, seen = SAMPLERS[name], Counter[tuple[int, int]]()
    for seed in range(SEEDS):
        draw = Draw(seed * 7919, 1.0, line=(0, 0))
        drafts, odds = drafted(sampler, draw, START) if kind == "drawn" else ([1, 2], [])
        verdict = judged(sampler, drafts, odds, draw)
        text = [*drafts[: verdict.accepted], verdict.bonus]
        if len(text) == 1:
            text += sampler.draw(TARGET[text[0]][None], [draw], [1])
        seen[text[0], text[1]] += 1
    p = TARGET.double().softmax(-1).numpy()
    expected = (p[START][:, None] * p).ravel()
    counts = np.array([seen[a, b] for a in range(4) for b in range(4)])
    assert chisquare(counts, expected * SEEDS).pvalue > ERROR_RATE
