"""Clients that come, go and mix their parameters do not change each other's answers.

    python scripts/check_daemon.py --orders 5

Starts the daemon with the embedded model in SSD mode. 64 requests of mixed parameters go through 16
clients, a seventh of them dropped at random points, in as many shuffled orders as are asked for. Every
survivor's token ids must be those that it gets alone, and in the end nothing runs or holds memory.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ssd_runtime.testing.daemon import COMMAND, QUIET, Daemon, running

CLIENTS = 16
IDLE_SECONDS = 1.0
SETTINGS = ("--mode", "ssd", "--set", "engine.max_batch_size=8")
GAUGES = ("ssd:num_requests_running", "ssd:num_requests_waiting", "ssd:kv_cache_usage_perc")
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "1, 2, 3, 4, 5, 6,",
    "Roses are red, violets are blue, roses are",
)


def mixed(number: int) -> dict[str, Any]:
    """A request; no two are alike, and each parameter has several values among the 64."""
    body: dict[str, Any] = {
        "prompt": f"{PROMPTS[number % 5]} {number}" if number % 4 else PROMPTS[number % 5],
        "max_tokens": 8 + number % 23,
        "temperature": (0, 0.7, 1.3)[number % 3],
        "top_p": (1, 0.8)[number % 2],
        "top_k": (0, 40, 5)[number // 3 % 3],
        "min_p": (0, 0.05)[number // 2 % 2],
        "seed": number,
        "stream": number % 2 == 0,
        "ignore_eos": number % 5 == 0,
        "speculation": {"mode": ("ssd", "speculative", "autoregressive", "ssd")[number % 4]},
    }
    extras: Sequence[dict[str, Any]] = (
        {},
        {"stop": ["the", "\n"]},
        {"presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"repetition_penalty": 1.2},
        {"logprobs": 2},
        {"logit_bias": {"28": 3, "30": -5}},
        {"min_tokens": 4},
        {"stop_token_ids": [28]},
    )
    return body | extras[number % len(extras)]


def is_dropped(body: dict[str, Any]) -> bool:
    """Whether the client of this request goes away."""
    return bool(body["seed"] % 7 == 0)


def ids(daemon: Daemon, body: dict[str, Any]) -> list[int]:
    """The token ids of an answer, streamed or not."""
    connection = daemon.post(body)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"request {body['seed']}: status {response.status}: {response.read().decode()}")
    parts = events(response) if body["stream"] else [json.loads(response.read())]
    answer = [token for part in parts for token in part["choices"][0]["token_ids"]]
    connection.close()
    return answer


def events(response: HTTPResponse) -> Iterator[Any]:
    """The events of a stream, which must end as it should."""
    for line in response:
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    raise SystemExit("a stream ended without [DONE]")


def drop(daemon: Daemon, body: dict[str, Any], chance: random.Random) -> None:
    """Ask, and go away: before the answer, in its midst, or after some time."""
    connection: HTTPConnection = daemon.post(body)
    if body["stream"] and chance.random() < 0.7:
        response = connection.getresponse()
        for _ in range(chance.randrange(8)):
            response.readline()
        response.close()
    else:
        time.sleep(chance.random())
    connection.close()


def together(daemon: Daemon, bodies: Sequence[dict[str, Any]], chance: random.Random) -> dict[int, list[int]]:
    """The survivors' token ids by seed, when 16 clients ask for `bodies`, each for its share."""

    def client(number: int) -> dict[int, list[int]]:
        own = random.Random(shares[number])
        answers = {}
        for body in bodies[number::CLIENTS]:
            if is_dropped(body):
                drop(daemon, body, own)
            else:
                answers[body["seed"]] = ids(daemon, body)
        return answers

    shares = [chance.random() for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        return {seed: found for part in pool.map(client, range(CLIENTS)) for seed, found in part.items()}


def wait_until_idle(daemon: Daemon) -> float:
    """Seconds until nothing runs, waits or holds a block; too many end the script."""
    started = time.monotonic()
    while any(values := gauges(daemon).values()):
        if time.monotonic() - started > IDLE_SECONDS:
            raise SystemExit(f"not idle after {IDLE_SECONDS} s: {values}")
    return time.monotonic() - started


def gauges(daemon: Daemon) -> dict[str, float]:
    """Running, waiting, used part of the KV cache."""
    families = text_string_to_metric_families(daemon.get("/metrics")[1])
    return {each.name: each.value for family in families for each in family.samples if each.name in GAUGES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=5)
    count = parser.parse_args().orders
    bodies = [mixed(number) for number in range(64)]
    survivors = [body for body in bodies if not is_dropped(body)]
    wrong = 0
    with running(*COMMAND, *SETTINGS, *QUIET) as daemon:
        daemon.logged("ready")
        alone = {body["seed"]: ids(daemon, body) for body in survivors}
        for order in range(count):
            chance = random.Random(order)
            found = together(daemon, chance.sample(bodies, len(bodies)), chance)
            seconds = wait_until_idle(daemon)
            different = [seed for seed in alone if found[seed] != alone[seed]]
            wrong += len(different)
            sys.stdout.write(
                f"order {order}: {len(found)} answers, {len(different)} unlike alone {different or ''}; "
                f"idle after {seconds:.3f} s\n"
            )
            sys.stdout.flush()
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
