"""What requests are answered when nobody else is there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b

from ssd_runtime.app import Engine
from ssd_runtime.build import LoadModel
from ssd_runtime.errors import RequestError
from ssd_runtime.settings.load import load_settings
from ssd_runtime.testing.client import COMPARED, unserved
from ssd_runtime.types import Answer, Request


def digest(answer: Answer | RequestError) -> bytes:
    """Everything in an answer that does not depend on how it came about."""
    if isinstance(answer, RequestError):
        return blake2b(str(answer).encode(), digest_size=16).digest()
    told = [tuple(getattr(one, name) for name in COMPARED) for one in answer.every]
    return blake2b(repr(told).encode(), digest_size=16).digest()


async def alone(engine: Engine, request: Request) -> bytes:
    """The digest of what it is answered when nobody else is there."""
    try:
        return digest(await engine.complete(unserved(request)))
    except RequestError as error:
        return digest(error)


async def different(
    asked: Sequence[tuple[Request, bytes]], settings: Sequence[str], load: LoadModel
) -> list[str]:
    """The ids of those requests whose answer is another than this digest says, alone, in plain decoding."""
    plain = (*settings, "scheduler.policy=autoregressive", "engine.max_batch_size=1")
    found = []
    async with Engine(load_settings(None, plain, {}), load_model=load) as engine:
        for number, (request, expected) in enumerate(asked, 1):
            if await alone(engine, request) != expected:
                found.append(request.id)
                sys.stderr.write(f"another answer alone: {request}\n")
            if number % 50 == 0:
                sys.stderr.write(f"{number} of {len(asked)} checked, {len(found)} different\n")
    return found
