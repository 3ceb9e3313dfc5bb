"""The embedded model, SmolLM2-135M-Instruct, against transformers on the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.convert import converted, default_cache_dir
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import EMBEDDED, LoadedModel, load, resolve
from ssd_runtime.models.safetensors import SafetensorsFolder
from ssd_runtime.models.selfcheck import WHOLE_ROWS
from ssd_runtime.models.text_decoder import text_decoder
from ssd_runtime.types import Message

pytestmark = [pytest.mark.model, pytest.mark.slow]
TEXT = "The capital of France is Paris. 巴黎是法国的首都。 🗼 1234"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """The model as the runtime loads it, from the user's cache."""
    return load(resolve(EMBEDDED), Float32Quantizer(), progress=lambda *_: None)


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> Any:
    """transformers' own Llama with the weights of the cached conversion."""
    path, config = resolve(EMBEDDED).path, model.config
    assert path is not None
    described = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    llama = transformers.LlamaForCausalLM(described)
    weights = dict(SafetensorsFolder(converted(path, default_cache_dir(), lambda *_: None)))
    missing, unexpected = llama.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    llama.tie_weights()
    return llama.eval()


def test_the_weights_make_sense(model: LoadedModel) -> None:
    """The rows were put in the right order: the model knows a capital."""
    ids = model.tokenizer.encode("The capital of France is")
    logits = model.decoder.forward([ForwardRow(ids, 0, (0,), 1)], model.decoder.new_kv(1, 16))
    assert model.tokenizer.decode(logits[0].argmax(0, keepdim=True).tolist()) == " Paris"


def test_logits_equal_those_of_transformers(model: LoadedModel, reference: Any) -> None:
    """At every position within 1e-4 of transformers in float64, or as near to it as its own float32."""
    ids = model.tokenizer.render_chat([Message("user", TEXT)])
    with torch.inference_mode():
        theirs = reference(torch.tensor([ids])).logits[0]
        exact = reference.double()(torch.tensor([ids])).logits[0]
    kv = model.decoder.new_kv(8, 16)
    first = model.decoder.forward([ForwardRow(ids[:20], 0, range(8), 20)], kv)
    second = model.decoder.forward([ForwardRow(ids[20:], 20, range(8), len(ids) - 20)], kv)
    error = (torch.cat((first, second)) - exact).abs().max()
    assert error < max(1e-4, 1.2 * float((theirs - exact).abs().max()))


def test_rows_keep_their_bits_on_this_machine(model: LoadedModel) -> None:
    """The start-up check passes, and a decode step equals the same token in a batch and a verify row."""
    assert model.row_policy == WHOLE_ROWS
    ids = model.tokenizer.encode(TEXT)[:20]
    decoder, kv = model.decoder, model.decoder.new_kv(8, 16)
    whole = decoder.forward([ForwardRow(ids, 0, (0, 1), 20)], kv)
    decoder.forward([ForwardRow(ids[:15], 0, (2, 3), 1)], kv)
    single = decoder.forward([ForwardRow(ids[15:16], 15, (2, 3), 1)], kv)
    beside = decoder.forward([ForwardRow(ids[:9], 0, (5,), 1), ForwardRow(ids[15:20], 15, (2, 3), 5)], kv)
    assert torch.equal(single, whole[15:16])
    assert torch.equal(beside[1:], whole[15:])


def test_the_tokenizer_knows_its_template_and_its_end(model: LoadedModel) -> None:
    """A chat is rendered in ChatML, an answer ends with <|im_end|>, and text survives the round trip."""
    tokenizer = model.tokenizer
    assert tokenizer.has_chat_template
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.decode(tokenizer.render_chat([Message("user", "hi")])).endswith("user\nhi\nassistant\n")
    ids = tokenizer.encode(TEXT)
    decoder = text_decoder(tokenizer)
    assert "".join(decoder.push([token]) for token in ids) + decoder.flush() == TEXT
