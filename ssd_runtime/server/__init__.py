"""The daemon: an engine behind HTTP, with OpenAI's endpoints."""
