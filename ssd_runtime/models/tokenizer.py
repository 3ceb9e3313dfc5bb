"""Text to token ids and back: what the runtime asks of a tokenizer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ssd_runtime.errors import ModelError, RequestError
from ssd_runtime.models.config import token_ids
from ssd_runtime.models.safetensors import read_json
from ssd_runtime.models.spelling import byte_level, word_level
from ssd_runtime.types import Message


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer.

    eos_token_ids: every id that ends an answer. special_ids: ids that `decode` skips.
    byte_ids: ids that stand for one raw byte each and are decoded a run at a time. pieces: what each id adds
    to a text, in bytes, nothing for special and unknown ones; None where that depends on its neighbours.
    template_words: the names that the chat template's code uses, of which `tools` and fields of messages
    are some.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    special_ids: frozenset[int]
    byte_ids: frozenset[int]
    pieces: Mapping[int, bytes] | None
    template_words: frozenset[str]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the model's own start token where it has one."""
        ...

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        for_answer: bool = True,
    ) -> list[int]:
        """Ids of a conversation in the model's chat template, ready for the answer or as it stands."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""
        ...

    def tokens(self) -> list[str]:
        """Every token as the vocabulary spells it, by id."""
        ...

    def spellings(self) -> Sequence[bytes]:
        """Every token in bytes, by id; special ones by their names."""
        ...


class HFTokenizer:
    """A fast tokenizer of transformers, read from a folder; see `Tokenizer` for the members.

    eos_token_ids: ids that the model's configuration names; the tokenizer's own and those of
    `generation_config.json` are added. Raises ModelError when the folder has no usable tokenizer.
    """

    def __init__(self, folder: Path, eos_token_ids: Sequence[int]) -> None:
        from tokenizers import decoders

        self._wrapped = _load(folder)
        self._backend = self._wrapped.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._spellings: list[bytes] | None = None
        self.vocab_size = len(self._wrapped)
        self.has_chat_template = bool(self._wrapped.chat_template)
        self.template_words = _words(str(self._wrapped.chat_template or ""))
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        bytes_ = (self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self.byte_ids = frozenset(token for token in bytes_ if token is not None)
        self.pieces: Mapping[int, bytes] | None = None
        if isinstance(self._backend.decoder, decoders.ByteLevel):
            pieces = defaultdict(bytes, enumerate(map(byte_level, self.tokens())))
            self.pieces = pieces | dict.fromkeys(self.special_ids, b"")
        own = token_ids(self._wrapped.eos_token_id)
        ids = {*eos_token_ids, *own, *_generation_eos(folder)}
        self.eos_token_ids: tuple[int, ...] = tuple(sorted(ids))

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`. Raises RequestError for text that is not valid Unicode."""
        return self._encode(text, True)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        for_answer: bool = True,
    ) -> list[int]:
        """See `Tokenizer.render_chat`. Raises RequestError when the template refuses the messages."""
        from jinja2 import TemplateError

        try:
            text = self._wrapped.apply_chat_template(
                list(map(_turn, messages)),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=for_answer,
            )
        except (TemplateError, ValueError) as error:
            raise RequestError(
                f"the model's chat template refuses the messages: {error}", "messages"
            ) from error
        return self._encode(text, False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text

    def tokens(self) -> list[str]:
        """See `Tokenizer.tokens`."""
        return [self._backend.id_to_token(token) or "" for token in range(self.vocab_size)]

    def spellings(self) -> Sequence[bytes]:
        """See `Tokenizer.spellings`; takes a while, once."""
        if self._spellings is None:
            spell = byte_level if "ByteLevel" in repr(self._backend.decoder) else word_level
            added = self._backend.get_added_tokens_decoder()
            self._spellings = [
                added[token].content.encode() if token in added else spell(text)
                for token, text in enumerate(self.tokens())
            ]
        return self._spellings

    def _encode(self, text: str, special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text is not valid Unicode: {error}", "prompt") from error
        # Only a batch lets other threads work meanwhile: 100 kB would hold every event loop for 60 ms.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = encoding.ids
        return ids


def _turn(message: Message) -> dict[str, Any]:
    more = {"name": message.name, "tool_calls": message.tool_calls, "tool_call_id": message.tool_call_id}
    given = {name: value for name, value in more.items() if value}
    return {"role": message.role, "content": message.content} | given


def _words(template: str) -> frozenset[str]:
    code = re.findall(r"{[{%](.*?)[}%]}", template, re.DOTALL)
    return frozenset(word for part in code for word in re.findall(r"\w+", part))


def save_gguf_tokenizer(path: Path, folder: Path) -> None:
    """Write the tokenizer inside a GGUF file to `folder`, as files that load quickly."""
    from transformers import AutoTokenizer

    try:
        wrapped = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:
        raise ModelError(f"{path}: its tokenizer cannot be read: {error}") from error
    wrapped.save_pretrained(folder)


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        wrapped = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"{folder}: its tokenizer cannot be read: {error}") from error
    if not wrapped.is_fast:
        raise ModelError(f"{folder}: has no tokenizer.json, which the runtime needs")
    return wrapped


def _generation_eos(folder: Path) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    return token_ids(read_json(path).get("eos_token_id")) if path.is_file() else ()
