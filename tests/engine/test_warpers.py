"""Warpers of plugins act on every token of their request, drafted or not, and fail nobody else. Case B33."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_runtime.api import Registry, Warper, hookimpl
from ssd_runtime.errors import RequestError
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Mode, Request, SamplingParams, WarperChoice

TARGET = toy_decoder(1)
PROMPT = (9, 30, 12)
MODES = (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD)
EACH_MODE = pytest.mark.parametrize("mode", MODES)


class NoOdd:
    """Bans odd ids."""

    def warp(self, logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Tensor:
        """See `Warper`."""
        logits[1::2] = -torch.inf
        return logits


class Ascending:
    """Only the `step` ids above the last token of the answer, counted round; any id first."""

    def __init__(self, step: int = 5) -> None:
        if step < 1:
            raise ValueError(f"step: got {step}, expected at least 1")
        self._step = step

    def warp(self, logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Tensor:
        """See `Warper`."""
        if len(token_ids) == num_prompt:
            return logits
        kept = torch.full_like(logits, -torch.inf)
        places = [(token_ids[-1] + step) % VOCAB for step in range(1, self._step + 1)]
        kept[places] = logits[places]
        return kept


class Made:
    """A warper made of a function."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self._function = function

    def warp(self, logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Tensor:
        """What the function says."""
        warped: Tensor = self._function(logits)
        return warped


def fail(logits: Tensor) -> None:
    raise OSError("disk full")


BROKEN: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "raises": (fail, "OSError: disk full"),
    "wrong type": (lambda logits: None, "got None, expected a tensor of shape \\(64,\\)"),
    "wrong shape": (lambda logits: logits[:5], "expected a tensor of shape \\(64,\\)"),
    "wrong numbers": (lambda logits: logits.double(), "expected a tensor"),
    "not finite": (lambda logits: logits * torch.nan, "leave no token possible"),
    "nothing left": (lambda logits: logits - torch.inf, "leave no token possible"),
}


def registry() -> Registry[Warper]:
    made: Registry[Warper] = Registry("warper")
    made.register("no-odd", NoOdd)
    made.register("ascending", Ascending)
    made.register("wish 7", lambda: Made(lambda logits: logits.index_fill(0, torch.tensor(7), 1000.0)))
    for name, (function, _) in BROKEN.items():
        made.register(name, lambda function=function: Made(function))
    return made


def asked(*names: str | WarperChoice, **params: Any) -> Request:
    chosen = {"temperature": 1.0, "max_tokens": 12, "seed": 0, "ignore_eos": True} | params
    choices = tuple(WarperChoice(name) if isinstance(name, str) else name for name in names)
    return Request("a", prompt_token_ids=PROMPT, params=SamplingParams(**chosen, warpers=choices))


def rig(mode: Mode) -> Rig:
    worker = None if mode is Mode.AUTOREGRESSIVE else draft_worker(decoder_draft(TARGET), 8)
    made = Rig(TARGET, worker, mode=mode)
    made.limits = replace(made.limits, warpers=registry())
    return made


def answer_to(request: Request, mode: Mode) -> Answer:
    return asyncio.run(rig(mode).answers(request))[0]


@EACH_MODE
def test_a_warper_acts_on_every_token(mode: Mode) -> None:
    """Also inside accepted spans; the draft is warped alike, so that it is still accepted."""
    answer = answer_to(asked("no-odd"), mode)
    assert all(token % 2 == 0 for token in answer.token_ids)
    assert answer.token_ids == answer_to(asked("no-odd"), Mode.AUTOREGRESSIVE).token_ids
    assert answer.token_ids != answer_to(asked(), mode).token_ids
    assert answer.speculation.accepted_tokens == answer.speculation.draft_tokens


@EACH_MODE
def test_a_warper_sees_the_answer_as_far_as_it_is_drafted(mode: Mode) -> None:
    """Each position is judged by what stands right before it."""
    answer = answer_to(asked(WarperChoice("ascending", (("step", 3),))), mode)
    steps = [(b - a) % VOCAB for a, b in zip(answer.token_ids, answer.token_ids[1:], strict=False)]
    assert all(1 <= step <= 3 for step in steps)


