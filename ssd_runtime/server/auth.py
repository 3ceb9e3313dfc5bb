"""The API key: where it comes from, and who must show it. What changes the daemon is never without one."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ssd_runtime.errors import ConfigError
from ssd_runtime.server.errors import RefusedError
from ssd_runtime.server.replies import error_response
from ssd_runtime.settings.schema import ServerSettings

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""What may be asked without a key: nothing that a user wrote is in it."""
ADMIN_PATHS = "/admin"
"""What begins like this exists only where a key is configured."""


def configured_key(settings: ServerSettings) -> str | None:
    """The key that requests must carry, or None; raises `ConfigError` for a file that gives none."""
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    if settings.api_key_file is None:
        return None
    try:
        key = Path(settings.api_key_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"server.api_key_file: {settings.api_key_file} cannot be read: {error}") from None
    if not key:
        raise ConfigError(f"server.api_key_file: {settings.api_key_file} is empty, expected a key")
    return key


_NO_KEY = RefusedError(
    401, "invalid_api_key", "the API key is missing or wrong; send `Authorization: Bearer KEY`"
)
_NO_ADMIN = RefusedError(
    403, "no_api_key", f"{ADMIN_PATHS} is closed while there is no key; set server.api_key_file"
)


class KeyCheck:
    """Middleware that answers 401 to requests without the key, and 403 to admin's where there is none."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._digest = None if key is None else _digest(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else error_response(refusal))(scope, receive, send)

    def _refusal(self, scope: Scope) -> RefusedError | None:
        path: str = scope["path"]
        if self._digest is None:
            return _NO_ADMIN if path.startswith(ADMIN_PATHS) else None
        return None if path in OPEN_PATHS or _has_key(scope, self._digest) else _NO_KEY


def _has_key(scope: Scope, digest: bytes) -> bool:
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    is_right = hmac.compare_digest(_digest(key.strip()), digest)
    return scheme.lower() == "bearer" and is_right


def _digest(key: str) -> bytes:
    """Of one length for every key, so that comparing takes one time."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
