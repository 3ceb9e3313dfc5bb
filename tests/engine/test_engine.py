"""The whole engine on toy models, with its real threads: equality, faults, and a clean end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from ssd_runtime.app import Engine
from ssd_runtime.errors import ComputeError, ContextLengthError, EngineClosedError, ModelError, RequestError
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.speculation.lines import READ_CHUNK
from ssd_runtime.speculation.model_draft import DraftState, Feed
from ssd_runtime.stats import RoundRecord
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig
from ssd_runtime.testing.scripted import (
    VOCAB,
    Rule,
    ScriptedDraft,
    avoiding,
    continuing,
    faltering,
    surely,
    unusable,
)
from ssd_runtime.testing.toy import ToyTokenizer, toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams, SpeculationParams

PROMPT = (9, 30, 12)
POLICIES = ("autoregressive", "speculative", "ssd", "hybrid")


def asked(name: str = "a", prompt: tuple[int, ...] = PROMPT, **params: Any) -> Request:
    chosen = {"temperature": 0.8, "max_tokens": 24, "seed": 3, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=prompt, params=SamplingParams(**chosen))


async def run(engine: Engine, *requests: Request) -> list[Answer]:
    async with engine:
        return list(await asyncio.gather(*(engine.complete(request) for request in requests)))


@lru_cache(maxsize=256)
def alone(request: Request) -> tuple[int, ...]:
    """The request's ids by plain decoding, without any thread."""
    return asyncio.run(Rig(toy_decoder(1), mode=Mode.AUTOREGRESSIVE).answers(request))[0].token_ids


async def plain(*requests: Request) -> list[tuple[int, ...]]:
    return [await asyncio.to_thread(alone, request) for request in requests]


async def text() -> tuple[int, ...]:
    """The prompt and the plain answer to `asked()`."""
    return (*PROMPT, *(await plain(asked()))[0])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("draft", ["self", "toy/2", "ngram", "none"])
async def test_every_policy_and_draft_gives_the_same_ids(policy: str, draft: str) -> None:
    """Four requests of different parameters together, on real threads."""
    requests = [asked(f"{i}", (i + 1, 5, 9), temperature=i * 0.4, seed=i) for i in range(4)]
    engine = toy_engine(
        f"scheduler.policy={policy}",
        f"engine.draft_model={draft}",
        "engine.fallback=[shadow, ngram]",
        "engine.speculative_length=4",
    )
    answers = await run(engine, *requests)
    assert [answer.token_ids for answer in answers] == await plain(*requests)


@pytest.mark.parametrize("dtype", ["fp16", "fp8", "int8"])
async def test_every_policy_gives_the_same_ids_with_keys_and_values_in_fewer_bits(dtype: str) -> None:
    """Long enough answers that codes, though not half precision, tell them from those with float32."""
    requests = [asked(f"{i}", (i + 1, 5, 9), temperature=i * 0.4, seed=i, max_tokens=60) for i in range(4)]
    kv = f"engine.kv_cache_dtype={dtype}"
    first, *others = [
        [answer.token_ids for answer in await run(toy_engine(f"scheduler.policy={policy}", kv), *requests)]
        for policy in POLICIES
    ]
    assert all(other == first for other in others)
    assert (first == await plain(*requests)) == (dtype == "fp16")


@pytest.mark.parametrize("policy", ["speculative", "ssd"])
@pytest.mark.parametrize("twist", [avoiding, faltering], ids=["always wrong", "random lengths"])
async def test_scripted_drafts_change_no_token(policy: str, twist: Callable[[Rule], Rule]) -> None:
    """Wrong tokens cost time, not truth."""
    whole = await text()
    draft = ScriptedDraft(twist(continuing([whole])))
    [answer] = await run(toy_engine(f"scheduler.policy={policy}", draft=draft), asked())
    assert answer.token_ids == whole[len(PROMPT) :]


