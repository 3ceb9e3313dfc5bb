"""The options that users of vLLM, SGLang and llama.cpp's server know, and what each is here.

docs/quickstart.md lists those that are taken; a test compares.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_runtime.cli.familiar import Alias, always, only, refused, sets, switch
from ssd_runtime.cli.speculative_config import LOOKUPS, speculative_config

ONE_DEVICE = "a role runs on one device; placement.target and placement.draft say which"
MEMORY = "engine.kv_cache_tokens says how many tokens the KV cache holds"
CORES = "placement.target and placement.draft name cores, as cpu:0-3"
ONE_KV_FORMAT = "engine.kv_cache_dtype: float32, fp16, fp8 or int8, for keys and values alike"
OWN_TOKENIZER = "tokenizer and chat template come with the model"


def _draft_model(name: str) -> Sequence[str]:
    return [f"engine.draft_model={LOOKUPS.get(name, name)}"]


def _on_the_hub(key: str, names: str) -> Alias:
    def read(name: str) -> Sequence[str]:
        if ":" in name:
            raise ValueError(f"got {name}; for one file of a repository fetch it and set {key}=FILE.gguf")
        return [f"{key}={name}"]

    return Alias(tuple(names.split()), read)


def _algorithm(name: str) -> Sequence[str]:
    if name == "STANDALONE":  # the model follows by its own option
        return []
    if name == "NGRAM":
        return ["engine.draft_model=ngram"]
    raise ValueError(f"got {name}, expected STANDALONE or NGRAM; engine.draft_model names what can draft")


def _spec_type(names: str) -> Sequence[str]:
    if names == "none":
        return ["engine.draft_model=none"]
    if names == "draft-simple":
        return []
    if all(name.startswith("ngram-") for name in names.split(",")):
        return ["engine.draft_model=ngram"]
    raise ValueError(
        f"got {names}, expected none, draft-simple or ngram-…; engine.draft_model names what can draft"
    )


TAKEN: tuple[Alias, ...] = (
    sets("server.host", "--host"),
    sets("server.port", "--port"),
    sets("engine.model", "--model --model-path -m"),
    sets("scheduler.max_tokens", "--max-model-len --context-length --ctx-size -c"),
    sets("engine.max_batch_size", "--max-num-seqs --max-running-requests --parallel -np"),
    sets("scheduler.max_batch_tokens", "--max-num-batched-tokens --chunked-prefill-size --batch-size -b"),
    sets("scheduler.max_queue", "--max-queued-requests"),
    sets("scheduler.order", "--scheduling-policy --schedule-policy"),
    sets("engine.kv_cache_dtype", "--kv-cache-dtype", auto="float32", fp8_e4m3="fp8"),
    sets("engine.quantization", "--quantization"),
    sets("engine.block_size", "--block-size --page-size"),
    sets("scheduler.swap_space", "--swap-space"),
    sets("scheduler.preempt_mode", "--preemption-mode"),
    sets("engine.logprobs_mode", "--logprobs-mode", raw_logprobs="raw", processed_logprobs="processed"),
    sets("engine.temperature", "--temp"),
    switch("engine.enable_prefix_caching=true", "--enable-prefix-caching --cache-prompt"),
    switch(
        "engine.enable_prefix_caching=false",
        "--no-enable-prefix-caching --no-cache-prompt --disable-radix-cache",
    ),
    Alias(("--speculative-config",), speculative_config),
    Alias(
        (
            "--speculative-model",
            "--speculative-draft-model-path",
            "--spec-draft-model",
            "--model-draft",
            "-md",
        ),
        _draft_model,
    ),
    sets(
        "engine.speculative_length",
        "--num-speculative-tokens --speculative-num-steps --spec-draft-n-max --draft-max --draft-n --draft",
    ),
    sets("engine.fallback_batch_threshold", "--speculative-disable-by-batch-size"),
    Alias(("--speculative-algorithm",), _algorithm),
    Alias(("--spec-type",), _spec_type),
    _on_the_hub("engine.model", "--hf-repo -hf"),
    _on_the_hub("engine.draft_model", "--spec-draft-hf --hf-repo-draft -hfd"),
)
"""Each becomes a setting."""

NEEDLESS: tuple[Alias, ...] = (
    always("--enable-chunked-prefill --cont-batching -cb --metrics --enable-metrics --jinja"),
    only("1", ONE_DEVICE, "--tensor-parallel-size -tp --tp --tp-size --pipeline-parallel-size -pp"),
    only("1", "drafts are chains, prepared for several outcomes", "--speculative-eagle-topk"),
    only("0", "a draft of any length is verified", "--spec-draft-n-min --draft-min"),
    only("0", "a GPU is placement.target=cuda:0", "--gpu-layers --n-gpu-layers -ngl"),
    only("auto", "engine.quantization is the weights' format", "--dtype"),
)
"""Taken where they ask for what is so anyway."""

REFUSED: tuple[Alias, ...] = (
    refused("the model is served under the name in engine.model", "--served-model-name --alias -a"),
    refused("SSD_SERVER__API_KEY or server.api_key_file: everybody sees a command line", "--api-key"),
    refused(MEMORY, "--gpu-memory-utilization --mem-fraction-static"),
    refused(CORES, "--threads --threads-batch -t -tb"),
    refused(ONE_KV_FORMAT, "--cache-type-k --cache-type-v -ctk -ctv"),
    refused("scheduler.max_batch_tokens is all that a round reads", "--ubatch-size -ub"),
    refused("engine.speculative_length, which is one less", "--speculative-num-draft-tokens"),
    refused("--mode hybrid measures when a draft pays", "--spec-draft-p-min --draft-p-min"),
    refused("--mode hybrid measures when a draft pays", "--speculative-adaptive", takes_value=False),
    refused(
        "engine.sampler: rejection is the ratio rule, engine.sampler: coupled the default; both are exact",
        "--speculative-use-rejection-sampling",
        takes_value=False,
    ),
    refused(
        "a drafted token is accepted only where the target would have drawn it",
        "--speculative-accept-threshold-single --speculative-accept-threshold-acc",
    ),
    refused(OWN_TOKENIZER, "--tokenizer --tokenizer-path --chat-template --chat-template-file"),
    refused("no code of a model is ever run", "--trust-remote-code", takes_value=False),
    refused("calls in answers are passed on as text", "--tool-call-parser"),
    refused("calls in answers are passed on as text", "--enable-auto-tool-choice", takes_value=False),
    refused("adapters (LoRA) are not offered; merge them into the model", "--enable-lora", takes_value=False),
    refused("adapters (LoRA) are not offered; merge them into the model", "--lora-modules --lora"),
    refused("server.otlp_endpoint, the receiver's base address", "--otlp-traces-endpoint"),
    refused("--max-tokens of pipe and chat, or max_tokens of a request", "--predict --n-predict -n"),
)
"""Each hint names what there is instead."""

ALIASES = (*TAKEN, *NEEDLESS, *REFUSED)
