"""Rules do to logits what transformers' processors do, at every position of a text that comes and goes."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ssd_runtime.messages import Rules
from ssd_runtime.sampling.following import Follower, Followers, RuleError

VOCAB = 32
PROMPT = (3, 9, 3, 20)
token_ids = st.integers(0, VOCAB - 1)
texts = st.lists(token_ids, max_size=8)
rules = st.builds(
    Rules,
    num_prompt=st.just(len(PROMPT)),
    logit_bias=st.dictionaries(token_ids, st.sampled_from((-100.0, -1.5, 3.0)), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
    repetition_penalty=st.sampled_from((1.0, 0.7, 1.3, 3.0)),
    bad_words=st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.integers(0, 6),
    end_ids=st.frozensets(token_ids, max_size=2),
    allowed_token_ids=st.none() | st.lists(token_ids, min_size=1, unique=True).map(tuple),
    banned_token_ids=st.lists(token_ids, max_size=3, unique=True).map(tuple),
)


def logits_of(seed: int) -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def transformers_processors(rules: Rules) -> LogitsProcessorList:
    """The same rules with transformers' own classes, in the order of its `generate`."""
    made = LogitsProcessorList()
    if rules.logit_bias:
        made.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in rules.logit_bias}))
    if rules.repetition_penalty != 1:
        made.append(RepetitionPenaltyLogitsProcessor(rules.repetition_penalty))
    if rules.bad_words:
        made.append(NoBadWordsLogitsProcessor([list(word) for word in rules.bad_words]))
    if rules.min_tokens and rules.end_ids:
        made.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), rules.min_tokens, sorted(rules.end_ids)))
    if rules.allowed_token_ids is not None:
        allowed = list(rules.allowed_token_ids)
        made.append(PrefixConstrainedLogitsProcessor(lambda batch, text: allowed, num_beams=1))
    if rules.banned_token_ids:
        made.append(SuppressTokensLogitsProcessor(list(rules.banned_token_ids)))
    return made


@settings(max_examples=150, deadline=None)
@given(rules, texts, st.integers(0, 1000))
def test_rules_are_transformers_processors(rules: Rules, answer: Sequence[int], seed: int) -> None:
    """All that transformers has, in its order, bit by bit."""
    text = [*PROMPT, *answer]
    expected = transformers_processors(rules)(torch.tensor([text]), logits_of(seed)[None])[0]
    follower = Follower(rules, VOCAB)
    follower.follow(text, len(text), ())
    ruled = follower.apply(logits_of(seed))
    assume(bool(ruled.isfinite().any()))  # transformers lifts bans that leave nothing; here that is an error
    assert torch.equal(ruled, expected)


@given(texts, st.sampled_from((-2.0, 0.5, 2.0)), st.sampled_from((-1.0, 0.0, 1.5)))
def test_presence_and_frequency_are_openais_formula(
    answer: Sequence[int], frequency: float, presence: float
) -> None:
    """logit - count · frequency - (count > 0) · presence, counted over the answer alone."""
    rules = Rules(len(PROMPT), presence_penalty=presence, frequency_penalty=frequency)
    follower = Follower(rules, VOCAB)
    follower.follow([*PROMPT, *answer], len(PROMPT) + len(answer), ())
    counts = torch.bincount(torch.tensor([*answer], dtype=torch.int64), minlength=VOCAB)
    expected = logits_of(1) - counts * frequency - (counts > 0) * presence
    assert torch.allclose(follower.apply(logits_of(1)), expected, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    rules,
    st.sampled_from((0.0, 1.0)),
    st.lists(st.tuples(st.integers(0, 3), texts), min_size=1, max_size=8),
)
def test_a_walk_along_guesses_is_each_position_by_itself(
    rules: Rules, penalty: float, steps: Sequence[tuple[int, Sequence[int]]]
) -> None:
    """Whatever was guessed before, and however much was settled in between."""
    rules = Rules(
        **{name: getattr(rules, name) for name in Rules.__dataclass_fields__} | {"frequency_penalty": penalty}
    )
    followers, settled = Followers(VOCAB), list(PROMPT)
    for grown, guessed in steps:
        settled.extend(guessed[:grown])
        got = followers.process(rules, logits_of(5), settled, len(settled), guessed)
        fresh = Follower(rules, VOCAB)
        fresh.follow([*settled, *guessed], len(settled) + len(guessed), ())
        assert torch.equal(got, fresh.apply(logits_of(5)))


def test_the_settled_text_may_be_longer_than_what_is_read() -> None:
    """The engine's own list goes on growing; only the first `length` tokens count."""
    rules = Rules(4, repetition_penalty=2.0)
    short, long = Followers(VOCAB), Followers(VOCAB)
    expected = short.process(rules, logits_of(1), PROMPT, 4, ())
    assert torch.equal(long.process(rules, logits_of(1), [*PROMPT, 7, 8], 4, ()), expected)


