"""What the draft's lane remembers of one sequence: how far it has read, along which tokens.

The *trunk* is the path that was read last; *branches* are continuations kept from the last build,
one per prepared outcome. Which of them happened is never signalled: `align` compares tokens. A
branch that turns out true becomes the trunk, and its KV is kept; the others are dropped. Whatever
the trunk is found not to have read (after a hit, a miss, a foreign proposal, a join, an eviction)
is its caller's to feed: the *catch-up*.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_runtime.speculation.model_draft import DraftModel, DraftState, RememberingDraft


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens `a` and `b` share. Compares slices, so that long ones are fast."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Path:
    """A draft state together with the tokens it has read after the first `start` of its trunk."""

    def __init__(self, state: DraftState, start: int) -> None:
        self.state = state
        self.start = start
        self.read: list[int] = []


class Trunk:
    """One sequence's paths in the draft."""

    def __init__(self, draft: DraftModel) -> None:
        self._draft = draft
        self._memory = draft if isinstance(draft, RememberingDraft) else None
        self._num_settled = 0
        self.path = Path(draft.new(), 0)
        self._branches: list[Path] = []

    @property
    def tables(self) -> list[list[int]]:
        """The block tables of all paths."""
        return [path.state.table for path in (self.path, *self._branches)]

    def align(self, token_ids: list[int], num_settled: int = 0) -> list[int]:
        """Make the trunk a prefix of `token_ids`; what it has not read of them, at least the last one.

        num_settled: how many of them are never taken back, so that the draft may remember them.
        Raises `OutOfBlocks` when cutting finds no block; the trunk has then forgotten everything.
        """
        if not self.path.state.length and not self._branches:
            self._begin(token_ids[:-1])
        known = common_prefix(self.path.read, token_ids)
        branch, reach = self._best_branch(token_ids, known)
        if branch is not None:
            self._adopt(branch)
        self.drop_branches()
        self._cut(min(max(reach, known), len(token_ids) - 1))
        self._num_settled = num_settled
        self._remember()
        return token_ids[self.path.state.length :]

    def fork(self, at: int) -> Path:
        """A branch that has read the first `at` tokens of the trunk. May raise `OutOfBlocks`."""
        return self.keep(self._draft.fork(self.path.state, at), at)

    def keep(self, state: DraftState, at: int) -> Path:
        """A branch that was made elsewhere: `state` has read the first `at` tokens of the trunk."""
        branch = Path(state, at)
        self._branches.append(branch)
        return branch

    def drop_branches(self) -> None:
        """Give the branches' memory back."""
        for branch in self._branches:
            self._draft.drop(branch.state)
        self._branches.clear()

    def drop(self) -> None:
        """Give everything back; the next `align` starts from nothing."""
        self.drop_branches()
        self._remember()
        self._num_settled = 0
        self._draft.drop(self.path.state)
        self.path.read.clear()

    def _begin(self, token_ids: list[int]) -> None:
        """Start with what the draft has read already, for whomever."""
        if self._memory is not None:
            self._draft.drop(self.path.state)
            self.path = Path(self._memory.recall(token_ids), 0)
            self.path.read = token_ids[: self.path.state.length]

    def _remember(self) -> None:
        if self._memory is not None:
            self._memory.remember(self.path.state, self.path.read, self._num_settled)

    def _best_branch(self, token_ids: list[int], known: int) -> tuple[Path | None, int]:
        """The branch that leads further along `token_ids` than the trunk does, and how far."""
        best, reach = None, known
        for branch in self._branches:
            if branch.start <= known:
                length = branch.start + common_prefix(branch.read, token_ids[branch.start :])
                if length > reach:
                    best, reach = branch, length
        return best, reach

    def _adopt(self, branch: Path) -> None:
        self._branches.remove(branch)
        self._draft.commit(self.path.state, branch.state)
        self.path.read[branch.start :] = branch.read

    def _cut(self, length: int) -> None:
        if length < self.path.state.length:
            try:
                self._draft.commit(self.path.state, self._draft.fork(self.path.state, length))
            except Exception:
                self.drop()
                raise
            del self.path.read[length:]
