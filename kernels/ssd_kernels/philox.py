"""Philox4x32-10: four 32-bit random words from a 128-bit counter and a 64-bit key.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Words are held in
int64 arrays, whose products wrap modulo 2^64, so results are exact on every device.
How the runtime fills counter and key is in docs/noise.md.
"""

from __future__ import annotations

from ssd_kernels.arrays import Array

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
MASK32 = 0xFFFFFFFF

Words = tuple[Array, Array, Array, Array]
Key = tuple[Array, Array]


def philox4x32_reference(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The generator in plain integers, for reading and for tests; all words in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1 = (product1 >> 32) ^ c1 ^ k0, product1 & MASK32
        c2, c3 = (product0 >> 32) ^ c3 ^ k1, product0 & MASK32
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK32, (k1 + KEY_STEPS[1]) & MASK32
    return c0, c1, c2, c3


def philox4x32(counter: Words, key: Key) -> Words:
    """The four output words, elementwise over int64 arrays that broadcast together.

    Every input word is in [0, 2^32), and so is every output word. A key that varies within one call
    varies along an axis that the counter words have too.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        # the high halves of c1 and c3 stay uncleared between rounds: `_mix` clears what it makes of them
        c0, c1 = _mix(product1, c1, k0), product1
        c2, c3 = _mix(product0, c3, k1), product0
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK32, (k1 + KEY_STEPS[1]) & MASK32
    return c0, c1 & MASK32, c2, c3 & MASK32


def _mix(product: Array, low: Array, key: Array) -> Array:
    mixed = (product >> 32) ^ low
    mixed ^= key
    mixed &= MASK32
    return mixed