async def test_a_mode_can_be_asked_for_by_each_request() -> None:
    """`enabled: false` drafts nothing, `speculative` looks nothing up, `ssd` looks up."""
    requests = [
        Request(
            f"{i}",
            prompt_token_ids=PROMPT,
            params=SamplingParams(0, max_tokens=12, ignore_eos=True),
            speculation=s,
        )
        for i, s in enumerate(
            (
                SpeculationParams(enabled=False),
                SpeculationParams(mode=Mode.SPECULATIVE),
                SpeculationParams(mode=Mode.SSD),
            )
        )
    ]
    off, speculative, ssd = await run(toy_engine("scheduler.policy=ssd"), *requests)
    assert off.token_ids == speculative.token_ids == ssd.token_ids
    assert (off.speculation.mode, off.speculation.draft_tokens) == ("autoregressive", 0)
    assert speculative.speculation.draft_tokens > 0
    assert speculative.speculation.hits + speculative.speculation.misses == 0
    assert ssd.speculation.hits + ssd.speculation.misses > 0


class Raises(ScriptedDraft):
    """A draft whose every pass raises."""

    error: BaseException = RuntimeError("broken draft")

    def extend(self, feeds: Sequence[Feed]) -> Tensor:
        """See `DraftModel`."""
        raise self.error


class RaisesStopIteration(Raises):
    """A future refuses this exception."""

    error = StopIteration()


class RaisesSystemExit(Raises):
    """A thread would end silently."""

    error = SystemExit(3)


class Answers(ScriptedDraft):
    """A draft whose passes give something else than logits."""

    answer: Any = None

    def extend(self, feeds: Sequence[Feed]) -> Tensor:
        """See `DraftModel`."""
        super().extend(feeds)
        answer: Tensor = self.answer
        return answer


class AnswersText(Answers):
    """No tensor at all."""

    answer = "logits"


class AnswersTooLittle(Answers):
    """A row is missing."""

    answer = torch.empty(0, VOCAB)


class AnswersFlat(Answers):
    """A dimension is missing."""

    answer = torch.zeros(VOCAB)


BROKEN = [
    Answers,
    AnswersFlat,
    AnswersText,
    AnswersTooLittle,
    Raises,
    RaisesStopIteration,
    RaisesSystemExit,
]


