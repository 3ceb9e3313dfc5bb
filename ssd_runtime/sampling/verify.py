"""The coupled rule: a draft is accepted exactly where it equals the target's own token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssd_runtime.messages import Verdict


def verify(drafts: Sequence[int], targets: Iterable[int]) -> Verdict:
    """How many leading `drafts` equal `targets`, and the target's token after them.

    `targets` holds len(drafts) + 1 tokens, target i drawn behind drafts[:i]; it is read only as far as
    the first difference, so it may be drawn lazily. An unusable target token equals no draft.
    """
    target = iter(targets)
    for accepted, draft in enumerate(drafts):
        token = next(target)
        if token != draft or token < 0:
            return Verdict(accepted, token)
    return Verdict(len(drafts), next(target))
