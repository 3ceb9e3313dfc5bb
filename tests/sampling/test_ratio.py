"""The ratio rule over every way its random numbers can fall, in exact fractions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest

from ssd_kernels.streams import ACCEPT_STREAM, BONUS_STREAM, RESIDUAL_STREAM
from ssd_runtime.messages import Verdict
from ssd_runtime.sampling import ratio
from ssd_runtime.sampling.draw import UNUSABLE
from ssd_runtime.sampling.odds import Odds, certain, weighted
from ssd_runtime.sampling.ratio import accepts, residual, verify_by_ratio

ACCEPT_WORDS = [(k << 64) // 4 for k in range(4)]
"""The left ends of quarters: where a draft is at the border, `<` and `<=` differ."""
DRAW_WORDS = [((2 * k + 1) << 64) // 24 for k in range(12)]
"""The middles of twelfths: all that is drawn has quarters, thirds or halves."""
FIRST = 7
Shares = tuple[int, ...]
P: tuple[Shares, ...] = ((1, 1, 2, 0), (0, 2, 1, 1), (4, 0, 0, 0), (1, 0, 1, 2))
Q: tuple[Shares, ...] = ((1, 1, 2, 0), (2, 2, 0, 0), (0, 0, 2, 2), (0, 4, 0, 0), (1, 1, 1, 1))


def odds(shares: Shares) -> Odds:
    """Tokens 0, 1, … with these masses."""
    return weighted(np.arange(len(shares)), np.array(shares))


def one_round(p: Shares, q: Shares, after: Shares, *, drawn: bool = True) -> dict[tuple[int, ...], Fraction]:
    """What is emitted, with its probability, where one draft of `q` is verified.

    after: the distribution behind the draft. Not `drawn`: each draft is proposed as if it were certain.
    """
    emitted: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    proposed = [odds(q)] if drawn else []
    for draft, share in enumerate(q):
        for accept, draw in itertools.product(ACCEPT_WORDS, DRAW_WORDS if share else ()):
            words = {ACCEPT_STREAM: accept, RESIDUAL_STREAM: draw, BONUS_STREAM: draw}
            targets = (odds(p), odds(after))
            verdict = verify_by_ratio([draft], proposed, targets, FIRST, lambda one, at, w=words: w[one])  # type: ignore[misc]
            text = (*[draft][: verdict.accepted], verdict.bonus)
            emitted[text] += Fraction(share, 4 * len(ACCEPT_WORDS) * len(DRAW_WORDS))
    return {text: chance for text, chance in emitted.items() if chance}


def first_tokens(emitted: dict[tuple[int, ...], Fraction]) -> list[Fraction]:
    return [sum((c for text, c in emitted.items() if text[0] == token), Fraction(0)) for token in range(4)]


def exact(p: Shares) -> list[Fraction]:
    return [Fraction(share, 4) for share in p]


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("q", Q)
@pytest.mark.parametrize("p", P)
def test_the_emitted_token_is_distributed_as_p_whatever_q(p: Shares, q: Shares, drawn: bool) -> None:
    """Drawn from q, or certain: both are exact; what follows an accepted draft is a sample too."""
    emitted = one_round(p, q, (2, 1, 1, 0), drawn=drawn)
    assert first_tokens(emitted) == exact(p)
    accepted = {text: chance for text, chance in emitted.items() if len(text) == 2}
    for token in range(4):
        mass = sum((chance for text, chance in accepted.items() if text[0] == token), Fraction(0))
        following = [accepted.get((token, after), Fraction(0)) for after in range(4)]
        assert following == [mass * share for share in exact((2, 1, 1, 0))]


@pytest.mark.parametrize("q", Q)
@pytest.mark.parametrize("p", P)
def test_as_many_are_accepted_as_can_be(p: Shares, q: Shares) -> None:
    """Σ min(p, q) of drafts that were drawn."""
    accepted = sum(chance for text, chance in one_round(p, q, p).items() if len(text) == 2)
    assert accepted == Fraction(sum(map(min, p, q)), 4)


def argmax_accepts(uniform: float, p: float, q: float) -> bool:
    """A draft is accepted where the target likes it best."""
    return p >= 0.5


WRONG: dict[str, Callable[[float, float, float], bool]] = {
    "at most instead of below": lambda u, p, q: u * q <= p,
    "greedy": argmax_accepts,
    "always": lambda u, p, q: True,
    "p over 1 though q was drawn": lambda u, p, q: u < p,
    "upside down": lambda u, p, q: u * p < q,
    "with an epsilon": lambda u, p, q: u < (p + 0.1) / (q + 0.1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_acceptance_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The enumeration above turns red for each of them."""
    monkeypatch.setattr(ratio, "accepts", WRONG[name])
    assert any(first_tokens(one_round(p, q, p)) != exact(p) for p in P for q in Q)


