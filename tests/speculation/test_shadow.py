"""The prefix tree: what it knows, what it forgets, how large it gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.speculation.shadow import CONTEXT, ShadowTree

TOKENS = st.integers(0, 3)
DRAFTS = st.lists(
    st.tuples(
        st.lists(TOKENS, max_size=5),
        st.lists(st.tuples(TOKENS, st.sampled_from([0.01, 0.5, 1.0])), min_size=1, max_size=5),
    ),
    max_size=6,
)


def test_draft_is_read_back_after_its_context() -> None:
    """The text that a draft was made for is continued with that draft."""
    tree = ShadowTree(100)
    tree.insert([1, 2, 3], [4, 5, 6], [0.9, 0.9, 0.9])
    assert tree.continuation([1, 2, 3], 8) == [4, 5, 6]
    assert tree.continuation([9, 9, 3], 8) == [4, 5, 6]
    assert tree.continuation([9, 4], 8) == [5, 6]
    assert tree.continuation([1, 2, 3], 2) == [4, 5]


def test_only_the_end_of_a_context_takes_room() -> None:
    """What lies further back can never be asked for."""
    long, short = ShadowTree(100), ShadowTree(100)
    long.insert([9, 8, 7, 1, 2, 3], [4], [0.9])
    short.insert([1, 2, 3], [4], [0.9])
    assert long.num_nodes == short.num_nodes


def test_unknown_end_has_no_continuation() -> None:
    """Neither an unknown token nor an empty text nor a settled context alone is continued."""
    tree = ShadowTree(100)
    tree.insert([1, 2], [3], [1.0])
    assert tree.continuation([7], 4) == []
    assert tree.continuation([], 4) == []
    assert tree.continuation([1], 4) == []


def test_a_token_that_was_only_ever_context_is_not_proposed_beside_one_that_was_drafted() -> None:
    """It has no likelihood, whichever came first."""
    tree = ShadowTree(100)
    tree.insert([1, 2, 3], [4], [0.9])
    tree.insert([1, 2], [7], [0.1])
    assert tree.continuation([1, 2], 1) == [7]


def test_longest_known_end_wins_over_likelier_continuations() -> None:
    """A match of two tokens is preferred to a likelier one of a single token."""
    tree = ShadowTree(100)
    tree.insert([1, 2], [3], [0.2])
    tree.insert([5, 2], [4], [0.9])
    assert tree.continuation([1, 2], 1) == [3]
    assert tree.continuation([8, 2], 1) == [4]


def test_likeliest_child_comes_first_whatever_its_branch() -> None:
    """Children are ranked by their own probability, not by how likely their branch was to be reached."""
    tree = ShadowTree(100)
    tree.insert([0], [7, 1], [0.1, 0.9])
    tree.insert([7], [2], [0.3])
    assert tree.continuation([5, 7], 1) == [1]


def test_newer_estimate_replaces_an_older_one() -> None:
    """A token drafted again in a later round has the later round's probability."""
    tree = ShadowTree(100)
    tree.insert([1], [2], [0.9])
    tree.insert([1], [3], [0.5])
    tree.begin_generation()
    tree.insert([1], [2], [0.1])
    assert tree.continuation([1], 1) == [3]


def test_prune_is_relative_to_the_best_branch_of_the_round() -> None:
    """A branch survives at the threshold times the best branch's probability and goes below it."""
    tree = ShadowTree(100)
    tree.insert([1], [2, 3], [0.5, 0.5])
    tree.insert([4], [5], [0.125])
    tree.insert([6], [7], [0.12])
    tree.prune(0.5)
    assert tree.continuation([1], 2) == [2, 3]
    assert tree.continuation([4], 1) == [5]
    assert tree.continuation([6], 1) == []


def test_prune_cuts_a_branch_where_it_becomes_unlikely() -> None:
    """The likely beginning of a branch stays when its end is dropped."""
    tree = ShadowTree(100)
    tree.insert([1], [2], [1.0])
    tree.insert([5], [6, 7], [0.9, 0.01])
    tree.prune(0.02)
    assert tree.continuation([5], 2) == [6]


def test_prune_leaves_earlier_rounds_alone() -> None:
    """Only what the present round drafted is compared with its best branch."""
    tree = ShadowTree(100)
    tree.insert([1], [2], [0.001])
    tree.begin_generation()
    tree.insert([3], [4], [1.0])
    tree.prune(0.5)
    assert tree.continuation([1], 1) == [2]


def test_oldest_round_is_forgotten_first() -> None:
    """Beyond the capacity the oldest generation goes, and what was renewed stays."""
    tree = ShadowTree(6)
    tree.insert([1], [2], [1.0])
    tree.begin_generation()
    tree.insert([3], [4], [1.0])
    tree.begin_generation()
    tree.insert([1], [2], [1.0])
    tree.begin_generation()
    tree.insert([5], [6], [1.0])
    tree.begin_generation()
    assert tree.continuation([3], 1) == []
    assert tree.continuation([1], 1) == [2]
    assert tree.continuation([5], 1) == [6]


@given(rounds=st.lists(DRAFTS, max_size=8), capacity=st.integers(CONTEXT, 30), threshold=st.floats(0, 1))
def test_number_of_nodes_is_exact_and_bounded(
    rounds: list[list[tuple[list[int], list[tuple[int, float]]]]], capacity: int, threshold: float
) -> None:
    """Whatever is drafted and pruned, the count is the tree's true size, and a new round fits."""
    tree = ShadowTree(capacity)
    for drafts in rounds:
        tree.begin_generation()
        assert tree.num_nodes <= capacity
        for context, draft in drafts:
            tree.insert(context, [token for token, _ in draft], [p for _, p in draft])
        tree.prune(threshold)
        assert tree.num_nodes == true_size(tree)
        assert len(tree.continuation([0, 1, 2], 5)) <= 5


def true_size(tree: ShadowTree) -> int:
    """Nodes that can be reached, counted one by one."""
    pending, count = [tree._root], -1
    while pending:
        count += 1
        pending.extend(pending.pop().children.values())
    return count
