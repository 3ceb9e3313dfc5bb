"""The outcome cache is exact and short-lived; the pair of main and shadow answers after a miss."""

from __future__ import annotations

import pytest

from ssd_runtime.speculation.cache import Outcome, OutcomeCache, SSDCache

OUTCOME = Outcome(sequence_uid=1, epoch=0, round=5, accepted=2, bonus=77)


def test_exact_outcome_is_a_hit() -> None:
    """What was staged for an outcome is returned for an equal one."""
    cache: OutcomeCache[str] = OutcomeCache()
    cache.stage(1, {OUTCOME: "prepared", OUTCOME._replace(bonus=78): "other"})
    assert cache.take(Outcome(*OUTCOME)) == "prepared"


@pytest.mark.parametrize("name", Outcome._fields)
def test_any_difference_is_a_miss(name: str) -> None:
    """Another sequence, epoch, round, length or bonus never gets the entry."""
    cache: OutcomeCache[str] = OutcomeCache()
    cache.stage(1, {OUTCOME: "prepared"})
    assert cache.take(OUTCOME._replace(**{name: getattr(OUTCOME, name) + 1})) is None


def test_generation_serves_one_lookup() -> None:
    """After a lookup, hit or miss, the sequence's other entries are gone; other sequences' stay."""
    cache: OutcomeCache[str] = OutcomeCache()
    cache.stage(1, {OUTCOME: "prepared"})
    cache.stage(2, {OUTCOME._replace(sequence_uid=2): "theirs"})
    assert cache.take(OUTCOME._replace(bonus=0)) is None
    assert cache.take(OUTCOME) is None
    assert cache.take(OUTCOME._replace(sequence_uid=2)) == "theirs"
    assert len(cache) == 0


def test_staging_replaces_and_forgetting_removes() -> None:
    """A sequence has one generation at a time, and none after it is forgotten."""
    cache: OutcomeCache[str] = OutcomeCache()
    cache.stage(1, {OUTCOME: "old"})
    cache.stage(1, {OUTCOME._replace(round=6): "new"})
    assert len(cache) == 1
    cache.forget(1)
    cache.forget(1)
    assert cache.take(OUTCOME._replace(round=6)) is None


def test_lost_branch_continues_the_text_when_it_comes_back() -> None:
    """A branch that lost its round is proposed once the text ends as the branch began."""
    cache = SSDCache(100)
    cache.update([5, 6])
    cache.draft([7, 8, 9], [0.9, 0.9, 0.9])
    cache.draft([4, 2, 3], [0.1, 0.7, 0.7], after=[7])
    cache.update([1])
    assert cache.propose(4) == []
    cache.update([7, 4])
    assert cache.propose(4) == [2, 3]


def test_accepted_prefix_is_context_of_a_branch() -> None:
    """`after` separates what follows different accepted lengths."""
    cache = SSDCache(100)
    cache.update([1])
    cache.draft([5], [0.9], after=[2])
    cache.draft([6], [0.8], after=[3])
    cache.update([3])
    assert cache.propose(1) == [6]


def test_settled_tokens_are_a_ring() -> None:
    """Beyond the capacity the oldest settled tokens go first."""
    cache = SSDCache(3)
    cache.update([1, 2])
    cache.update([3, 4])
    cache.update([])
    assert cache.token_ids == [2, 3, 4]
    assert cache.length == 4


def test_what_was_drafted_long_ago_is_forgotten() -> None:
    """However many rounds there are, the shadow keeps no more than its capacity and the latest round."""
    cache, size = SSDCache(8), 0
    for token in range(100):
        cache.update([token])
        assert cache.num_nodes <= 8
        cache.draft([1000 + token], [1.0])
        size = max(size, cache.num_nodes)
    assert 8 < size <= 16


def test_default_pruning_keeps_losing_branches() -> None:
    """Two hundredths of the best branch is the limit: 0.05 beside 0.9 stays, 0.01 goes."""
    cache = SSDCache(100)
    cache.update([1])
    cache.draft([2], [0.9])
    cache.draft([7], [0.05], after=[3])
    cache.draft([8], [0.01], after=[4])
    cache.prune()
    cache.update([3])
    assert cache.propose(1) == [7]
    cache.update([4])
    assert cache.propose(1) == []


def test_wrong_arguments_are_refused() -> None:
    """A capacity that holds no context, and probabilities that do not match, are errors."""
    with pytest.raises(ValueError, match="got capacity 2, expected at least 3"):
        SSDCache(2)
    with pytest.raises(ValueError, match="got 1 probabilities for 2 tokens"):
        SSDCache(8).draft([1, 2], [0.5])
