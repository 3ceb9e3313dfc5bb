"""Models of the Hugging Face hub: from the local cache, else downloaded. Never pickled weights."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ssd_runtime.errors import ModelError
from ssd_runtime.models.loading import Progress

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]


def fetch(repo_id: str, progress: Progress) -> Path:
    """The folder of a hub model. Environment: huggingface_hub's own (HF_HOME, HF_ENDPOINT, …).

    Raises ModelError when it is not in the cache and cannot be downloaded.
    """
    return _cached(repo_id) or _downloaded(repo_id, progress)


def _cached(repo_id: str) -> Path | None:
    """The snapshot of an earlier download, when it is whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from ssd_runtime.models.safetensors import weight_files

    try:
        folder = Path(snapshot_download(repo_id, allow_patterns=PATTERNS, local_files_only=True))
        weight_files(folder)
    except (LocalEntryNotFoundError, ModelError):
        return None
    return folder if (folder / "config.json").is_file() else None


def _downloaded(repo_id: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    bar = _bar(f"downloading {repo_id}", progress)
    try:
        return Path(snapshot_download(repo_id, allow_patterns=PATTERNS, tqdm_class=bar))
    except RepositoryNotFoundError as error:
        raise ModelError(f"the hub has no model {repo_id!r}, or it needs a login (hf auth login)") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"model {repo_id!r} is not in the local cache and cannot be downloaded "
            f"({type(error).__name__}); check the network, or name a local folder or .gguf file"
        ) from error


def _bar(what: str, progress: Progress) -> type[Any]:
    """A tqdm class that draws nothing and reports to `progress`."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": False, "file": io.StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            progress(what, int(self.n), int(self.total or 0))

        def close(self) -> None:
            self.disable = True  # bars are closed late, by the garbage collector; nobody waits then

    return Bar
