"""Draws are samples of the softmax, a function of (row, seed, position), and coupled to the draft's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from ssd_kernels.gumbel import gumbel
from ssd_plugins.samplers import CoupledSampler
from ssd_runtime.messages import Draw, Verdict
from ssd_runtime.sampling.draw import UNUSABLE, candidates, draft_step, draft_steps, draw_token, draw_tokens
from ssd_runtime.sampling.verify import verify
from ssd_runtime.sampling.warp import scaled, support

GREEDY = Draw(0, 0.0)
SIZES = (5, 512, 513, 4001)
draws = st.builds(
    Draw,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1e-6, 0.05, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 20, 2000]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-4]),
    min_p=st.sampled_from([0.0, 0.1]),
)
rows = st.builds(
    lambda seed, size, spread: random_logits(seed, size, spread),
    st.integers(0, 10_000),
    st.sampled_from(SIZES),
    st.sampled_from([0.0, 0.3, 3.0, 30.0]),
)


def random_logits(seed: int, size: int, spread: float = 3.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


def full_ranking(logits: Tensor, draw: Draw, position: int) -> Tensor:
    """Every token's perturbed score worked out, and all of them sorted: the definition."""
    scores = scaled(logits, draw.temperature or 1.0)
    if draw.temperature:
        scores = scores + gumbel(draw.seed, position, torch.arange(len(logits)))
    return scores.argsort(descending=True, stable=True)


def by_definition(logits: Tensor, draw: Draw, position: int) -> int:
    if draw.temperature == 0:
        return int(logits.argmax())
    kept = support(scaled(logits, draw.temperature), draw).token_ids
    return next(int(i) for i in full_ranking(logits, draw, position) if i in kept)


@settings(max_examples=80)
@given(rows, draws, st.integers(0, 2**40), st.integers(1, 5))
def test_leaving_noise_out_changes_nothing(logits: Tensor, draw: Draw, position: int, count: int) -> None:
    """Draw, candidates and the step that combines them equal the full computation."""
    token, ranking = by_definition(logits, draw, position), full_ranking(logits, draw, position)[:count]
    assert draw_token(logits, draw, position) == token
    ids, scores = candidates(logits[None], [draw], [position], count)
    assert torch.equal(ids[0], ranking)
    step = draft_step(logits, draw, position, count)
    assert (step.token, step.candidates) == (token, tuple(ranking.tolist()))
    assert step.scores == tuple(scores[0].tolist())


@pytest.mark.parametrize("size", [513, 4001])
def test_banned_tokens_are_never_drawn_and_come_last(size: int) -> None:
    """Three tokens left of many: they are the only draws, and the first candidates."""
    logits = torch.full((size,), -torch.inf)
    logits[[3, 77, 401]] = 0.0
    drawn = {draw_token(logits, Draw(seed, 1.0), 0) for seed in range(50)}
    assert drawn == {3, 77, 401}
    step = draft_step(logits, Draw(1, 1.0), 0, 6)
    assert set(step.candidates[:3]) == drawn
    assert len(set(step.candidates)) == 6
    assert draft_step(logits, GREEDY, 0, 4).candidates == (3, 77, 401, 0)


@pytest.mark.parametrize(
    ("axis", "draw"),
    [
        ("position", Draw(0, 1.0)),
        ("seed", Draw(0, 0.5)),
        ("seed", Draw(0, 2.0, top_k=4)),
        ("position", Draw(0, 1.0, top_p=0.8)),
        ("seed", Draw(0, 1.0, min_p=0.2)),
    ],
)
def test_draws_follow_the_warped_softmax(axis: str, draw: Draw) -> None:
    """χ² over 1200 draws from eight tokens, with an error rate of 1e-6 at these fixed seeds."""
    logits = random_logits(5, 8, 1.0)
    n = 1200
    keys = [(i, 0) if axis == "seed" else (0, i) for i in range(n)]
    drawn = [draw_token(logits, replace(draw, seed=seed), position) for seed, position in keys]
    kept = support(scaled(logits, draw.temperature), draw)
    expected = torch.zeros(8, dtype=torch.float64)
    expected[kept.token_ids] = kept.scores.double().softmax(0)
    counts = np.bincount(drawn, minlength=8)
    possible = expected.numpy() > 0
    assert not counts[~possible].any()
    assert stats.chisquare(counts[possible], n * expected.numpy()[possible]).pvalue > 1e-6


def test_draws_from_a_large_vocabulary_follow_the_softmax() -> None:
    """χ² where most noise is never worked out: forty likely tokens, and four thousand unlikely as one."""
    logits = torch.full((4096,), -6.0)
    logits[::100] = random_logits(9, 41, 1.0)
    drawn = [draw_token(logits, Draw(3, 1.0), position) for position in range(1000)]
    likely = [*range(0, 4096, 100)]
    p = logits.double().softmax(0).numpy()[likely]
    counts = np.bincount(drawn, minlength=4096)[likely]
    observed = [*counts, 1000 - counts.sum()]
    assert stats.chisquare(observed, 1000 * np.append(p, 1 - p.sum())).pvalue > 1e-6


