"""The built-in plugins of ssd_runtime; they use only `ssd_runtime.api`."""
