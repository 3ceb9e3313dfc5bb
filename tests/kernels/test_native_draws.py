"""Draws of a native pass are the reference's over the same logits; a chain ends where the verdict does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd_kernels.cpu.library import SKIPPED
from ssd_kernels.cpu.matrix import use_threads
from ssd_runtime.messages import Draw, ForwardRow
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.native import Ask
from ssd_runtime.sampling.draw import DraftStep, draft_step, draw_token
from ssd_runtime.testing.toy import cpu_kernels, toy_weights

VOCAB, DRAWN = 197, 150
"""Draws choose among the first tokens only, as with a head that is padded."""
CONFIG = DecoderConfig(
    vocab_size=VOCAB,
    hidden=40,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=12,
    intermediate=44,
    max_position=64,
    tie_embeddings=True,
)
GREEDY = Draw(0, 0.0)


@pytest.fixture(scope="module")
def decoder(isa: str) -> Decoder:
    """A toy on one library, with a token that spoils every row that it is fed to."""
    weights = toy_weights(CONFIG, seed=5, scale=0.5)
    with cpu_kernels(isa):
        decoder = Decoder(CONFIG, weights, Float32Quantizer())
    decoder.embedding[VOCAB - 1] = torch.nan
    return decoder


def rows_of(wanted: Sequence[int]) -> list[ForwardRow]:
    """A row for each number, which wants logits of so many of its six tokens."""
    return [ForwardRow([7 + 11 * i + t for t in range(6)], 0, (i,), n) for i, n in enumerate(wanted)]


def drawn(
    decoder: Decoder, wanted: Sequence[int], asks: Sequence[Ask | None], vocab: int = DRAWN
) -> tuple[list[DraftStep], Tensor | None]:
    """One pass over `rows_of(wanted)`."""
    return decoder.draw(rows_of(wanted), decoder.new_kv(len(wanted), 8), asks, vocab)


def logits_of(decoder: Decoder, wanted: Sequence[int]) -> Tensor:
    """The logits of the same pass without draws."""
    return decoder.forward(rows_of(wanted), decoder.new_kv(len(wanted), 8))


def expected(logits: Tensor, asks: Sequence[Ask | None], vocab: int = DRAWN) -> list[DraftStep]:
    """What the Python draw makes of `logits`, chain by chain."""
    steps, alive = [], True
    for row, ask in zip(logits[:, :vocab], asks, strict=True):
        step = DraftStep(SKIPPED, (), ())
        if alive and ask is not None:
            step = reference(row, ask)
        steps.append(step)
        ends = ask is None or ask.expected < 0
        alive = ends or (alive and ask is not None and step.token == ask.expected)
    return steps


def reference(row: Tensor, ask: Ask) -> DraftStep:
    if ask.count:
        return draft_step(row, ask.draw, ask.position, ask.count)
    return DraftStep(draw_token(row, ask.draw, ask.position), (), ())


some_draws = st.builds(
    Draw,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 0, 3, 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[Ask | None], list[bool]]:
    """Chains for each row: their lengths, what is asked, and whether the draft is to be right there."""
    wanted = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any))
    asks: list[Ask | None] = []
    for length in wanted:
        for place in range(length):
            step = Ask(draw(some_draws), place, 0 if place < length - 1 else -1, draw(st.integers(0, 8)))
            asks.append(step)
        if length and draw(st.booleans()):
            asks[-1] = None
    return wanted, asks, draw(st.lists(st.booleans(), min_size=len(asks), max_size=len(asks)))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches(), threads=st.integers(1, 3))
def test_draws_are_the_references(
    decoder: Decoder, batch: tuple[list[int], list[Ask | None], list[bool]], threads: int
) -> None:
    """Tokens, candidates and scores to the last bit; behind a draft that was not drawn, SKIPPED."""
    wanted, asks, right = batch
    logits = logits_of(decoder, wanted)
    asks = [drafted(*row) for row in zip(logits, asks, right, strict=True)]
    use_threads(threads)
    try:
        steps, returned = drawn(decoder, wanted, asks)
    finally:
        use_threads(1)
    assert steps == expected(logits, asks)
    assert (returned is not None) == (None in asks)
    assert returned is None or torch.equal(returned, logits)


def drafted(row: Tensor, ask: Ask | None, right: bool) -> Ask | None:
    """`ask` with a draft, where its place has one: the token that will be drawn, or the next one."""
    if ask is None or ask.expected < 0:
        return ask
    token = reference(row[:DRAWN], ask).token
    return Ask(ask.draw, ask.position, token if right else (token + 1) % DRAWN, ask.count)


def test_a_chain_stops_behind_the_first_surprise(decoder: Decoder) -> None:
    """Right, right, wrong: the third is drawn, the fourth is not; the next row is another chain."""
    logits = logits_of(decoder, (4, 1))
    best = logits[:, :DRAWN].argmax(1).tolist()
    drafts = [best[0], best[1], (best[2] + 1) % DRAWN, -1, -1]
    steps, _ = drawn(decoder, (4, 1), [Ask(GREEDY, 0, draft) for draft in drafts])
    assert [step.token for step in steps] == [best[0], best[1], best[2], SKIPPED, best[4]]


def test_tokens_past_the_drawn_vocabulary_are_never_drawn(decoder: Decoder) -> None:
    """However likely: with one token to choose from it is that one, and the only candidate."""
    asks = [Ask(Draw(at, 1.0), at, 0 if at < 5 else -1, count=4) for at in range(6)]
    steps, _ = drawn(decoder, (6,), asks, 1)
    assert [step.token for step in steps] == [0] * 6
    assert [step.candidates for step in steps] == [(0,)] * 6
    assert [len(step.scores) for step in steps] == [1] * 6


def test_rows_that_ask_for_nothing_get_their_logits(decoder: Decoder) -> None:
    """All logits come back with the draws of the other rows, which are what they were."""
    asked = [Ask(Draw(1, 1.0), 3), None, Ask(GREEDY, 3), None]
    steps, logits = drawn(decoder, (1, 1, 1, 1), asked)
    alone, nothing = drawn(decoder, (1, 0, 1, 0), [ask for ask in asked if ask])
    assert logits is not None
    assert torch.equal(logits, logits_of(decoder, (1, 1, 1, 1)))
    assert nothing is None
    assert [steps[0].token, steps[1].token, steps[3].token] == [alone[0].token, SKIPPED, SKIPPED]


def test_a_spoilt_row_is_unusable_and_alone_so(decoder: Decoder) -> None:
    """-1 for its draws and no candidates; its neighbour's are its own."""
    rows = [ForwardRow([1, 2], 0, (0,), 1), ForwardRow([1, VOCAB - 1], 0, (1,), 1)]
    asks = [Ask(Draw(4, 1.0), 2, count=3)] * 2
    steps, _ = decoder.draw(rows, decoder.new_kv(2, 8), asks, DRAWN)
    healthy, _ = decoder.draw(rows[:1], decoder.new_kv(2, 8), asks[:1], DRAWN)
    assert steps == [healthy[0], DraftStep(-1, (), ())]


def test_a_pass_that_wants_nothing_draws_nothing(decoder: Decoder) -> None:
    """A chunk of a prompt in the middle."""
    assert drawn(decoder, (0,), []) == ([], None)
