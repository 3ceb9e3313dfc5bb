"""When an answer ends, and what of it may be seen: token by token, however the rounds cut it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.engine.stopping import AnswerEnd, StopStrings
from ssd_runtime.models.text_decoder import text_decoder
from ssd_runtime.testing.toy import ToyTokenizer
from ssd_runtime.types import FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
EOS = 0


class ByteTokenizer(ToyTokenizer):
    """One token per byte; id 0 is the end. What is no whole character decodes to U+FFFD."""

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return bytes(token for token in token_ids if token).decode(errors="replace")


TOKENIZER = ByteTokenizer(256)


def answer_end(
    max_tokens: int = 100,
    stops: tuple[str, ...] = (),
    end_ids: tuple[int, ...] = (EOS,),
    min_tokens: int = 0,
    echo: str = "",
    include_stop: bool = False,
) -> AnswerEnd:
    return AnswerEnd(
        text_decoder(TOKENIZER),
        end_ids=end_ids,
        stop_strings=stops,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        echo=echo,
        include_stop=include_stop,
    )


def spans(token_ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """The tokens in rounds that end at these places."""
    borders = [0, *sorted(cut % (len(token_ids) + 1) for cut in cuts), len(token_ids)]
    return [token_ids[a:b] for a, b in itertools.pairwise(borders)]


def play(end: AnswerEnd, rounds: Sequence[Sequence[int]]) -> tuple[list[int], str, FinishReason | None]:
    """All that comes out until the end."""
    token_ids: list[int] = []
    text = ""
    for tokens in rounds:
        kept, reason = end.take(tokens)
        token_ids += kept
        text += end.show()
        if reason is not None:
            return token_ids, text, reason
    return token_ids, text, None


def test_a_stop_inside_a_span_comes_before_the_length() -> None:
    """Case B03: three tokens and `stop`, although the span reaches past max_tokens."""
    assert play(answer_end(5), [[97, 98, EOS, 120, 121, 122]]) == ([97, 98, EOS], "ab", STOP)


def test_the_length_comes_before_a_stop_behind_it() -> None:
    """Case B03, the other way round: exactly 5 tokens and `length`."""
    assert play(answer_end(5), [[97, 98, 99, 100, 101, EOS]]) == ([97, 98, 99, 100, 101], "abcde", LENGTH)


def test_an_end_token_in_the_last_place_is_a_stop() -> None:
    """Both ends meet: the model's own wins."""
    assert play(answer_end(2), [[97, EOS]]) == ([97, EOS], "a", STOP)


@pytest.mark.parametrize("size", range(1, 18))
def test_a_stop_string_is_found_wherever_the_span_begins_and_ends(size: int) -> None:
    """Case B04: completed by the second of up to 17 tokens, or spread over rounds."""
    tokens = TOKENIZER.encode("a##bcdefghijklmnopq")
    rounds = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    assert play(answer_end(stops=("##",)), rounds) == (tokens[:3], "a", STOP)


def test_the_stop_string_completed_first_wins_and_then_the_longest() -> None:
    """`bc` is complete before `abcd`; of `c` and `bc`, complete at once, the text ends before `bc`."""
    assert play(answer_end(stops=("abcd", "bc")), [b"xabcd"])[1] == "xa"
    assert play(answer_end(stops=("c", "bc")), [b"xabcd"])[1] == "xa"


def test_text_that_may_become_a_stop_string_is_held_back_and_given_in_the_end() -> None:
    """`##` of `###` is shown once it is clear that no third comes."""
    end = answer_end(4, stops=("###",))
    assert play(end, [b"a##"]) == ([*b"a##"], "a", None)
    assert play(end, [b"b"]) == ([*b"b"], "##b", LENGTH)
    assert play(answer_end(3, stops=("###",)), [b"a##"]) == ([*b"a##"], "a##", LENGTH)


def test_a_stop_string_ends_at_the_token_that_completes_it() -> None:
    """Case B05: the ids reach to that token and no further, the text ends before the string."""
    token_ids, text, reason = play(answer_end(stops=("cd",)), [b"abcdef"])
    assert (bytes(token_ids), text, reason) == (b"abcd", "ab", STOP)


@pytest.mark.parametrize("size", range(1, 9))
def test_a_character_of_several_tokens_is_never_shown_in_parts(size: int) -> None:
    """Case B69: at every border of rounds."""
    word = "a🚀é語b"
    tokens = TOKENIZER.encode(word)
    end = answer_end()
    pieces = [play(end, [tokens[i : i + size]])[1] for i in range(0, len(tokens), size)]
    assert "".join(pieces) == word
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("max_tokens", [2, 3, 4])
def test_a_character_cut_by_max_tokens_is_flushed_once(max_tokens: int) -> None:
    """Case B69: the tail that is really cut off becomes one replacement character."""
    _, text, reason = play(answer_end(max_tokens), [TOKENIZER.encode("a🚀")])
    assert (text, reason) == ("a\ufffd", LENGTH)


def test_an_end_token_shows_nothing() -> None:
    """Neither EOS nor a stop token id has a text in the answer."""
    assert play(answer_end(end_ids=(EOS, 98)), [b"abc"]) == ([97, 98], "a", STOP)


TEXTS = st.text("ab#é🚀", max_size=14)
STOPS = st.lists(st.text("ab#é", min_size=1, max_size=3), max_size=3).map(tuple)