@pytest.mark.parametrize("policy", ["speculative", "ssd"])
@pytest.mark.parametrize("broken", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_draft_costs_only_its_proposals(
    broken: type[ScriptedDraft], policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two requests, one after the other: plain's ids, and the log names the draft."""
    whole = await text()
    async with toy_engine(f"scheduler.policy={policy}", draft=broken(continuing([whole]))) as engine:
        for _ in range(2):
            assert (await engine.complete(asked())).token_ids == whole[len(PROMPT) :]
    assert "scripted" in "".join(capsys.readouterr())


class CannotFork(ScriptedDraft):
    """Reads, but has no branches."""

    def fork(self, state: DraftState, at: int) -> Any:
        """See `DraftModel`."""
        raise ValueError("no forks")


async def test_a_draft_that_cannot_fork_prepares_nothing() -> None:
    """It can still be the fallback."""
    whole = await text()
    engine = toy_engine(
        "engine.fallback=[draft]", "scheduler.policy=ssd", draft=CannotFork(continuing([whole]))
    )
    [answer] = await run(engine, asked())
    assert answer.token_ids == whole[len(PROMPT) :]
    assert answer.speculation.hits == 0


@pytest.mark.parametrize("policy", ["speculative", "ssd"])
@pytest.mark.parametrize("vocab", [5, 100])
async def test_a_draft_of_another_size_proposes_only_what_the_target_knows(policy: str, vocab: int) -> None:
    """Ids beyond the target's are never proposed; fewer ids than candidates are enough."""
    draft = ScriptedDraft(lambda token_ids: surely(vocab - 1, vocab), vocab_size=vocab)
    [answer] = await run(toy_engine(f"scheduler.policy={policy}", draft=draft), asked())
    assert answer.token_ids == (await text())[len(PROMPT) :]


@pytest.mark.parametrize("policy", ["speculative", "ssd"])
async def test_a_draft_that_computes_nothing_of_use_proposes_nothing(policy: str) -> None:
    """Case B58 on the draft's side: NaN rows."""
    draft = ScriptedDraft(lambda token_ids: unusable())
    [answer] = await run(toy_engine(f"scheduler.policy={policy}", draft=draft), asked())
    assert answer.token_ids == (await text())[len(PROMPT) :]
    assert answer.speculation.draft_tokens == 0


@pytest.mark.parametrize("policy", ["speculative", "ssd"])
async def test_a_draft_that_hangs_is_left_alone(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text comes while the draft still hangs; the engine ends without waiting for it."""
    monkeypatch.setattr("ssd_runtime.speculations.PATIENCE_SECONDS", 0.01)
    whole, release = await text(), threading.Event()

    def hang(number: int) -> None:
        release.wait()

    draft = ScriptedDraft(continuing([whole]), before_pass=hang)
    async with toy_engine(f"scheduler.policy={policy}", draft=draft) as engine:
        answer = await engine.complete(asked())
        assert not release.is_set()
        assert draft.passes == []
        release.set()
    assert answer.token_ids == whole[len(PROMPT) :]


class Wrong:
    """A proposer that answers whatever it was given."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def propose(self, token_ids: Sequence[int], k: int) -> Any:
        """See `Proposer`."""
        if isinstance(self._answer, BaseException):
            raise self._answer
        return [3] * (k + 5) if self._answer == "too many" else self._answer


RUBBISH = [None, "abc", 7, (VOCAB,), (-1,), (1.5,), "too many", RuntimeError("no"), SystemExit(1)]


@pytest.mark.parametrize(
    "place", ["engine.draft_model=scripted-proposer", "engine.fallback=[scripted-proposer]"]
)
@pytest.mark.parametrize("answer", RUBBISH, ids=repr)
async def test_a_wrong_proposer_costs_only_its_proposals(place: str, answer: Any) -> None:
    """As a draft and as a fallback."""
    engine = toy_engine("scheduler.policy=ssd", place, proposer=Wrong(answer))
    [got] = await run(engine, asked(max_tokens=8))
    assert got.token_ids == (await text())[len(PROMPT) :][:8]


class Damaged:
    """A toy decoder that gives NaN logits, or raises, for rows that feed the token `token`."""

    can_draw = False  # so that the engine asks for logits

    def __init__(self, model: LoadedModel, token: int, raises: bool) -> None:
        self._model = model
        self._token = token
        self._raises = raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model.decoder, name)

    def forward(self, rows: Sequence[ForwardRow], kv: Any) -> Tensor:
        """See `Decoder`."""
        logits = self._model.decoder.forward(rows, kv)
        ends = [sum(row.num_logits for row in rows[: i + 1]) for i in range(len(rows))]
        for row, end in zip(rows, ends, strict=True):
            if self._token in row.token_ids:
                if self._raises:
                    raise RuntimeError("broken target")
                with torch.inference_mode():
                    logits[end - row.num_logits : end] = torch.nan
        return logits


def damaged(token: int, raises: bool = False) -> LoadedModel:
    model = toy_decoder(1)
    return LoadedModel(model.config, Damaged(model, token, raises), model.tokenizer, "damaged")  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_row_whose_numbers_are_no_numbers_fails_alone(policy: str) -> None:
    """Case B58: the request fails with an error that says where, its neighbours have plain's ids."""
    good = asked("good", (1, 2, 3), temperature=0)
    expected = await plain(good)
    token = next(token for token in range(1, VOCAB) if token not in (1, 2, 3, *expected[0]))
    engine = toy_engine(
        f"scheduler.policy={policy}", "engine.draft_model=toy/1", models={"toy/target": damaged(token)}
    )
    async with engine:
        bad, fine = await asyncio.gather(
            engine.complete(asked("bad", (token,))), engine.complete(good), return_exceptions=True
        )
        again = await engine.complete(good)
    assert isinstance(bad, ComputeError)
    assert "position 1 are not finite" in str(bad)
    assert isinstance(fine, Answer)
    assert fine.token_ids == again.token_ids == expected[0]


async def test_a_target_that_raises_fails_its_requests_and_serves_the_next() -> None:
    """The error comes with its cause; the engine lives."""
    engine = toy_engine("scheduler.policy=ssd", models={"toy/target": damaged(63, raises=True)})
    good = asked("good", (1, 2, 3), temperature=0)
    async with engine:
        with pytest.raises(ComputeError, match="broken target"):
            await engine.complete(asked("bad", (63,)))
        assert engine.is_alive
        assert [(await engine.complete(good)).token_ids] == await plain(good)


class Complaining:
    """An observer that raises."""

    told = 0

    def observe(self, record: RoundRecord) -> None:
        """See `Observer`."""
        Complaining.told += 1
        raise RuntimeError("seen enough")

    @hookimpl
    def ssd_register_observers(self, registry: Registry[Any]) -> None:
        """Register itself."""
        registry.register("complaining", Complaining)


async def test_an_observer_that_raises_is_not_told_again() -> None:
    """And no request hears of it."""
    Complaining.told = 0
    [answer] = await run(toy_engine("scheduler.policy=ssd", plugins=[Complaining()]), asked())
    assert len(answer.token_ids) == 24
    assert Complaining.told == 1


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"stop": ("",)}, "stop"),
    ],
)
async def test_impossible_parameters_are_refused_and_the_next_request_is_served(
    params: dict[str, Any], named: str
) -> None:
    """Also from the library, where nothing was parsed."""
    async with toy_engine("scheduler.policy=autoregressive") as engine:
        with pytest.raises(RequestError, match=named):
            await engine.complete(asked(**params))
        assert len((await engine.complete(asked())).token_ids) == 24


