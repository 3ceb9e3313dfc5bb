"""Rotary frequencies with their scalings, as transformers' `modeling_rope_utils` defines them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssd_runtime.models.config import DecoderConfig, RopeScaling


def rope_frequencies(config: DecoderConfig) -> tuple[Tensor, float]:
    """Angle per position for each pair, `[head_dim / 2]` float32, and the factor on cos and sin."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    rope = config.rope
    if rope.frequency_divisors is not None:
        plain = plain / torch.tensor(rope.frequency_divisors)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, config), _yarn_attention(rope)
    return plain, 1.0


def _llama3(plain: Tensor, rope: RopeScaling) -> Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    wavelength = 2 * math.pi / plain
    low = rope.original_max_position / rope.low_freq_factor
    high = rope.original_max_position / rope.high_freq_factor
    share = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * plain / rope.factor + share * plain
    scaled = torch.where(wavelength > low, plain / rope.factor, blended)
    return torch.where(wavelength < high, plain, scaled)


def _yarn(plain: Tensor, config: DecoderConfig) -> Tensor:
    """YaRN (arXiv 2309.00071): a ramp over dimensions from kept to interpolated frequencies."""
    rope = config.rope

    def dimension(rotations: float) -> float:
        wavelength = rope.original_max_position / (rotations * 2 * math.pi)
        return config.head_dim * math.log(wavelength) / (2 * math.log(config.rope_theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    span = high - low or 0.001
    ramp = ((torch.arange(len(plain), dtype=torch.float32) - low) / span).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_attention(rope: RopeScaling) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