@given(TEXTS, STOPS, st.integers(1, 20), st.lists(st.integers(0, 100), max_size=5))
def test_how_the_rounds_cut_the_tokens_changes_nothing(
    text: str, stops: tuple[str, ...], max_tokens: int, cuts: list[int]
) -> None:
    """All at once, one by one, or in any spans: the same ids, text and reason."""
    tokens = [*TOKENIZER.encode(text), EOS, *TOKENIZER.encode(text)]
    whole = play(answer_end(max_tokens, stops), [tokens])
    single = play(answer_end(max_tokens, stops), [[token] for token in tokens])
    assert whole == single == play(answer_end(max_tokens, stops), spans(tokens, cuts))


@given(TEXTS, STOPS)
def test_the_text_is_the_naive_one(text: str, stops: tuple[str, ...]) -> None:
    """The shortest beginning that contains a stop string, cut before the longest that it ends with."""
    expected = text
    for size in range(1, len(text) + 1):
        if ends := [stop for stop in stops if text[:size].endswith(stop)]:
            expected = text[: size - max(map(len, ends))]
            break
    assert play(answer_end(stops=stops), [[*TOKENIZER.encode(text), EOS]])[1] == expected


@given(st.lists(TEXTS, max_size=6), STOPS)
def test_no_part_of_a_stop_string_is_ever_shown(pieces: list[str], stops: tuple[str, ...]) -> None:
    """What was shown never has to be taken back."""
    strings = StopStrings(stops)
    shown = ""
    for piece in pieces:
        new, stopped = strings.push(piece)
        shown += new
        assert not any(stop in shown for stop in stops)
        if stopped:
            return
    shown += strings.flush()
    assert shown == "".join(pieces)


cuts = st.lists(st.integers(0, 99), max_size=6)


@given(cuts)
def test_a_stop_string_is_shown_where_that_is_asked_for(cut: Sequence[int]) -> None:
    """With `include_stop_str_in_output` the text ends with it, however the rounds fall; not a letter more."""
    rounds = spans(TOKENIZER.encode("one, two, three"), cut)
    end = answer_end(stops=("wo",), include_stop=True)
    assert play(end, rounds) == (TOKENIZER.encode("one, two"), "one, two", STOP)


@given(cuts)
def test_a_stop_tokens_text_is_shown_where_that_is_asked_for(cut: Sequence[int]) -> None:
    """An end token that has no text of its own, as EOS, shows none."""
    text = TOKENIZER.encode("one, two")
    stop = ord("w")
    shown = play(answer_end(end_ids=(stop,), include_stop=True), spans(text, cut))
    assert shown == (TOKENIZER.encode("one, tw"), "one, tw", STOP)
    eos = play(answer_end(include_stop=True), spans([*TOKENIZER.encode("one"), EOS, 65], cut))
    assert eos == ([*TOKENIZER.encode("one"), EOS], "one", STOP)


@given(cuts, st.permutations(("lo, w", "o, wo", "wor", "ld")))
def test_the_stop_completed_first_wins_whatever_its_place_in_the_list(
    cut: Sequence[int], stops: Sequence[str]
) -> None:
    """All of them are in the text and overlap; the end that comes first is the end."""
    assert play(answer_end(stops=tuple(stops)), spans(TOKENIZER.encode("hello, world"), cut))[1:] == (
        "hel",
        STOP,
    )


@given(cuts)
def test_a_stop_string_is_looked_for_behind_min_tokens_only(cut: Sequence[int]) -> None:
    """One that lies within them, or begins there, is text; the next one ends the answer."""
    rounds = spans(TOKENIZER.encode("ab ab ab ab"), cut)
    assert play(answer_end(stops=("ab",), min_tokens=4), rounds)[1:] == ("ab ab ", STOP)


@given(cuts)
def test_an_end_token_within_min_tokens_is_a_token_like_any_other(cut: Sequence[int]) -> None:
    """The sampler bans it there; should it come all the same, the answer goes on."""
    rounds = spans([65, 66, EOS, 67, EOS, 68], cut)
    assert play(answer_end(min_tokens=3), rounds) == ([65, 66, EOS, 67, EOS], "ABC", STOP)


@given(cuts, st.text("añ€😀", min_size=1, max_size=5))
def test_an_echo_comes_first_and_whole(cut: Sequence[int], echo: str) -> None:
    """Once, before the first text, also where the answer is empty."""
    rounds = spans(TOKENIZER.encode("hello"), cut)
    assert play(answer_end(echo=echo, max_tokens=5), rounds)[1:] == (f"{echo}hello", LENGTH)
    assert play(answer_end(echo=echo, max_tokens=0), [[65]]) == ([], echo, LENGTH)


def test_tokens_are_judged_before_their_text_is_worked_out() -> None:
    """What `take` left unread, `show` reads; nothing is shown twice."""
    end = answer_end(max_tokens=4)
    assert end.take(b"ab") == ((97, 98), None)
    assert end.take([99, EOS, 100]) == ((99, EOS), STOP)
    assert end.show() == "abc"
    assert end.show() == ""


def test_a_stop_string_is_found_by_take_and_what_stands_before_it_shown_later() -> None:
    """Only then does text decide where the tokens end."""
    end = answer_end(stops=("cd",))
    assert end.take(b"abc") == ((97, 98, 99), None)
    assert end.take(b"de") == ((100,), STOP)
    assert end.show() == "ab"
