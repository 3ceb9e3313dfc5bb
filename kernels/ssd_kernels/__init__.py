"""Operators of ssd_runtime, each with its plain reference beside it."""
