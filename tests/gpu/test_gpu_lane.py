"""Lanes on a GPU say what lanes on the CPU say. Needs a CUDA device."""

from __future__ import annotations

import asyncio
from functools import lru_cache

import pytest
import torch

from ssd_runtime.app import Engine
from ssd_runtime.device.cuda import require_device
from ssd_runtime.device.transfer import open_transfer
from ssd_runtime.errors import ConfigError
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.loading import place_model
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.toy import toy_decoder
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


def test_a_placed_model_works_on_the_gpu_and_answers_on_the_host() -> None:
    """Its KV lies on the GPU, its logits come back to host memory, and are the CPU's up to rounding."""
    model, transfer = toy_decoder(1), open_transfer(GPU)
    placed = place_model(model, transfer).decoder
    kv = placed.new_kv(4, 4)
    assert str(kv.data.device) == GPU
    row = ForwardRow(PROMPTS[0], 0, range(4), 3)
    with transfer.use():
        logits = placed.forward([row], kv)
    assert logits.device.type == "cpu"
    torch.testing.assert_close(logits, model.decoder.forward([row], model.decoder.new_kv(4, 4)))
    assert kv.data.any(), "the pass wrote its keys and values there"
