"""Logarithm and power of two in float32, written out so that every device computes the same bits.

Each line is one rounded IEEE operation; multiply and add are never contracted into one. The library
functions would do on one machine, but their last bits depend on vector width and on where in a tensor
an element stands, and a row must not depend on its place. See docs/noise.md.
"""

from __future__ import annotations

from ssd_kernels.arrays import Array, bits_of, float_of, to_float32, to_int32

# Cephes logf: log(1 + f) = f - f²/2 + f³·P(f) on [√½ - 1, √2 - 1], highest power first
LOG_COEFFICIENTS = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
LN2_HIGH = 0.693359375
LN2_LOW = -2.12194440e-4
SQRT_HALF_BITS = 0x3F3504F3
MANTISSA_BITS = 23
EXPONENT_BIAS = 127

# (ln 2)^k / k!, k = 6 … 0: the Taylor series of 2^f, within 2e-7 (relative) on [-½, ½]
EXP2_COEFFICIENTS = (
    1.5403530393e-4,
    1.3333558146e-3,
    9.6181291076e-3,
    5.5504108665e-2,
    2.4022650696e-1,
    6.9314718056e-1,
    1.0,
)


def log(x: Array) -> Array:
    """Natural logarithm of positive, normal float32 `x` of any shape."""
    fraction, exponent = split(x)
    return log_of_parts(fraction, exponent)


def split(x: Array) -> tuple[Array, Array]:
    """`f` and `e`, both float32, with x = (1 + f)·2^e and 1 + f in [√½, √2); exact."""
    bits = bits_of(x)
    exponent = (bits - SQRT_HALF_BITS) >> MANTISSA_BITS
    return float_of(bits - (exponent << MANTISSA_BITS)) - 1.0, to_float32(exponent)


def log_of_parts(fraction: Array, exponent: Array) -> Array:
    """log((1 + fraction)·2^exponent) for float32 parts as `split` makes them."""
    square = fraction * fraction
    tail = fraction * square * polynomial(fraction, LOG_COEFFICIENTS)
    tail += exponent * LN2_LOW
    tail -= square * 0.5
    tail += fraction
    tail += exponent * LN2_HIGH
    return tail


def exp2(x: Array) -> Array:
    """2^x for float32 `x` in [-126, 127], of any shape; exact for whole `x`."""
    whole = x.round()
    power = polynomial(x - whole, EXP2_COEFFICIENTS)
    whole += EXPONENT_BIAS
    power *= float_of(to_int32(whole) << MANTISSA_BITS)
    return power


def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's rule, highest power first, each product and each sum rounded to float32."""
    result = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        result += coefficient
        result *= x
    result += coefficients[-1]
    return result