@pytest.mark.parametrize("spare", [-1, 0, 1, 400])
async def test_a_prompt_fits_the_context_or_is_refused(spare: int) -> None:
    """Case B50: the limit that is named is the limit that holds."""
    engine = toy_engine("scheduler.policy=ssd", "scheduler.max_tokens=32")
    async with engine:
        request = asked(prompt=(5,) * (32 - spare), max_tokens=None)
        if spare > 0:
            request = asked(prompt=(5,) * (32 - min(spare, 31)), max_tokens=None)
            assert len((await engine.complete(request)).token_ids) == min(spare, 31)
        else:
            with pytest.raises(ContextLengthError, match="holds 32 tokens"):
                await engine.complete(request)


async def test_memory_smaller_than_the_context_limits_the_context() -> None:
    """What could never find blocks is refused instead of waiting for ever."""
    engine = toy_engine("scheduler.policy=ssd", "engine.kv_cache_tokens=16", "engine.block_size=4")
    async with engine:
        assert engine.max_context == 16
        with pytest.raises(ContextLengthError, match="kv_cache_tokens"):
            await engine.complete(asked(max_tokens=14))
        assert len((await engine.complete(asked(max_tokens=13))).token_ids) == 13


async def test_preempted_requests_answer_as_if_alone() -> None:
    """Case B43: memory for one and a half of four requests."""
    requests = [asked(f"{i}", (i + 1, 5, 9), seed=i) for i in range(4)]
    engine = toy_engine("scheduler.policy=ssd", "engine.kv_cache_tokens=40", "engine.block_size=4")
    answers = await run(engine, *requests)
    assert [answer.token_ids for answer in answers] == await plain(*requests)


async def test_a_draft_of_another_vocabulary_is_refused_by_name() -> None:
    """Case B57: the first token that differs is in the message."""
    model = toy_decoder(2)
    tokenizer = ToyTokenizer(VOCAB)
    tokenizer.tokens = lambda: [*ToyTokenizer(VOCAB).tokens()[:-1], "other"]  # type: ignore[method-assign]
    other = LoadedModel(model.config, model.decoder, tokenizer, "toy/other")
    engine = toy_engine("engine.draft_model=toy/other", models={"toy/other": other})
    with pytest.raises(ModelError, match="token 63 is 'other'"):
        await run(engine, asked())


async def test_leaving_the_iteration_cancels_and_frees() -> None:
    """Case B47: 20 requests left after one piece; then a whole answer is right and nothing is held."""
    async with toy_engine("scheduler.policy=ssd", "engine.max_batch_size=2") as engine:
        for i in range(20):
            async with aclosing(engine.generate(asked(f"{i}", max_tokens=400))) as pieces:
                async for _ in pieces:
                    break
        answer = await engine.complete(asked())
        parts = engine._parts
        assert parts is not None
        scheduler = parts.core.scheduler
    assert [answer.token_ids] == await plain(asked())
    assert scheduler.is_idle


