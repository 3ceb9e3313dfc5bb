"""What clients in Python make of the daemon's answers, each in a process of its own.

    python tests/clients/python_clients.py openai http://127.0.0.1:8000

`scripts/check_clients.py` runs them all. A client that gets something else than it should ends with a
traceback.
"""

# mypy: ignore-errors
# The libraries are in an environment of their own; see requirements.txt.

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

MODEL = "smollm2-135m"
TURNS = [{"role": "user", "content": "Why is the sky blue?"}]
GIVEN = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
COMPLIED = {f"chat-{name}" for name in ("basic-response", "system-prompt", "multi-turn")} | {
    f"chat-streaming-{name}" for name in ("response", "usage")
}
"""What llm-comply asks and gets."""
DIFFERENT = {
    "chat-tool-calling": "the template of this model knows no tools",
    "chat-image-input": "it reads text alone",
    "chat-error-handling": "`model` may be left out",
}
"""What it expects and does not get, and why."""
TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}


def refusal(kind: type[Exception], call: Callable[[], object]) -> Exception:
    """What `call` raises, which is of this kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("it was taken")


def check_openai(url: str) -> None:
    """OpenAI's own: whole, streamed, several answers, log probabilities, schemas, errors."""
    from openai import BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=TURNS, **GIVEN)
    whole = raw.parse()
    assert raw.headers["x-request-id"] == whole.id
    assert whole.usage.completion_tokens_details.accepted_prediction_tokens >= 0
    assert whole.metrics["speculative_decoding"]["num_spec_tokens"] > 0
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(
        model=MODEL, messages=TURNS, stream=True, stream_options=options, **GIVEN
    )
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    )
    assert last.usage.total_tokens == whole.usage.total_tokens
    several = client.chat.completions.create(
        model=MODEL, messages=TURNS, n=3, logprobs=True, top_logprobs=2, max_tokens=6, stop=["\n"]
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert all(len(entry.top_logprobs) == 2 for entry in several.choices[0].logprobs.content)
    named = {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model=MODEL, messages=TURNS, response_format=named, max_completion_tokens=40
    )
    assert json.loads(answer.choices[0].message.content)["colour"] in ("red", "green", "blue")
    text = client.completions.create(
        model=MODEL, prompt="The capital of France is", logprobs=1, echo=True, **GIVEN
    )
    assert text.choices[0].text.startswith("The capital of France is")
    for wrong, error in (({"temperature": 5}, BadRequestError), ({"model": "gpt-4o"}, NotFoundError)):
        fields = {"model": MODEL, "messages": TURNS, **wrong}
        refused = refusal(error, lambda given=fields: client.chat.completions.create(**given))
        assert refused.param == next(iter(wrong))
    refused = refusal(
        BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=TURNS, tools=[TOOL])
    )
    assert refused.param == "tools"  # this model's template knows none


def check_litellm(url: str) -> None:
    """LiteLLM, which translates between vendors."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    where = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}
    whole = litellm.completion(messages=TURNS, **where, **GIVEN)
    pieces = litellm.completion(messages=TURNS, stream=True, **where, **GIVEN)
    streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert streamed == whole.choices[0].message.content
    assert whole.usage.total_tokens > 24
    text = litellm.text_completion(
        prompt="The capital of France is", **(where | {"model": f"text-completion-openai/{MODEL}"}), **GIVEN
    )
    assert text.choices[0].text
    refused = refusal(
        litellm.BadRequestError, lambda: litellm.completion(messages=TURNS, temperature=5, **where)
    )
    assert "temperature" in str(refused)


def check_langchain(url: str) -> None:
    """LangChain's model for OpenAI: invoke, stream, and structured output."""
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", max_retries=0, **GIVEN)
    whole = model.invoke("Why is the sky blue?")
    assert whole.usage_metadata["output_tokens"] == 24
    assert "".join(chunk.content for chunk in model.stream("Why is the sky blue?")) == whole.content
    structured = model.with_structured_output({"title": "Colour", **SCHEMA}, method="json_schema")
    assert structured.invoke("Name a colour.")["colour"] in ("red", "green", "blue")


def check_llm(url: str) -> None:
    """The command `llm`, configured as its users do."""
    with tempfile.TemporaryDirectory() as folder:
        entry = f"- model_id: ours\n  model_name: {MODEL}\n  api_base: {url}/v1\n"
        (Path(folder) / "extra-openai-models.yaml").write_text(entry, encoding="utf-8")
        command = [Path(sys.executable).with_name("llm"), "--no-log", "-m", "ours", "Why is the sky blue?"]
        options = [part for name in ("max_tokens", "seed") for part in ("-o", name, str(GIVEN[name]))]
        answers = [
            subprocess.run(
                [*command, "-o", "temperature", "0", *options, *how],
                env={**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for how in ([], ["--no-stream"])
        ]
    assert answers[0].strip() == answers[1].strip() != ""


def check_llm_comply(url: str) -> None:
    """llm-comply, which holds answers against OpenAI's specification."""
    where = ["--base-url", f"{url}/v1", "--api-key", "none", "--model", MODEL, "--timeout", "300"]
    command = [Path(sys.executable).with_name("llm-comply"), "run", "--format", "openai-chat", "--json"]
    told = subprocess.run([*command, *where], check=False, capture_output=True, text=True).stdout
    sys.stdout.write(told)
    results = json.loads(told)["results"]
    named = {
        status: {result["id"] for result in results if result["status"] == status}
        for status in ("passed", "failed")
    }
    assert named == {"passed": COMPLIED, "failed": DIFFERENT.keys()}


CLIENTS = {
    "openai": check_openai,
    "litellm": check_litellm,
    "langchain": check_langchain,
    "llm": check_llm,
    "llm-comply": check_llm_comply,
}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](sys.argv[2])
    sys.stdout.write(f"{sys.argv[1]}: all as it should be\n")
