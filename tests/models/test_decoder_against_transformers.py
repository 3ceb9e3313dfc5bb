"""Logits equal those of transformers, on the same float32 weights, for every supported variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from ssd_runtime.errors import ModelError
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.config import from_hf
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer

BASE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
THETA = {"rope_theta": 10000.0}
YARN = THETA | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = THETA | {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("llama", {"rope_parameters": THETA | {"rope_type": "linear", "factor": 4.0}}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": YARN | {"attention_factor": 0.7, "truncate": False}}),
    ("mistral", {"sliding_window": None, "head_dim": 8}),
    ("mistral", {"sliding_window": 7, "head_dim": 8}),
    ("qwen2", {}),
    ("qwen2", SLIDING | {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", SLIDING | {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS, ids=[f"{f}-{'-'.join(c)}" for f, c in VARIANTS])
def test_logits_equal_those_of_transformers(family: str, changes: dict[str, Any]) -> None:
    """Fed in two chunks, every position's logits are within 1e-4 of transformers' own."""
    torch.manual_seed(0)
    raw = transformers.AutoConfig.for_model(family, **BASE | changes)
    reference = transformers.AutoModelForCausalLM.from_config(raw, attn_implementation="eager").eval()
    _randomise(reference)
    tokens = torch.randint(0, 61, (40,))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    described = raw.to_dict() | {"architectures": [type(reference).__name__]}
    decoder = Decoder(from_hf(described), reference.state_dict(), Float32Quantizer())
    kv = decoder.new_kv(num_blocks=4, block_size=16)
    ids, table = tokens.tolist(), (3, 0, 2)
    first = decoder.forward([ForwardRow(ids[:23], 0, table, 23)], kv)
    second = decoder.forward([ForwardRow(ids[23:], 23, table, 17)], kv)
    torch.testing.assert_close(torch.cat((first, second)), expected, atol=1e-4, rtol=0)


def _randomise(model: Any) -> None:
    """Biases and norms start as zeros and ones, under which mistakes would not show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.2 * noise)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPTNeoXForCausalLM"]}, "GPTNeoXForCausalLM is not supported"),
        ({"architectures": None, "model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """A configuration that the decoder would run wrongly is an error that names the reason."""
    with pytest.raises(ModelError, match=named):
        from_hf(BASE | {"architectures": ["LlamaForCausalLM"]} | changes)


def test_weights_that_do_not_fit_are_refused_by_name() -> None:
    """A missing weight and a wrong shape are errors that name the weight."""
    config = from_hf(BASE | {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(ModelError, match=r"lack 'model\.embed_tokens\.weight'"):
        Decoder(config, {}, Float32Quantizer())
    with pytest.raises(ModelError, match=r"embed_tokens\.weight: got shape \(3, 3\), expected \(61, 32\)"):
        Decoder(config, {"model.embed_tokens.weight": torch.zeros(3, 3)}, Float32Quantizer())
