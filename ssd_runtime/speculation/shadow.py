"""The shadow: a prefix tree of what was drafted, so that a branch that lost is not wasted.

Each drafted token is filed under the one, two and three tokens before it. Reading it is a walk from
the root along the end of a text, longest end first; the children of the node reached are what was
drafted there. Belongs to one thread; no lock.

    text … a b, drafted x y      root ─ a ─ b ─ x      x after "a b" and after "b"
                                     ├─ b ─ x ─ y      y after "b x" and, with "a b x", after "a b x"
                                     └─ x ─ y          y after "x"
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

CONTEXT = 3


class _Node:
    """A token after the tokens on the way to it. Probabilities are 0 where it was never drafted.

    probability: of the token after what precedes it. branch: of the drafted text up to here.
    A parent is never older than its children, since inserting renews the whole way.
    """

    __slots__ = ("branch", "children", "generation", "parent", "probability", "token_id")

    def __init__(self, parent: _Node | None, token_id: int) -> None:
        self.parent = parent
        self.token_id = token_id
        self.children: dict[int, _Node] = {}
        self.generation = -1
        self.probability = 0.0
        self.branch = 0.0


class ShadowTree:
    """A prefix tree that forgets whole generations (rounds), oldest first.

    capacity: nodes kept, a node counted once for each generation that drafted it. The youngest
    generation may exceed it; it is forgotten when the next one begins.
    """

    def __init__(self, capacity: int) -> None:
        self.num_nodes = 0
        self._capacity = capacity
        self._root = _Node(None, -1)
        self._generation = 0
        self._touched: deque[tuple[int, list[_Node]]] = deque([(0, [])])
        self._num_touched = 0
        self._best = 0.0

    def begin_generation(self) -> None:
        """A new round: what is inserted from now on is younger than everything before."""
        self._best = 0.0
        if not self._touched[-1][1]:
            return
        self._num_touched += len(self._touched[-1][1])
        while self._num_touched > self._capacity:
            self._forget_oldest()
        self._generation += 1
        self._touched.append((self._generation, []))

    def insert(
        self, context: Sequence[int], token_ids: Sequence[int], probabilities: Sequence[float]
    ) -> None:
        """File a draft. `probabilities[i]`: of `token_ids[i]` after everything before it, in (0, 1].

        context: what precedes the draft; the last `CONTEXT` tokens count. A newer estimate of the
        same token in the same place replaces the older one; within a generation the larger stays.
        """
        context = context[-CONTEXT:]
        text = (*context, *token_ids)
        branches = [0.0] * len(context)
        branch = 1.0
        for probability in probabilities:
            branch *= probability
            branches.append(branch)
        estimates = (*branches[: len(context)], *probabilities)
        self._best = max(self._best, branch if token_ids else 0.0)
        for start in range(len(text)):
            self._file(start, text, estimates, branches)

    def prune(self, threshold: float) -> None:
        """Drop what this round drafted with a branch probability below `threshold` × the best branch's."""
        least = threshold * self._best
        for node in self._touched[-1][1]:
            if node.generation == self._generation and 0 < node.branch < least:
                self._remove(node)

    def continuation(self, text: Sequence[int], k: int) -> list[int]:
        """Up to `k` tokens after `text`, each the likeliest after the longest known end of the text."""
        window = list(text[-CONTEXT:])
        proposed: list[int] = []
        while len(proposed) < k and (token_id := self._next(window)) is not None:
            proposed.append(token_id)
            window = [*window[1 - CONTEXT :], token_id]
        return proposed

    def _file(
        self, start: int, text: Sequence[int], estimates: Sequence[float], branches: Sequence[float]
    ) -> None:
        """Walk and extend the way of `text[start:]`, at most `CONTEXT + 1` tokens."""
        node = self._root
        for index in range(start, min(start + CONTEXT + 1, len(text))):
            node = node.children.get(text[index]) or self._grow(node, text[index])
            is_new = node.generation != self._generation
            if is_new:
                node.generation = self._generation
                self._touched[-1][1].append(node)
            if branches[index] and (is_new or branches[index] > node.branch):
                node.branch = branches[index]
                node.probability = estimates[index]

    def _grow(self, parent: _Node, token_id: int) -> _Node:
        node = parent.children[token_id] = _Node(parent, token_id)
        self.num_nodes += 1
        return node

    def _next(self, window: Sequence[int]) -> int | None:
        for start in range(len(window)):
            node: _Node | None = self._root
            for token_id in window[start:]:
                node = node.children.get(token_id) if node is not None else None
            best = max(node.children.values(), key=_probability, default=None) if node is not None else None
            if best is not None and best.probability:
                return best.token_id
        return None

    def _forget_oldest(self) -> None:
        generation, nodes = self._touched.popleft()
        self._num_touched -= len(nodes)
        for node in nodes:
            if node.generation == generation:  # so are its children: nothing older is left
                self._detach(node)
                self._mark_gone(node)

    def _remove(self, node: _Node) -> None:
        self._detach(node)
        for gone in _subtree(node):
            self._mark_gone(gone)

    def _detach(self, node: _Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.token_id]

    def _mark_gone(self, node: _Node) -> None:
        node.generation = -1
        self.num_nodes -= 1


def _probability(node: _Node) -> float:
    return node.probability


def _subtree(node: _Node) -> Iterator[_Node]:
    yield node
    for child in node.children.values():
        yield from _subtree(child)
