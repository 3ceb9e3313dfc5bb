"""Greedy answers of the real model are transformers' own, with and without speculation."""

from __future__ import annotations

import pytest

from scripts.oracle_greedy import compare, engine_answers
from scripts.prompts import SHIPPED, load_prompts
from scripts.reference import Reference
from ssd_runtime.build import load_configured_model, no_progress
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import EMBEDDED, LoadedModel

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]
TOKENS = 24


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(EMBEDDED)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_configured_model(EMBEDDED, Float32Quantizer(), no_progress)


@pytest.mark.parametrize("mode", ["autoregressive", "ssd"])
async def test_greedy_ids_and_logits_are_those_of_transformers(
    mode: str, model: LoadedModel, reference: Reference
) -> None:
    """Equal ids up to a near tie of transformers' own logits; logits as exact as its float32."""
    prompts = load_prompts([str(SHIPPED)])
    prompts = [prompts[0], prompts[3], prompts[-1]]
    answers = await engine_answers(prompts, TOKENS, [f"scheduler.policy={mode}"])
    for prompt, answer in zip(prompts, answers, strict=True):
        result = compare(prompt, answer, TOKENS, model, reference)
        assert result.passes, result.line()
