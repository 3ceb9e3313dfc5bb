"""The oracle: the same weights in transformers' own model, with its own tokenizer files."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from ssd_runtime.errors import ModelError
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.convert import converted, default_cache_dir, is_converted, read_config
from ssd_runtime.models.hub import fetch
from ssd_runtime.models.loading import SourceKind, resolve
from ssd_runtime.models.safetensors import SafetensorsFolder


class Reference:
    """transformers' model in float32 and tokenizer for the model called `name`.

    Raises `ModelError` for a model that is not there, or a GGUF file that is not of the Llama family.
    """

    def __init__(self, name: str) -> None:
        folder = model_folder(name)
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self._model: Any = _converted_model(folder) if is_converted(folder) else _hub_model(folder)
        self._model.eval()
        self._exact: Any = None

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of one user message in the chat template, or of the text itself without a template."""
        if not self._tokenizer.chat_template:
            return list(self._tokenizer(text).input_ids)
        turns = [{"role": "user", "content": text}]
        rendered = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer(rendered, add_special_tokens=False).input_ids)

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], count: int) -> Tensor:
        """Logits after the last `count` of `token_ids`: float32 `[count, V]`."""
        output: Tensor = self._model(torch.tensor([token_ids]), logits_to_keep=count).logits[0]
        return output

    @torch.inference_mode()
    def exact_logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits after each of `token_ids` by the same weights in float64: `[N, V]`."""
        if self._exact is None:
            self._exact = copy.deepcopy(self._model).double()
        output: Tensor = self._exact(torch.tensor([token_ids])).logits[0]
        return output

    @torch.inference_mode()
    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, end_ids: Sequence[int]) -> list[int]:
        """`generate(do_sample=False)`: the new ids, the end token included."""
        ids = torch.tensor([prompt_ids])
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(end_ids),
            pad_token_id=end_ids[0],
        )
        new: list[int] = output[0, len(prompt_ids) :].tolist()
        return new

    @torch.inference_mode()
    def continued(self, prompt_ids: Sequence[int], count: int) -> list[int]:
        """Exactly `count` new ids, greedy: the end token is never taken."""
        ids = torch.tensor([prompt_ids])
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )
        new: list[int] = output[0, len(prompt_ids) :].tolist()
        return new


def model_folder(name: str) -> Path:
    """The folder of float32 weights that the runtime reads for `name`. Raises `ModelError`."""
    source = resolve(name)
    if source.path is None:
        return fetch(source.name, _no_progress)
    if source.kind is SourceKind.GGUF:
        return converted(source.path, default_cache_dir(), _no_progress)
    return source.path


def _hub_model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _converted_model(folder: Path) -> Any:
    """A converted GGUF file has no config.json: the configuration is told to transformers here."""
    config = read_config(folder)
    if config.qkv_bias or config.qk_norm or config.windows or config.rope.kind != "default":
        raise ModelError(f"{folder}: the reference for GGUF files knows plain Llama models only")
    model = transformers.LlamaForCausalLM(llama_config(config))
    missing, unexpected = model.load_state_dict(dict(SafetensorsFolder(folder)), strict=False)
    if unexpected or (set(missing) - {"lm_head.weight"}):
        raise ModelError(f"{folder}: weights missing {missing}, unexpected {unexpected}")
    return model


def llama_config(config: DecoderConfig) -> Any:
    """transformers' configuration of a plain Llama decoder."""
    return transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.rms_eps,
        rope_theta=config.rope_theta,
        tie_word_embeddings=config.tie_embeddings,
        bos_token_id=config.bos_token_id,
        eos_token_id=list(config.eos_token_ids),
    )


def _no_progress(what: str, done: int, total: int) -> None:
    """Report to nobody."""
