"""What the daemon never does, and what it does for those with a key only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ssd_runtime.server.auth import KeyCheck
from ssd_runtime.testing.asgi import get

ROOT = Path(__file__).parents[2]
SOURCES = [path for root in ("ssd_runtime", "plugins", "kernels") for path in (ROOT / root).rglob("*.py")]
FORBIDDEN = (
    r"\bimport pickle\b|\bfrom pickle\b|\bcloudpickle\b|\bdill\b",
    r"\btorch\.(load|save)\b",
    r"weights_only\s*=\s*False",
    r"trust_remote_code\s*=\s*True",
    r"\byaml\.(load|unsafe_load|full_load)\(",
    r"\b(eval|exec)\(",
    r"shell\s*=\s*True",
    r"\bnp\.load\b",
)


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_nothing_that_is_read_is_run(pattern: str) -> None:
    """Files and requests are data: no pickle, no code of a model's repository, no shell."""
    found = [
        path.name for path in SOURCES if re.search(rf"(?<!\.){pattern}", path.read_text(encoding="utf-8"))
    ]
    assert found == []


def guarded(key: str | None) -> Starlette:
    """An application with a page that only an administrator may see."""

    async def page(request: object) -> PlainTextResponse:
        return PlainTextResponse("changed")

    routes = [Route("/admin/change", page), Route("/ready", page)]
    return Starlette(routes=routes, middleware=[Middleware(KeyCheck, key)])


@pytest.mark.parametrize("path", ["/admin/change", "/admin", "/admin/nothing"])
async def test_admin_is_closed_while_there_is_no_key(path: str) -> None:
    """Whoever reaches the port could change the daemon; 403 says what to set."""
    exchange = await get(guarded(None), path)
    assert (exchange.status, exchange.json()["error"]["code"]) == (403, "no_api_key")
    assert "server.api_key_file" in exchange.json()["error"]["message"]
    assert (await get(guarded(None), "/ready")).status == 200


@pytest.mark.parametrize(
    ("key", "status"), [("", 401), ("secre", 401), ("secret ", 200), ("secret2", 401), ("secret", 200)]
)
async def test_admin_needs_the_key(key: str, status: int) -> None:
    """The same as everything else."""
    exchange = await get(guarded("secret"), "/admin/change", authorization=f"Bearer {key}")
    assert exchange.status == status
