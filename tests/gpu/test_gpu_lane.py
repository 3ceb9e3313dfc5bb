"""Lanes on a GPU say what lanes on the CPU say. Needs a CUDA device."""

from __future__ import annotations

import asyncio
from functools import lru_cache

import pytest

from ssd_runtime.app import Engine
from ssd_runtime.device.cuda import require_device
from ssd_runtime.errors import ConfigError
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.types import Request, SamplingParams

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
PROMPTS = ((9, 30, 12), (4, 8, 15, 16, 23, 42), tuple(range(1, 40)))
REQUESTS = tuple(
    Request(
        f"{temperature}-{index}",
        prompt_token_ids=prompt,
        params=SamplingParams(temperature=temperature, max_tokens=48, seed=index, ignore_eos=True),
    )
    for temperature in (0.0, 0.9)
    for index, prompt in enumerate(PROMPTS)
)


@pytest.fixture(autouse=True)
def _gpu() -> None:
    """Skips, and says why, where there is none."""
    try:
        require_device(GPU)
    except ConfigError as error:
        pytest.skip(str(error))


async def token_ids(engine: Engine) -> list[tuple[int, ...]]:
    """All requests at once, so that batches are ragged."""
    async with engine:
        answers = await asyncio.gather(*(engine.complete(request) for request in REQUESTS))
        return [answer.token_ids for answer in answers]


@lru_cache(maxsize=1)
def on_the_cpu() -> list[tuple[int, ...]]:
    """Plain decoding in float32, both lanes on the CPU."""
    return asyncio.run(token_ids(toy_engine("scheduler.policy=autoregressive")))


@pytest.mark.parametrize("policy", ["autoregressive", "speculative", "ssd"])
@pytest.mark.parametrize("draft", ["self", "toy/5"])
@pytest.mark.parametrize(
    ("target_place", "draft_place"),
    [(GPU, GPU), (GPU, "auto"), ("auto", GPU)],
    ids=["both", "target", "draft"],
)
async def test_a_gpu_gives_the_ids_of_the_cpu(
    policy: str, draft: str, target_place: str, draft_place: str
) -> None:
    """Every mode, greedy and sampled, a draft that is right and one that is wrong; both lanes on one GPU.

    The toy's logits differ by far more than the last bits in which the devices' sums differ.
    """
    expected = await asyncio.to_thread(on_the_cpu)
    engine = toy_engine(
        f"scheduler.policy={policy}",
        f"engine.draft_model={draft}",
        f"placement.target={target_place}",
        f"placement.draft={draft_place}",
    )
    assert await token_ids(engine) == expected
