"""ssd_runtime: speculative speculative decoding as a runtime. Importing it loads no torch."""
