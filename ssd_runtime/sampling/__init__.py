"""Warping, noise, draws, verification and fan-out: pure functions, tensors in, values out."""
