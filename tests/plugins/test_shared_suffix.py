"""Proposals from other requests' answers: asked for, bounded, never in the text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_plugins import suffix
from ssd_plugins.suffix import SharedSuffixProposer, SuffixProposer, suffix_proposer
from ssd_runtime.errors import ConfigError
from ssd_runtime.hooks.kinds import Remembering
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.memory.history import PackedTokens
from ssd_runtime.testing.conformance import check_proposer
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.types import Answer, Request, SamplingParams

TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19]


def remembering(*answers: Sequence[int], **options: Any) -> SharedSuffixProposer:
    proposer = suffix_proposer(max_cached_requests=100, **options)
    assert isinstance(proposer, SharedSuffixProposer)
    for answer in answers:
        proposer.remember((), tuple(answer))
    return proposer


def test_what_another_request_was_answered_is_proposed() -> None:
    """After a beginning that the text itself has never had."""
    assert list(remembering(TEXT).propose([1, 2, 12, 13, 14], 3)) == [15, 16, 17]
    assert list(SuffixProposer().propose([1, 2, 12, 13, 14], 3)) == []


def test_the_prompt_of_another_request_is_not() -> None:
    """Answers are remembered, not what was asked."""
    proposer = remembering()
    proposer.remember((21, 22, 23, 24, 25), tuple(TEXT))
    assert list(proposer.propose([21, 22, 23], 2)) == []


def test_the_longest_match_decides_among_other_texts() -> None:
    """As it does within a text."""
    others = [[1, 2, 3, 7, 7], [9, 1, 2, 3, 5, 6], [8, 1, 2, 3, 7, 7]]
    assert list(remembering(*others).propose([9, 1, 2, 3], 2)) == [5, 6]
    assert list(remembering(*others).propose([4, 1, 2, 3], 2)) == [7, 7]


def test_the_text_itself_comes_first_where_it_knows_as_much() -> None:
    """Other texts serve only where more of their guess can be expected."""
    own = [1, 2, 3, 4, 5, 9, 1, 2, 3]
    assert list(remembering([1, 2, 3, 6, 6]).propose(own, 2)) == [4, 5]
    assert list(remembering([9, 1, 2, 3, 6, 6, 6, 6]).propose(own, 4)) == [6, 6, 6, 6]


def test_a_text_that_ends_votes_no_longer() -> None:
    """The others go on without it."""
    others = [[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4]]
    assert list(remembering(*others).propose([1, 2, 3], 3)) == [4, 5]


def test_packed_answers_serve_as_well() -> None:
    """What `engine.history_codec: zstd` hands over."""
    proposer = remembering()
    proposer.remember((), PackedTokens(TEXT))
    assert list(proposer.propose([12, 13, 14], 2)) == [15, 16]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=20),
    st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=5),
    st.integers(1, 8),
)
def test_a_filter_changes_no_proposal(answers: list[list[int]], asked: list[list[int]], k: int) -> None:
    """It only saves a search."""
    plain, filtered = remembering(*answers), remembering(*answers, bloom=True)
    for text in asked:
        assert list(plain.propose(text, k)) == list(filtered.propose(text, k))


def test_nothing_is_remembered_unless_asked_for() -> None:
    """The default: no text of one request is ever seen by another's proposals."""
    assert type(suffix_proposer()) is SuffixProposer
    assert not isinstance(suffix_proposer(), Remembering)
    assert isinstance(remembering(), Remembering)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_cached_requests": -1}, "max_cached_requests -1"),
        ({"max_cached_requests": 1, "max_cached_tokens": 0}, "max_cached_tokens 0"),
        ({"bloom": True}, "nothing is remembered"),
        ({"max_match": 0, "max_cached_requests": 1}, "counts of at least 1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], expected: str) -> None:
    """At the start."""
    with pytest.raises(ValueError, match=expected):
        suffix_proposer(**options)


def test_a_filter_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""

    def fails(*arguments: object, **options: object) -> None:
        raise ImportError

    monkeypatch.setattr(suffix, "TextStore", fails)
    with pytest.raises(ValueError, match=r"pip install 'ssd-runtime\[stores\]'"):
        suffix_proposer(max_cached_requests=1, bloom=True)


def test_conforms() -> None:
    """With many texts in its memory."""
    proposer = remembering(*([(at * at + i) % 1000 for at in range(300)] for i in range(100)), bloom=True)
    check_proposer(proposer, vocab_size=1000)


STORING = "engine.fallback=[{name: suffix, max_cached_requests: 10}]"


def asked(name: str = "a", **params: Any) -> Request:
    chosen = {"temperature": 0.8, "max_tokens": 24, "seed": 3, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=(9, 30, 12), params=SamplingParams(**chosen))


def served(*overrides: str, plugins: Sequence[object] = ()) -> list[Answer]:
    """The same request twice, one after the other."""

    async def play() -> list[Answer]:
        engine = toy_engine("scheduler.policy=ssd", "engine.branch_budget=0", *overrides, plugins=plugins)
        async with engine:
            return [await engine.complete(asked(name)) for name in "ab"]

    return asyncio.run(play())


DRAFT = "engine.draft_model=toy/5"


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_second_request_profits_from_the_first_ones_answer(codec: str) -> None:
    """The same text in fewer rounds: what was said is found again."""
    first, second = served(DRAFT, STORING, f"engine.history_codec={codec}")
    [plain, _] = served("scheduler.policy=autoregressive")
    assert first.token_ids == second.token_ids == plain.token_ids
    assert second.speculation.accepted_tokens > first.speculation.accepted_tokens
    assert second.speculation.rounds < first.speculation.rounds - 5


def test_without_the_option_it_does_not() -> None:
    """Both take as many rounds."""
    first, second = served(DRAFT, "engine.fallback=[suffix]")
    assert first.speculation.rounds == second.speculation.rounds


class Forgetful:
    """A proposer whose memory raises."""

    def __init__(self) -> None:
        self.told: list[tuple[list[int], list[int]]] = []

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """Nothing to say."""
        return ()

    def remember(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Note it, and fail."""
        self.told.append((list(prompt), list(answer)))
        raise SystemExit(3)

    @hookimpl
    def ssd_register_proposers(self, registry: Registry[Any]) -> None:
        """Be one."""
        registry.register("forgetful", lambda: self)


def test_a_proposer_that_cannot_remember_costs_nobody_anything() -> None:
    """It was told of both answers, whole, and the answers are as ever."""
    forgetful = Forgetful()
    answers = served(DRAFT, "engine.fallback=[forgetful]", plugins=[forgetful])
    assert forgetful.told == [([9, 30, 12], list(answer.token_ids)) for answer in answers]
    assert [answer.token_ids for answer in answers] == [
        answer.token_ids for answer in served("scheduler.policy=autoregressive")
    ]


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        ("[{name: suffix, size: 3}]", "--set engine.fallback: proposer 'suffix' cannot be made: "),
        ("[{name: suffix, bloom: true}]", "nothing is remembered"),
        ("[{name: shadow, size: 3}]", "--set engine.fallback: 'shadow' takes no options; got {size: 3}"),
    ],
)
async def test_wrong_options_stop_the_start(fallback: str, expected: str) -> None:
    """With the key and what is wrong."""
    engine = toy_engine(f"engine.fallback={fallback}")
    with pytest.raises(ConfigError) as caught:
        await engine.__aenter__()
    assert expected in str(caught.value)
