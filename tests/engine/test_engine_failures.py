"""Whole engines whose parts fail: what goes on, what is told, what is left."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from ssd_runtime.app import SILENT_SECONDS, Engine
from ssd_runtime.clock import ManualClock
from ssd_runtime.engine.target_lane import TargetLane
from ssd_runtime.errors import ConfigError, EngineClosedError, EngineError
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.snapshots import LaneSnapshot
from ssd_runtime.speculation.model_draft import Feed
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig
from ssd_runtime.testing.scripted import ScriptedDraft, surely
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Mode, Request, SamplingParams

PROMPT = (9, 30, 12)


def asked(name: str = "a", **params: Any) -> Request:
    chosen = {"temperature": 0.8, "max_tokens": 16, "seed": 3, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=PROMPT, params=SamplingParams(**chosen))


async def solo(*requests: Request) -> list[tuple[int, ...]]:
    plain = [Rig(toy_decoder(1), mode=Mode.AUTOREGRESSIVE) for _ in requests]
    return [(await rig.answers(one))[0].token_ids for rig, one in zip(plain, requests, strict=True)]


def lives(engine: Engine) -> bool:
    return engine.is_alive


class Recovering(ScriptedDraft):
    """Raises in its first passes."""

    failures = 3

    def extend(self, feeds: Sequence[Feed]) -> Tensor:
        """See `DraftModel`."""
        Recovering.failures -= 1
        if Recovering.failures >= 0:
            raise RuntimeError("not yet")
        return super().extend(feeds)


async def test_a_draft_that_failed_comes_back_and_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of service and back between two requests; the text is plain's all the time."""
    monkeypatch.setattr("ssd_runtime.speculation.draft_lane.FIRST_PAUSE", 0.0)
    Recovering.failures = 3
    draft = Recovering(lambda token_ids: surely(1))
    async with toy_engine("scheduler.policy=speculative", draft=draft) as engine:
        first = await engine.complete(asked())
        second = await engine.complete(asked("b"))
        lane = engine.snapshot().lanes["draft"]
    assert lane == LaneSnapshot("ok", 1)
    assert second.speculation.draft_tokens > 0
    assert [first.token_ids, second.token_ids] == await solo(asked(), asked("b"))


class Sick:
    """A toy decoder that raises in passes over the token `poison`."""

    can_draw = False

    def __init__(self, model: LoadedModel, poison: int) -> None:
        self._model = model
        self._poison = poison
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model.decoder, name)

    def forward(self, rows: Sequence[ForwardRow], kv: Any) -> Tensor:
        """See `Decoder`."""
        self.is_dead = self.is_dead or any(self._poison == row.token_ids[0] for row in rows)
        if self.is_dead:
            raise MemoryError("no memory")
        return self._model.decoder.forward(rows, kv)


async def test_an_engine_whose_target_is_lost_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B61: alive until it is given up, dead from then on; nobody is left waiting."""
    monkeypatch.setattr(TargetLane.__init__, "__defaults__", ((0.0,),))  # pauses
    model = toy_decoder(1)
    sick = Sick(model, 63)
    given = LoadedModel(model.config, sick, model.tokenizer, "sick")  # type: ignore[arg-type]
    async with toy_engine("scheduler.policy=autoregressive", models={"toy/target": given}) as engine:
        assert (await engine.complete(asked())).token_ids == (await solo(asked()))[0]
        assert lives(engine)
        bad = Request("bad", prompt_token_ids=(63,), params=asked().params)
        heard = await asyncio.gather(
            engine.complete(bad), engine.complete(asked("b", max_tokens=400)), return_exceptions=True
        )
        assert all(isinstance(each, EngineError) for each in heard)
        while lives(engine):  # noqa: ASYNC110 - its thread is about to end
            await asyncio.sleep(0)
        with pytest.raises(EngineError):
            await engine.complete(asked("late"))


class Lingering:
    """A timer whose cancellation takes until `release` is set."""

    def __init__(self) -> None:
        self.reached, self.release = threading.Event(), threading.Event()

    def cancel(self) -> None:
        """Hold the thread that calls."""
        self.reached.set()
        self.release.wait()


async def test_leaving_and_closing_raise_nothing_while_the_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loop takes no calls any more, and yet it counts as alive."""
    monkeypatch.setattr("ssd_runtime.engine.thread.BEAT_SECONDS", 1e6)
    engine, timer = toy_engine("scheduler.policy=autoregressive"), Lingering()
    await engine.__aenter__()
    pieces = engine.generate(asked(max_tokens=400))
    await anext(pieces)
    engine._thread._timer = timer  # type: ignore[assignment]
    engine._thread.call(engine._running.core.close)
    await asyncio.to_thread(timer.reached.wait)
    assert engine._thread.is_alive
    with pytest.raises(EngineClosedError):
        engine._thread.call(timer.release.set)
    await pieces.aclose()
    closing = asyncio.create_task(engine.__aexit__(None, None, None))
    await asyncio.sleep(0)
    timer.release.set()
    await closing


