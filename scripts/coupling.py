"""One position's outcome under the two verification rules, and rounds walked along a target's sample.

Coupled: target and draft take the argmax of log p + g and of log q + g with the same noise g, and agree
where the two are equal. Ratio: the draft's own sample x is accepted with probability min(1, p(x)/q(x)),
else the bonus is drawn from max(p - q, 0). In both the draft's guesses of the bonus are its `fan_out`
best tokens, by log q + g and by q; while the sent token can be rejected it is none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssd_runtime.messages import Draw
from ssd_runtime.sampling.draw import draft_step, draw_token


@dataclass(frozen=True, slots=True)
class Chances:
    """Of one position, or summed over several; single draws are 0 or 1.

    accept: the draft's token is accepted. caught: it is rejected and the bonus is among the guesses.
    free: no draft is verified here, and the target's token is among the guesses.
    """

    accept: float = 0.0
    caught: float = 0.0
    free: float = 0.0

    def __add__(self, other: Chances) -> Chances:
        return Chances(self.accept + other.accept, self.caught + other.caught, self.free + other.free)

    def __truediv__(self, count: int) -> Chances:
        return Chances(self.accept / count, self.caught / count, self.free / count)

    @property
    def caught_if_rejected(self) -> float | None:
        """For means: the chance that the bonus is among the guesses after a rejection."""
        return self.caught / (1 - self.accept) if self.accept < 1 else None


def coupled(target: Tensor, draft: Tensor, draw: Draw, position: int, fan_out: int) -> Chances:
    """One draw from logits `[V]` of both with the noise at `position`."""
    token = draw_token(target, draw, position)
    step = draft_step(draft, draw, position, fan_out + 1)
    others = [candidate for candidate in step.candidates if candidate != step.token]
    accepted = token == step.token
    return Chances(accepted, not accepted and token in others[:fan_out], token in step.candidates[:fan_out])


def ratio(p: Tensor, q: Tensor, fan_out: int) -> Chances:
    """The exact chances for probabilities `[V]`, over the draft's sample, the verdict and the bonus."""
    rejected, residual = (q - p).clamp(min=0), (p - q).clamp(min=0)
    best = q.topk(fan_out + 1).indices
    top, spare = best[:fan_out], best[fan_out]
    mass = residual.sum()
    if mass <= 0:
        return Chances(1.0, 0.0, float(p[top].sum()))
    # a rejected token has no residual: leaving it out of the guesses only lets the spare one in
    sent_in_top = rejected[top].sum() / mass
    caught = residual[top].sum() + sent_in_top * residual[spare]
    return Chances(float(torch.minimum(p, q).sum()), float(caught), float(p[top].sum()))


def ratio_given(token: int, p: Tensor, q: Tensor, fan_out: int, uniforms: np.random.Generator) -> Chances:
    """One draw of the rule, given that the token emitted here is `token`, itself a sample of p.

    Of a token's mass p(x) the part min(p, q)(x) is emitted as an accepted draft, the rest as a bonus
    after a rejected sample of max(q - p, 0).
    """
    best = q.topk(fan_out + 1).indices.tolist()
    free = token in best[:fan_out]
    if uniforms.random() * float(p[token]) < float(torch.minimum(p, q)[token]):
        return Chances(True, False, free)
    mass = (q - p).clamp(min=0).numpy().cumsum()
    sent = int(mass.searchsorted(uniforms.random() * mass[-1], side="right"))
    others = [candidate for candidate in best if candidate != sent]
    return Chances(False, token in others[:fan_out], free)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds that were walked: how many, the tokens they emitted, those whose outcome was prepared."""

    count: int = 0
    tokens: int = 0
    hits: float = 0.0

    def __add__(self, other: Rounds) -> Rounds:
        return Rounds(self.count + other.count, self.tokens + other.tokens, self.hits + other.hits)


def walk(places: Sequence[Chances], length: int) -> Rounds:
    """Rounds of `length` drafts along one answer, given each place's draw; an unfinished one is left out."""
    rounds, at = Rounds(), 0
    while True:
        run = 0
        while run < length and at + run < len(places) and places[at + run].accept:
            run += 1
        if at + run >= len(places):
            return rounds
        end = places[at + run]
        rounds += Rounds(1, run + 1, end.caught if run < length else end.free)
        at += run + 1
