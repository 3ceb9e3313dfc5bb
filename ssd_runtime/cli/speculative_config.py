"""vLLM's `--speculative-config`, a JSON object, read as settings of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LOOKUPS = {"ngram": "ngram", "ngram_gpu": "ngram", "[ngram]": "ngram", "suffix": "suffix"}
WITH_A_MODEL = ("draft_model", None)
SETTINGS = {
    "num_speculative_tokens": "engine.speculative_length",
    "quantization": "engine.draft_quantization",
    "disable_by_batch_size": "engine.fallback_batch_threshold",
}
ONE = ("draft_tensor_parallel_size",)
HINTS = {
    "max_model_len": "scheduler.max_tokens holds for target and draft",
    "kv_cache_dtype": "the draft's keys and values are float32; engine.kv_cache_dtype is the target's",
    "prompt_lookup_min": "engine.fallback takes options, as [{name: ngram, min_match: 2}]",
    "prompt_lookup_max": "engine.fallback takes options, as [{name: ngram, max_match: 5}]",
    "rejection_sample_method": "engine.sampler: coupled, or rejection for the ratio rule",
    "draft_sample_method": "the draft draws as engine.sampler says",
    "num_speculative_tokens_per_batch_size": "--mode hybrid measures what is fastest at each batch size",
    "use_heterogeneous_vocab": "a draft must have the target's vocabulary",
    "suffix_decoding_max_cached_requests": "engine.fallback takes options, as "
    "[{name: suffix, max_cached_requests: 1000}]",
}


def speculative_config(text: str) -> Sequence[str]:
    """The `key=value` settings that the JSON object means; raises ValueError with what was expected."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"got no JSON ({error}), expected an object such as {_EXAMPLE}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"got {text}, expected an object such as {_EXAMPLE}")
    return [*_draft(fields), *_others(fields)]


_EXAMPLE = """'{"method": "ngram", "num_speculative_tokens": 4}'"""


def _draft(fields: Mapping[str, Any]) -> Iterator[str]:
    method, model = fields.get("method"), fields.get("model")
    lookup = LOOKUPS.get(method or model or "")
    if lookup is not None:
        yield f"engine.draft_model={lookup}"
    elif method not in WITH_A_MODEL:
        known = ", ".join([*dict.fromkeys(LOOKUPS.values()), "draft_model"])
        raise ValueError(f"method: got {method!r}, expected {known}; engine.draft_model says what drafts")
    elif not isinstance(model, str):
        raise ValueError(f"model: got {model!r}, expected a name; engine.draft_model: self needs none")
    else:
        yield f"engine.draft_model={model}"


def _others(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if name in ("method", "model") or (name in ONE and value == 1):
            continue
        if name not in SETTINGS:
            known = ", ".join(["method", "model", *SETTINGS, *ONE])
            raise ValueError(f"{name}: not taken here; {HINTS.get(name, f'expected {known}')}")
        yield f"{SETTINGS[name]}={json.dumps(value)}"