async def test_the_pieces_joined_are_the_answer() -> None:
    """Only the last piece has the finish reason and the numbers."""
    async with toy_engine("scheduler.policy=ssd") as engine:
        pieces = [piece async for piece in engine.generate(asked())]
        answer = await engine.complete(asked())
    assert "".join(piece.text for piece in pieces) == answer.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == answer.token_ids
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [FinishReason.LENGTH]
    assert all(piece.timing is None for piece in pieces[:-1])


async def test_unseeded_requests_differ_and_report_their_seeds() -> None:
    """Case B23: and a reported seed gives its text again."""
    async with toy_engine("scheduler.policy=ssd") as engine:
        answers = [await engine.complete(asked(seed=None, temperature=1.0)) for _ in range(5)]
        again = await engine.complete(asked(seed=answers[0].seed, temperature=1.0))
    assert len({answer.token_ids for answer in answers}) == 5
    assert again.token_ids == answers[0].token_ids


async def test_an_engine_ends_with_everything_it_started() -> None:
    """Requests in flight hear it, and no thread is left."""
    before = set(threading.enumerate())
    engine = toy_engine("scheduler.policy=ssd", "engine.fallback=[ngram]")
    async with engine:
        running = asyncio.create_task(engine.complete(asked(max_tokens=500)))
        async with aclosing(engine.generate(asked("b"))) as pieces:
            await anext(pieces)
    with pytest.raises(EngineClosedError):
        await running
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in left if thread.name.startswith(("ssd-", "proposer"))] == []
    with pytest.raises(EngineClosedError):
        await engine.complete(asked())


@pytest.mark.parametrize(
    ("tokens", "of_target", "of_draft"),
    [
        (300, (300, 3 * (4 + 1)), (3 * (READ_CHUNK + 5 + 1), 3 * (5 + 1))),
        (16, (16, 3 * (4 + 1)), (16, 16)),
        (7, (7, 7), (7, 7)),
    ],
)
async def test_each_lane_has_memory_for_its_largest_pass_before_the_first(
    tokens: int, of_target: tuple[int, int], of_draft: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its own thread: the target for a round as large as may be, the draft for all rows' lines at once.

    Never for more tokens than a round has, however many rows there may be.
    """
    reserved = {}

    def note(_: Decoder, tokens: int, wanted: int) -> None:
        reserved[threading.current_thread().name] = (tokens, wanted)

    monkeypatch.setattr(Decoder, "reserve", note)
    sizes = ("engine.max_batch_size=3", "engine.speculative_length=4", "engine.branch_budget=5")
    draft = ("engine.draft_model=toy/2", f"scheduler.max_batch_tokens={tokens}", "scheduler.policy=ssd")
    await run(toy_engine(*sizes, *draft), asked())
    assert reserved == {"ssd-target": of_target, "ssd-draft": of_draft}


async def test_engines_in_one_process_do_not_meet() -> None:
    """Two engines of different models answer at the same time as each alone."""
    alone = [(await run(toy_engine(seed=seed), asked()))[0].token_ids for seed in (1, 2)]
    async with toy_engine(seed=1) as one, toy_engine(seed=2) as two:
        together = await asyncio.gather(one.complete(asked()), two.complete(asked()))
    assert [answer.token_ids for answer in together] == alone
    assert alone[0] != alone[1]


@pytest.mark.parametrize(("policy", "warned"), [("ssd", True), ("speculative", True), ("hybrid", False)])
async def test_a_mode_that_needs_a_draft_and_has_none_says_so(policy: str, warned: bool) -> None:
    """It is plain decoding; nobody shall measure it as something else."""
    with capture_logs() as logs:
        async with toy_engine("engine.draft_model=none", f"scheduler.policy={policy}"):
            pass
    events = [(one["event"], one["log_level"]) for one in logs]
    assert (("without a draft every round is plain decoding", "warning") in events) is warned
