"""What a decoder looks like: one frozen description, read from config.json or from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssd_runtime.errors import ModelError

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched; `kind` is one of `ROPE_KINDS`.

    The names are those of transformers' `rope_parameters`; each kind reads the ones it knows.
    """

    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything about a decoder's shape. Sizes in elements, `max_position` in tokens.

    windows: one entry a layer, the sliding window in tokens or None for full attention.
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    max_position: int
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope: RopeScaling = field(default_factory=RopeScaling)
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd; rotary positions need an even number")

    def window(self, layer: int) -> int | None:
        """The sliding window of `layer`, or None."""
        return self.windows[layer] if self.windows else None


def from_hf(raw: Mapping[str, Any]) -> DecoderConfig:
    """Read a Hugging Face `config.json`. Raises ModelError for what the decoder cannot run."""
    architecture = _architecture(raw)
    heads = int(_need(raw, "num_attention_heads"))
    hidden = int(_need(raw, "hidden_size"))
    return DecoderConfig(
        vocab_size=int(_need(raw, "vocab_size")),
        hidden=hidden,
        layers=int(_need(raw, "num_hidden_layers")),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        intermediate=int(_need(raw, "intermediate_size")),
        max_position=int(_need(raw, "max_position_embeddings")),
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(_rope_parameters(raw).get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope=_rope_scaling(raw),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=architecture == "Qwen2ForCausalLM" or bool(raw.get("attention_bias", False)),
        output_bias=architecture != "Qwen2ForCausalLM" and bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_windows(raw, architecture),
        eos_token_ids=token_ids(raw.get("eos_token_id")),
        bos_token_id=next(iter(token_ids(raw.get("bos_token_id"))), None),
    )


def from_gguf(metadata: Mapping[str, Any], vocab_size: int, tied: bool, qkv_bias: bool) -> DecoderConfig:
    """Read GGUF metadata; what only the tensors tell (vocabulary, tying, biases) is given."""
    arch = metadata.get("general.architecture")
    if arch not in GGUF_ARCHITECTURES:
        raise ModelError(
            f"architecture {arch!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)}"
        )
    values = {key.removeprefix(f"{arch}."): value for key, value in metadata.items()}
    heads = int(_need(values, "attention.head_count"))
    hidden = int(_need(values, "embedding_length"))
    layers = int(_need(values, "block_count"))
    window = values.get("attention.sliding_window")
    return DecoderConfig(
        vocab_size=vocab_size,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=int(values.get("attention.head_count_kv") or heads),
        head_dim=int(values.get("attention.key_length") or hidden // heads),
        intermediate=int(_need(values, "feed_forward_length")),
        max_position=int(_need(values, "context_length")),
        rms_eps=float(values.get("attention.layer_norm_rms_epsilon", 1e-6)),
        rope_theta=float(values.get("rope.freq_base", 10000.0)),
        rope=_gguf_rope(values),
        tie_embeddings=tied,
        qkv_bias=qkv_bias,
        qk_norm=arch == "qwen3",
        windows=(int(window),) * layers if window else (),
        eos_token_ids=token_ids(metadata.get("tokenizer.ggml.eos_token_id")),
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
    )


def token_ids(value: Any) -> tuple[int, ...]:
    """A field that holds no id, one id or a list of ids, as a tuple."""
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list | tuple) else (int(value),)


def _need(raw: Mapping[str, Any], key: str) -> Any:
    if raw.get(key) is None:
        raise ModelError(f"the model's configuration lacks {key!r}")
    return raw[key]


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or [f"(none given, model_type {raw.get('model_type')!r})"]
    name = str(names[0])
    if name not in HF_ARCHITECTURES:
        raise ModelError(f"architecture {name} is not supported; supported: {', '.join(HF_ARCHITECTURES)}")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"activation {activation!r} is not supported by the {name} decoder; expected 'silu'")
    return name


def _rope_parameters(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return parameters


def _rope_scaling(raw: Mapping[str, Any]) -> RopeScaling:
    given = _rope_parameters(raw)
    kind = str(given.get("rope_type") or given.get("type") or "default")
    if kind not in ROPE_KINDS:
        raise ModelError(f"rope scaling {kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    if given.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError("partial rotary embeddings are not supported")
    original = given.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    names = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
    options: dict[str, Any] = {name: float(given[name]) for name in names if given.get(name) is not None}
    return RopeScaling(
        kind=kind,
        original_max_position=int(original),
        attention_factor=given.get("attention_factor"),
        mscale=given.get("mscale"),
        mscale_all_dim=given.get("mscale_all_dim"),
        truncate=bool(given.get("truncate", True)),
        **options,
    )


def _windows(raw: Mapping[str, Any], architecture: str) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if not window or architecture == "LlamaForCausalLM":
        return ()
    layers = int(raw["num_hidden_layers"])
    if architecture == "MistralForCausalLM":
        return (int(window),) * layers
    if not raw.get("use_sliding_window", False):
        return ()
    kinds = raw.get("layer_types") or [
        "sliding_attention" if layer >= int(raw.get("max_window_layers", layers)) else "full_attention"
        for layer in range(layers)
    ]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _gguf_rope(values: Mapping[str, Any]) -> RopeScaling:
    kind = str(values.get("rope.scaling.type", "default"))
    kind = "default" if kind == "none" else kind
    if kind not in ("default", "linear", "yarn"):
        raise ModelError(f"rope scaling {kind!r} is not supported; supported: none, linear, yarn")
    original = values.get("rope.scaling.original_context_length") or values["context_length"]
    return RopeScaling(
        kind=kind,
        factor=float(values.get("rope.scaling.factor", 1.0)),
        original_max_position=int(original),
    )