def test_guesses_that_grow_and_shrink_are_followed_token_by_token() -> None:
    """What two guesses share is not said again, and nothing settled is taken back for it."""
    rules = Rules(4, repetition_penalty=2.0, frequency_penalty=1.0)
    followers, settled, guess = Followers(VOCAB), [*PROMPT, 7], [8, 9, 10, 11]
    walk = [guess[:n] for n in (0, 1, 2, 3, 4, 3, 2, 4)] + [[8, 9, 1], [8, 9, 10], [8], [2, 9, 10]]
    for guessed in walk:
        got = followers.process(rules, logits_of(1), settled, 5, guessed)
        text = [*settled, *guessed]
        assert torch.equal(got, Followers(VOCAB).process(rules, logits_of(1), text, len(text), ()))


def test_a_guess_that_begins_as_the_text_does_is_followed_too() -> None:
    """It is compared with what was guessed before, not with what is settled."""
    rules = Rules(4, repetition_penalty=2.0, frequency_penalty=1.0)
    followers = Followers(VOCAB)
    for guessed in ([], [7], PROMPT[:1], PROMPT[:3]):
        got = followers.process(rules, logits_of(1), PROMPT, 4, guessed)
        text = [*PROMPT, *guessed]
        assert torch.equal(got, Followers(VOCAB).process(rules, logits_of(1), text, len(text), ()))


def test_a_shorter_settled_text_is_followed_back() -> None:
    """A command that was made earlier is judged by what was settled then."""
    rules = Rules(4, repetition_penalty=2.0, min_tokens=2, end_ids=frozenset({1}))
    followers, text = Followers(VOCAB), [*PROMPT, 7, 8, 9]
    expected = [Followers(VOCAB).process(rules, logits_of(1), text, length, ()) for length in range(4, 8)]
    for length in (4, 7, 5, 6, 4):
        got = followers.process(rules, logits_of(1), text, length, (2,))
        again = followers.process(rules, logits_of(1), text, length, ())
        assert not torch.equal(got, again)
        assert torch.equal(again, expected[length - 4])


def test_a_bad_word_is_banned_where_the_text_ends_with_its_beginning() -> None:
    """And only there."""
    bad = Rules(4, bad_words=((3, 20, 7), (9, 20, 8), (3, 9, 6), (5,)))
    ruled = Followers(VOCAB).process(bad, logits_of(1), PROMPT, 4, ())
    assert ruled.isneginf().nonzero().flatten().tolist() == [5, 7]


def test_a_bad_word_may_begin_where_the_text_does() -> None:
    """And be longer than any text so far."""
    bad = Rules(4, bad_words=((*PROMPT, 5), (0, *PROMPT, 6)))
    ruled = Followers(VOCAB).process(bad, logits_of(1), PROMPT, 4, ())
    assert ruled.isneginf().nonzero().flatten().tolist() == [5]


def test_the_models_own_logits_are_left_alone() -> None:
    """Processing works on a copy: logprobs are taken of the original."""
    logits = logits_of(2)
    Followers(VOCAB).process(Rules(4, banned_token_ids=(1,)), logits, PROMPT, 4, ())
    assert torch.equal(logits, logits_of(2))


def test_a_draft_with_fewer_tokens_is_ruled_as_far_as_it_goes() -> None:
    """Ids that it does not have change nothing, and nothing is invented."""
    rules = Rules(4, logit_bias=((30, 5.0), (1, 5.0)), banned_token_ids=(31, 2))
    ruled = Followers(VOCAB).process(rules, torch.zeros(20), PROMPT, 4, ())
    assert ruled.shape == (20,)
    assert ruled[1:3].tolist() == [5.0, -torch.inf]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_unusable_numbers_are_not_hidden_by_a_ban(wrong: float) -> None:
    """A row with a NaN stays a row that nothing is drawn from, also where the NaN's token is banned."""
    logits = logits_of(1)
    logits[7] = wrong
    ruled = Followers(VOCAB).process(Rules(4, banned_token_ids=(7,)), logits, PROMPT, 4, ())
    assert torch.equal(ruled, logits) or bool(ruled[7].isnan())


class Raising:
    """A processor of a plugin that does not work."""

    def start(self, text: Sequence[int]) -> None:
        """Nothing yet."""

    push = pop = start

    def apply(self, logits: Tensor) -> Tensor:
        """Always wrong."""
        raise ValueError("broken")


def test_a_rule_that_raises_is_an_error_for_the_target_and_no_guess_for_the_draft() -> None:
    """The message says what; the draft's row is NaN, of which nothing is drafted."""
    rules = Rules(4, warpers=(Raising,))
    followers = Followers(VOCAB)
    with pytest.raises(RuleError, match="ValueError: broken"):
        followers.process(rules, logits_of(1), PROMPT, 4, ())
    assert followers.guess(rules, logits_of(1), PROMPT, ()).isnan().all()


def test_requests_that_ended_are_forgotten() -> None:
    """A lane keeps nothing for rules that nobody else holds."""
    followers = Followers(VOCAB)
    followers.process(Rules(4, repetition_penalty=2.0), logits_of(1), PROMPT, 4, ())
    gc.collect()
    assert len(followers) == 0
