"""What stands below the options in each command's `--help`; a test parses every line."""

from __future__ import annotations

DAEMON = (
    "ssd-run --config engine.yaml                    # serve what the file says",
    "ssd-run --set server.port=8000 --mode ssd       # serve the model that comes along",
    "ssd-run --set engine.model=model.gguf           # serve a file of your own",
    "ssd-run --config engine.yaml -                  # answer stdin instead, as `pipe` does",
)
PIPE = (
    'echo "Why is the sky blue?" | ssd-run pipe',
    "ssd-run pipe --max-tokens 64 --seed 7 < prompts.txt > answers.txt",
    "ssd-run pipe --format jsonl < requests.jsonl > answers.jsonl",
    "ssd-run pipe --raw --stop END --temperature 0 < beginnings.txt",
)
CHAT = (
    "ssd-run chat",
    "ssd-run chat --set engine.model=model.gguf --temperature 0",
    "ssd-run chat --mode ssd --max-tokens 200        # /stats then tells what SSD gave",
    'printf "Hello.\\nAnd now?\\n" | ssd-run chat',
)
BENCH = (
    "ssd-run bench",
    "ssd-run bench --modes autoregressive,ssd --batches 1 --temperatures 0",
    "ssd-run bench --prompts questions.jsonl:20 --json bench.json --plots pictures",
)
CHECK = (
    "ssd-run check --config engine.yaml",
    "ssd-run check --mode ssd --set engine.model=Qwen/Qwen3-0.6B",
    "ssd-run check --set placement.target=cpu:0 --set placement.draft=cpu:1",
)
SHOW = (
    "ssd-run config show --config engine.yaml        # every value, and where it came from",
    "ssd-run config show --set engine.top_p=0.5 > engine.yaml",
)
SCHEMA = ("ssd-run config schema > ssd-run.schema.json",)
PLUGINS = ("ssd-run plugins", "ssd-run plugins --set plugins=[ssd_plugins]")
VERSION = ("ssd-run version",)

EVERY = (DAEMON, PIPE, CHAT, BENCH, CHECK, SHOW, SCHEMA, PLUGINS, VERSION)


def epilog(examples: tuple[str, ...]) -> str:
    """The lines as they stand: \\b keeps click from filling them into a paragraph."""
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