@EACH_MODE
def test_warpers_are_applied_in_the_order_given(mode: Mode) -> None:
    """What the first wishes for the second can forbid; the other way round the wish comes last."""
    assert 7 not in answer_to(asked("wish 7", "no-odd"), mode).token_ids
    assert set(answer_to(asked("no-odd", "wish 7"), mode).token_ids) == {7}


@EACH_MODE
@pytest.mark.parametrize("name", BROKEN)
def test_a_warper_that_does_not_work_fails_its_own_request_only(name: str, mode: Mode) -> None:
    """The message says how; the neighbour's text is what it is alone, and the draft goes on serving."""
    made = rig(mode)
    made.submit(replace(asked(name), id="broken"))
    made.submit(asked("no-odd"))
    asyncio.run(made.run())
    with pytest.raises(RequestError, match=BROKEN[name][1]):
        made.answer("broken")
    neighbour = made.answer("a")
    assert neighbour.token_ids == answer_to(asked("no-odd"), Mode.AUTOREGRESSIVE).token_ids
    assert (neighbour.speculation.accepted_tokens > 0) is (mode is not Mode.AUTOREGRESSIVE)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (WarperChoice("unknown"), "warpers: warper 'unknown' is not available; available: ascending, no-odd"),
        (
            WarperChoice("ascending", (("step", 0),)),
            "warpers: warper 'ascending' cannot be made: step: got 0",
        ),
        (WarperChoice("no-odd", (("x", 1),)), "warpers: warper 'no-odd' cannot be made"),
    ],
)
def test_a_warper_that_cannot_be_made_is_refused(choice: WarperChoice, message: str) -> None:
    """Before anything is computed: unknown names, wrong options."""
    made = rig(Mode.AUTOREGRESSIVE)
    made.limits = replace(made.limits, warpers=registry())
    with pytest.raises(RequestError) as caught:
        made.submit(asked(choice))
    assert str(caught.value).startswith(message.partition(", no-odd")[0])


class NothingBehind:
    """Raises where `token` has been said in the answer."""

    def __init__(self, token: int) -> None:
        self._token = token

    def warp(self, logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Tensor:
        """See `Warper`."""
        if self._token in token_ids[num_prompt:]:
            raise RuntimeError("asked behind the end")
        return logits


@EACH_MODE
@pytest.mark.parametrize("at", range(10))
@pytest.mark.parametrize("how", ["token", "string", "length"])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_what_would_fail_behind_the_end_does_not_fail(
    mode: Mode, at: int, how: str, logprobs: int | None
) -> None:
    """A span accepted past the end asks for places that plain decoding never reaches."""
    free = answer_to(asked(), Mode.AUTOREGRESSIVE)
    last = free.token_ids[at]
    ends = {
        "token": {"stop_token_ids": (last,)},
        "string": {"stop": (free.text[at],)},
        "length": {"max_tokens": 3},
    }
    made = rig(mode)
    made.limits.warpers.register("end", NothingBehind)
    last = free.token_ids[2] if how == "length" else last
    choice = WarperChoice("end", (("token", last),))
    request = asked(choice, logprobs=logprobs, **ends[how])  # type: ignore[arg-type]
    cut = free.token_ids[: free.token_ids.index(last) + 1]
    [answer] = asyncio.run(made.answers(request))
    assert answer.token_ids == cut
    assert [entry.token_id for entry in answer.logprobs] == ([] if logprobs is None else list(cut))


class Plugin:
    """Provides `no-odd`."""

    @hookimpl
    def ssd_register_warpers(self, registry: Registry[Warper]) -> None:
        """See `hooks/specs.py`."""
        registry.register("no-odd", NoOdd)


@pytest.mark.parametrize("policy", ["autoregressive", "speculative", "ssd", "hybrid"])
async def test_an_engine_serves_the_warpers_of_its_plugins(policy: str) -> None:
    """Registered by a hook, named by a request, on real lanes."""
    async with toy_engine(f"scheduler.policy={policy}", plugins=[Plugin()]) as engine:
        answer = await engine.complete(asked("no-odd"))
        assert all(token % 2 == 0 for token in answer.token_ids)
        assert VOCAB == 64
        with pytest.raises(RequestError, match="'ascending' is not available; available: no-odd"):
            await engine.complete(asked("ascending"))