def test_greedy_is_the_argmax_with_the_lower_id_and_ignores_truncation() -> None:
    """Temperature 0 needs no seed and no support."""
    logits = torch.zeros(3000)
    logits[[70, 2000]] = 1.0
    assert draw_tokens(logits[None], [GREEDY], [0]) == [70]
    assert draw_token(logits, Draw(5, 0.0, top_k=1, top_p=0.1, min_p=0.9), 3) == 70


@pytest.mark.parametrize("draw", [Draw(3, 1.0, top_k=1), Draw(3, 1.0, top_p=1e-4), Draw(3, 1e-6)])
def test_extreme_parameters_are_greedy(draw: Draw) -> None:
    """The noise has nothing to choose from, or no weight."""
    logits = random_logits(4, 4001)
    assert {draw_token(logits, draw, position) for position in range(20)} == {int(logits.argmax())}


def test_a_row_does_not_depend_on_the_others() -> None:
    """The same tokens, candidates and scores alone, in a batch, shuffled, and beside rubbish."""
    logits = torch.stack([random_logits(i, 3001) for i in range(6)])
    each = [Draw(i, 0.8, top_p=0.9) for i in range(6)]
    positions = [10, 10, 11, 500, 2**33, 0]
    together = draft_steps(logits, each, positions, 4)
    order = [4, 2, 0, 5, 1, 3]
    shuffled = draft_steps(logits[order], [each[i] for i in order], [positions[i] for i in order], 4)
    assert shuffled == [together[i] for i in order]
    assert [draft_step(*row, 4) for row in zip(logits, each, positions, strict=True)] == together
    logits[1:] = torch.nan
    assert draft_steps(logits, each, positions, 4)[0] == together[0]


def test_unusable_rows_are_marked_alone() -> None:
    """NaN, +inf and all -inf cost their own row only, under every parameter."""
    rows = random_logits(0, 3001).repeat(4, 1)
    rows[0, 3000] = torch.nan
    rows[1, 17] = torch.inf
    rows[2] = -torch.inf
    for draw in (GREEDY, Draw(1, 0.7, top_p=0.9), Draw(1, 1.0)):
        good = draw_token(rows[3], draw, 5)
        assert draw_tokens(rows, [draw] * 4, [5] * 4) == [UNUSABLE, UNUSABLE, UNUSABLE, good]
        steps = draft_steps(rows, [draw] * 4, [5] * 4, 2)
        assert [step.token for step in steps] == [UNUSABLE, UNUSABLE, UNUSABLE, good]
        ids, scores = candidates(rows, [draw] * 4, [5] * 4, 2)
        assert ids[:3].eq(UNUSABLE).all()
        assert scores[:3].eq(-torch.inf).all()
        assert ids[3, 0] >= 0


def test_a_small_vocabulary_has_only_its_own_candidates() -> None:
    """More candidates than tokens are asked for, and every token is given once."""
    for draw in (GREEDY, Draw(1, 1.0)):
        assert sorted(draft_step(random_logits(0, 3), draw, 0, 9).candidates) == [0, 1, 2]


def test_seed_and_position_both_matter() -> None:
    """Twenty seeds, and twenty positions, give many texts; one pair gives one."""
    logits = torch.zeros(1000)
    assert len({draw_token(logits, Draw(seed, 1.0), 0) for seed in range(20)}) > 10
    assert len({draw_token(logits, Draw(0, 1.0), position) for position in range(20)}) > 10
    assert len({draw_token(logits, Draw(0, 1.0), 0) for _ in range(20)}) == 1


def test_coupled_verification_emits_exactly_the_target_distribution() -> None:
    """The text is the target's own whatever the draft, and a near draft is accepted as theory promises."""
    target = random_logits(1, 12, 1.5)
    draft = target + random_logits(2, 12, 0.5)
    accepted = 0
    for seed in range(800):
        draw = Draw(seed, 1.0)
        drafted, own = draw_token(draft, draw, 9), draw_token(target, draw, 9)
        verdict = verify([drafted], [own, draw_token(target, draw, 10)])
        emitted = drafted if verdict.accepted else verdict.bonus
        assert emitted == own
        accepted += verdict.accepted
    distance = (target.softmax(0) - draft.softmax(0)).abs().sum().item() / 2
    lowest = (1 - distance) / (1 + distance)
    assert accepted / 800 > lowest - 5 * (0.25 / 800) ** 0.5


def test_an_equal_draft_is_always_accepted() -> None:
    """Shared noise leaves nothing to chance between equal distributions."""
    logits = random_logits(1, 700)
    for seed in range(30):
        draw = Draw(seed, 1.0, top_p=0.9)
        drafts = [draw_token(logits, draw, position) for position in range(3)]
        targets = draw_tokens(logits.expand(4, -1), [draw] * 4, range(4))
        assert verify(drafts, targets) == Verdict(3, targets[3])


def test_the_coupled_sampler_is_these_functions() -> None:
    """The plugin adds a name and nothing else."""
    logits = random_logits(1, 700).repeat(2, 1)
    each, positions = [GREEDY, Draw(4, 0.7, top_p=0.9)], [3, 4]
    sampler = CoupledSampler()
    assert sampler.name == "coupled"
    assert sampler.draw(logits, each, positions) == draw_tokens(logits, each, positions)
    assert sampler.draft(logits, each, positions, 3) == draft_steps(logits, each, positions, 3)