async def test_an_engine_whose_loop_is_blocked_is_not_alive() -> None:
    """Case B61: by the clock, from outside its thread; and alive again when it goes on."""
    engine, clock, release = toy_engine("scheduler.policy=autoregressive"), ManualClock(), threading.Event()
    engine._thread._clock = clock
    async with engine:
        await engine.complete(asked())
        blocked = threading.Event()

        def block() -> None:
            blocked.set()
            release.wait()

        engine._thread.call(block)
        await asyncio.to_thread(blocked.wait)
        clock.advance(SILENT_SECONDS + 1)
        assert not lives(engine)
        release.set()
        while not lives(engine):  # noqa: ASYNC110 - until its next beat
            await asyncio.sleep(0)
        assert (await engine.complete(asked())).token_ids == (await solo(asked()))[0]


async def test_the_snapshot_shows_who_is_there_and_how_far() -> None:
    """Callable from any thread, at any moment."""
    engine = toy_engine("scheduler.policy=ssd", "scheduler.order=priority", "engine.max_batch_size=1")
    async with engine:
        one = asyncio.create_task(engine.complete(asked("running", max_tokens=400)))
        while not any(each.completion_tokens for each in engine.snapshot().requests):  # noqa: ASYNC110
            await asyncio.sleep(0)
        other = Request("waiting", prompt_token_ids=(1,), params=asked().params, priority=5)
        two = asyncio.create_task(engine.complete(other))
        while not engine.snapshot().waiting:  # noqa: ASYNC110 - the engine's thread takes it soon
            await asyncio.sleep(0)
        now = engine.snapshot()
        one.cancel()
        await two
        idle = engine.snapshot()
    running, waiting = now.requests
    assert (running.id, running.is_running, running.prompt_tokens) == ("running", True, 3)
    assert 0 < running.completion_tokens <= running.max_tokens == 400
    assert (waiting.id, waiting.is_running, waiting.priority) == ("waiting", False, 5)
    assert (now.running, now.waiting, now.mode) == (1, 1, "ssd")
    assert now.lanes == {"target": LaneSnapshot(), "draft": LaneSnapshot()}
    assert now.used_blocks > 0
    assert (idle.requests, idle.used_blocks, idle.num_violations) == ((), 0, 0)
    assert idle.free_blocks + idle.cached_blocks == idle.num_blocks


async def test_memory_that_cannot_be_had_is_refused_at_the_start() -> None:
    """With numbers, and with what can be lowered."""
    engine = toy_engine("scheduler.policy=ssd", "engine.kv_cache_tokens=1000000000000000")
    with pytest.raises(ConfigError, match=r"target's KV cache .* GiB.* lower engine\.kv_cache_tokens"):
        await engine.__aenter__()


async def test_a_drafts_memory_is_refused_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows with other settings."""
    monkeypatch.setattr("ssd_runtime.capacity.host_memory", lambda: 1 << 17)
    engine = toy_engine("scheduler.policy=ssd", "engine.draft_model=toy/2", "engine.kv_cache_tokens=64")
    with pytest.raises(ConfigError, match=r"draft's KV cache .* GiB.* lower engine\.max_batch_size"):
        await engine.__aenter__()


async def test_too_little_memory_for_the_weights_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback; it says what takes less."""

    def load(*arguments: object) -> LoadedModel:
        raise MemoryError("no memory for a weight of 10 times 10 in FLOAT32")

    engine = toy_engine("scheduler.policy=autoregressive")
    engine._load_model = load
    with pytest.raises(ConfigError, match=r"too little memory.*engine\.quantization"):
        await engine.__aenter__()


async def once(engine: Engine) -> None:
    async with engine:
        await engine.complete(asked())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_opening_and_closing_engines_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, KV, threads and files are gone with the engine, without any help of the collector."""
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    for kind in (Decoder, PagedKV, Engine):
        noting(monkeypatch, kind, alive)
    settings = ("scheduler.policy=ssd", "engine.draft_model=toy/2", "engine.fallback=[shadow, ngram]")
    asyncio.run(once(toy_engine(*settings)))
    gc.collect()
    before, files, memory = threading.active_count(), len(os.listdir("/proc/self/fd")), resident()
    gc.disable()
    try:
        for _ in range(10):
            asyncio.run(once(toy_engine(*settings)))
            assert len(alive) == 0
    finally:
        gc.enable()
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == files
    assert resident() - memory < 32 << 20


def noting(monkeypatch: pytest.MonkeyPatch, kind: type, alive: weakref.WeakSet[object]) -> None:
    """Have `alive` hold every object of `kind` that is made from now on."""
    init = kind.__init__  # type: ignore[misc]

    def noted(self: object, *arguments: Any, **named: Any) -> None:
        alive.add(self)
        init(self, *arguments, **named)

    monkeypatch.setattr(kind, "__init__", noted)


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
