"""Paths that grow by one pass at a time."""

from __future__ import annotations

import pytest

from ssd_runtime.messages import Draw
from ssd_runtime.sampling.warp import BANNED
from ssd_runtime.speculation.lines import READ_CHUNK, CatchUp, Drafting, Pick, guess_of
from ssd_runtime.speculation.model_draft import DraftState
from ssd_runtime.speculation.proposal import Guess
from ssd_runtime.speculation.trunk import Path

GREEDY = Draw(0, 0.0)


def pick(token: int) -> Pick:
    return Pick(token, Guess((token,), 1.0))


@pytest.mark.parametrize("num_missing", [1, 2, *(READ_CHUNK + i for i in (-1, 0, 1)), 2 * READ_CHUNK + 3])
@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_a_catch_up_guesses_every_position_from_the_first_wanted(num_missing: int, wanted: int) -> None:
    """However the chunks fall: the last `wanted` positions, each once, as far as they are read now."""
    path = Path(DraftState(), 0)
    first = num_missing + 1 - wanted
    line = CatchUp(path, range(num_missing), GREEDY, range(max(first, 1)))
    while not line.is_done:
        feed = line.feed()
        assert len(feed.token_ids) <= READ_CHUNK
        path.state.length += len(feed.token_ids)
        line.take([pick(i) for i in range(feed.num_logits)])
    assert path.read == list(range(num_missing))
    assert sorted(line.guesses) == list(range(max(first, 1), num_missing + 1))


@pytest.mark.parametrize(("read", "wanted"), [(4, 1), (5, 2), (6, 1), (7, 4)])
def test_the_guesses_of_a_catch_up_stand_behind_the_sent_tokens_before_them(read: int, wanted: int) -> None:
    """So a rule sees the text of that position: four settled tokens, then those sent up to there."""
    sent = (7, 8, 9)
    line = CatchUp(Path(DraftState(read), 0), (), GREEDY, range(4), sent)
    assert line.guessed(wanted) == [sent[:end] for end in range(read - 4 - wanted + 1, read - 4 + 1)]


def test_what_is_banned_is_no_guess() -> None:
    """A ranking of more tokens than may come ends with those that may not."""
    assert guess_of((5, 6, 7), (0.0, -2.0, BANNED)) == Guess((5, 6), 2.0)
    assert guess_of((5, 6, 7), (0.0, -2.0, -50.0)) == Guess((5, 6, 7), 2.0)
    assert guess_of((5,), (0.0,)) == Guess((5,), 0.0)


@pytest.mark.parametrize("tokens", [(11, 12, 13), (11, 12, -1), (11, -1), (-1,)])
def test_tokens_noted_at_once_are_tokens_taken_one_by_one(tokens: tuple[int, ...]) -> None:
    """Also where the draft's numbers become of no use."""
    at_once, one_by_one = (Drafting(Path(DraftState(), 0), GREEDY, 10, 3, frozenset()) for _ in range(2))
    at_once.note(tokens, [Guess((token,), 1.0) for token in tokens])
    for token in tokens:
        one_by_one.take([pick(token)])
    for line in (at_once, one_by_one):
        assert line.token_ids == [token for token in tokens if token >= 0]
        assert line.is_done
    assert at_once.proposal() == one_by_one.proposal()
    assert (at_once.path.read, at_once.ahead) == (one_by_one.path.read, one_by_one.ahead)
    assert (at_once.next_token, at_once.length) == (one_by_one.next_token, one_by_one.length)


def test_a_drafting_line_reads_what_it_drew() -> None:
    """The first token is given, each later one is the draft's own; the last one is not read."""
    path = Path(DraftState(), 0)
    line = Drafting(path, GREEDY, 10, 3, frozenset())
    fed = []
    while not line.is_done:
        fed.append(tuple(line.feed().token_ids))
        line.take([pick(fed[-1][0] + 1)])
    assert fed == [(10,), (11,), (12,)]
    assert line.proposal().token_ids == (11, 12, 13)
    assert path.read == [10, 11, 12]


def test_a_drafting_line_keeps_the_end_token_and_stops() -> None:
    """The end may be proposed: it may be right."""
    line = Drafting(Path(DraftState(), 0), GREEDY, 1, 9, frozenset({3}))
    line.take([pick(2)])
    line.take([pick(3)])
    assert line.is_done
    assert line.proposal().token_ids == (2, 3)


def test_numbers_of_no_use_end_a_line_with_what_it_has() -> None:
    """A negative token is no proposal."""
    line = Drafting(Path(DraftState(), 0), GREEDY, 1, 9, frozenset())
    line.take([pick(2)])
    line.take([Pick(-1, Guess((), 0.0))])
    assert line.is_done
    assert line.proposal().token_ids == (2,)
    assert len(line.proposal().guesses) == 1
