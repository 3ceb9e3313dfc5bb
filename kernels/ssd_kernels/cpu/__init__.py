"""The native CPU lane: a decoder's forward pass as one call, compiled once per instruction set."""