@pytest.mark.parametrize("name", ["p itself", "q left out where it is certain"])
def test_wrong_residuals_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rejected draft nothing may come back."""
    monkeypatch.setattr(ratio, "residual", lambda p, q: p)
    drawn = name == "p itself"
    assert any(first_tokens(one_round(p, q, p, drawn=drawn)) != exact(p) for p in P for q in Q)


def test_a_number_shared_by_two_decisions_is_found() -> None:
    """The word of acceptance chooses the residual's token as well."""
    p, q = (1, 1, 1, 1), (2, 2, 0, 0)
    seen: dict[int, Fraction] = defaultdict(Fraction)
    for draft, word in itertools.product((0, 1), DRAW_WORDS):
        verdict = verify_by_ratio([draft], [odds(q)], (odds(p), odds(p)), 0, lambda *_, w=word: w)
        seen[draft if verdict.accepted else verdict.bonus] += Fraction(1, 2 * len(DRAW_WORDS))
    assert [seen[token] for token in range(4)] != exact(p)


@pytest.mark.parametrize(
    ("uniform", "p", "q", "accepted"),
    [
        (0.0, 0.0, 0.5, False),
        (0.5, 0.25, 0.5, False),
        (0.4999, 0.25, 0.5, True),
        (1 - 2.0**-53, 0.5, 0.5, True),
        (1 - 2.0**-53, 1.0, 1e-12, True),
        (0.0, 1e-300, 1.0, True),
    ],
)
def test_acceptance_is_strict(uniform: float, p: float, q: float, accepted: bool) -> None:
    """A token of probability 0 is never accepted, one with p >= q always."""
    assert accepts(uniform, p, q) is accepted


def test_what_is_hardly_possible_is_as_possible_in_the_residual() -> None:
    """One in a million of p stays that, also where most of p is gone."""
    p = odds((2**40, 2**39, 2**20))
    assert residual(p, certain(0)).probability(2) == pytest.approx(2**-19, rel=1e-4)


def test_a_residual_of_nothing_is_p() -> None:
    """Where p = q nothing can be rejected; should rounding say so, the sample is one of p."""
    p = odds((1, 2, 1, 0))
    assert residual(p, odds((1, 2, 1, 0))) is p
    assert residual(certain(2), certain(2)).token_ids.tolist() == [2]


def test_supports_that_do_not_meet_leave_all_of_p() -> None:
    """Whatever q's tokens are: below, above, between."""
    p = weighted(np.array([3, 5, 9]), np.array([1, 2, 1]))
    for token in (0, 4, 7, 100, -1):
        left = residual(p, certain(token))
        assert left.token_ids.tolist() == [3, 5, 9]
        assert [left.probability(one) for one in (3, 5, 9)] == [0.25, 0.5, 0.25]


def test_numbers_are_asked_for_one_after_another_and_never_twice() -> None:
    """Accepting has the draft's position, the bonus the one behind the last draft."""
    asked: list[tuple[int, int]] = []

    def words(stream: int, position: int) -> int:
        asked.append((stream, position))
        return 0

    assert verify_by_ratio([1, 2], [], map(odds, ((0, 4), (0, 0, 4), (4,))), FIRST, words) == Verdict(2, 0)
    assert asked == [(ACCEPT_STREAM, FIRST), (ACCEPT_STREAM, FIRST + 1), (BONUS_STREAM, FIRST + 2)]
    asked.clear()
    assert verify_by_ratio([1, 2], [], map(odds, ((0, 4), (4,))), FIRST, words) == Verdict(1, 0)
    assert asked[1:] == [(ACCEPT_STREAM, FIRST + 1), (RESIDUAL_STREAM, FIRST + 1)]


def lazily(*rows: Odds | None) -> tuple[Iterator[Odds | None], list[int]]:
    """The rows, and a list of those that were looked at."""
    seen: list[int] = []

    def each() -> Iterator[Odds | None]:
        for i, row in enumerate(rows):
            seen.append(i)
            yield row

    return each(), seen


@pytest.mark.parametrize(("at", "looked"), [(0, 1), (1, 2), (2, 3)])
def test_unusable_numbers_end_the_row_where_they_are(at: int, looked: int) -> None:
    """The drafts before it were accepted; nothing behind it is looked at."""
    rows: list[Odds | None] = [certain(1), certain(2), certain(3)]
    rows[at] = None
    targets, seen = lazily(*rows)
    assert verify_by_ratio([1, 2], [], targets, 0, lambda *_: 0) == Verdict(at, UNUSABLE)
    assert len(seen) == looked


@pytest.mark.parametrize("draft", [-1, 4, 10**9])
def test_drafts_that_are_no_tokens_are_rejected(draft: int) -> None:
    """They cost their proposal: what comes instead is a sample of p."""
    p: Sequence[Odds] = (odds((1, 1, 2, 0)),)
    verdicts = [verify_by_ratio([draft], [], iter(p), 0, lambda *_, k=k: (k << 64) // 4) for k in range(4)]
    assert [verdict.bonus for verdict in verdicts] == [0, 1, 2, 2]
    assert {verdict.accepted for verdict in verdicts} == {0}
