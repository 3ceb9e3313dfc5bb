"""`/openapi.json` is complete and true: every route is in it, and every answer is as it says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.routing import Route

from ssd_runtime.server.app import create_app
from ssd_runtime.server.openapi import document as document_of
from ssd_runtime.server.service import Service
from ssd_runtime.settings.request import NOT_BUILT, NOT_OFFERED, RequestBody
from ssd_runtime.settings.schema import Settings
from ssd_runtime.testing.asgi import Exchange, get, post, served
from ssd_runtime.testing.engines import toy_engine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = {"prompt": "HELLO", "max_tokens": 4, "ignore_eos": True}
TURNS = {"messages": [{"role": "user", "content": "HI"}], "max_tokens": 4, "ignore_eos": True}
EXCHANGES: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {}),
    (COMPLETIONS, {"logprobs": 2}),
    (COMPLETIONS, {"logprobs": 2, "echo": True}),
    (COMPLETIONS, {"n": 2, "prompt_logprobs": 1}),
    (COMPLETIONS, {"temperature": 5}),
    (COMPLETIONS, {"model": "gpt-4o"}),
    (COMPLETIONS, {"speculation": {"enabled": False}}),
    (COMPLETIONS, {"max_tokens": 10**6}),
    (CHAT, {}),
    (CHAT, {"logprobs": True, "top_logprobs": 2}),
    (CHAT, {"n": 2}),
    ("/tokenize", {"return_token_strs": True}),
    ("/detokenize", {}),
    ("/detokenize", {"tokens": [99]}),
]
BODIES: list[tuple[str, dict[str, Any], bool]] = [
    ("CompletionBody", {"prompt": "a"}, True),
    ("CompletionBody", {"prompt": [1, 2], "stop": "x", "logit_bias": {"1": 5}}, True),
    ("CompletionBody", {"prompt": ["a"], "tools": [], "lora": None}, True),
    ("CompletionBody", {"prompt": ["a", "b"]}, False),
    ("CompletionBody", {"prompt": "a", "temperature": 3}, False),
    ("CompletionBody", {"prompt": "a", "colour": 3}, False),
    ("CompletionBody", {}, False),
    ("CompletionBody", {"prompt": "a", "model": "gpt-4o"}, False),
    ("CompletionBody", {"prompt": "a", "top_k": 2.0, "seed": 1e3}, True),
    ("CompletionBody", {"prompt": "a", "top_k": 2.5}, False),
    ("ChatCompletionBody", {"messages": [{"role": "assistant", "tool_calls": []}]}, False),
    ("ChatCompletionBody", {"messages": [{"role": "assistant", "content": None}]}, False),
    ("ChatCompletionBody", {"messages": [{"role": "user", "content": "a", "refusal": None}]}, True),
    (
        "ChatCompletionBody",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        True,
    ),
    ("ChatCompletionBody", {"messages": []}, False),
    ("ChatCompletionBody", {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}, False),
]
PATHS = ("/v1/models", "/v1/models/smollm2-135m", "/v1/models/other", "/health", "/ready", "/version")


def document() -> dict[str, Any]:
    """The daemon's."""
    return document_of("smollm2-135m")


def schema(name: str) -> dict[str, Any]:
    """One of the document's schemas, with all others."""
    return {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}


def described(path: str, method: str, status: int) -> Mapping[str, Any]:
    """What the document says of one answer."""
    paths = document()["paths"]
    entry = paths.get(path) or paths["/v1/models/{model}"]
    answer: Mapping[str, Any] = entry[method]["responses"][str(status)]
    return answer


def check(path: str, method: str, exchange: Exchange) -> None:
    """Hold an answer against the document."""
    content = described(path, method, exchange.status)["content"]
    content_type = exchange.headers["content-type"].partition(";")[0]
    if content_type == "text/event-stream":
        name = described(path, method, 200)["content"]["application/json"]["schema"]["$ref"].rpartition("/")[
            2
        ]
        for event in exchange.events():
            Draft202012Validator(schema(f"{name}Chunk")).validate(event)
    else:
        found = dict(content[content_type]["schema"]) | {"components": document()["components"]}
        Draft202012Validator(found).validate(exchange.json())


@pytest.fixture(name="app")
async def toy_app() -> AsyncIterator[Starlette]:
    service = Service(Settings())
    settings = ("scheduler.policy=ssd", "engine.draft_model=toy/1")
    async with served(toy_engine(*settings, plugins=[service.metrics]), service) as (app, _):
        assert isinstance(app, Starlette)
        yield app


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, dict[str, Any]] = {
        COMPLETIONS: PROMPT,
        CHAT: TURNS,
        "/tokenize": {"prompt": "A"},
        "/detokenize": {"tokens": [34]},
    }
    return given[path] | fields


@pytest.mark.parametrize("option", [None, "include_usage", "continuous_usage_stats"])
async def test_an_answer_is_as_the_document_says(app: Starlette, option: str | None) -> None:
    """Whole and streamed, good and bad: nothing is missing, nothing more is there."""
    for path, fields in EXCHANGES:
        if not (option and "tokenize" in path):
            more = {"stream": True, "stream_options": {option: True}} if option else {}
            check(path, "post", await post(app, path, body_of(path, fields) | more))


async def test_a_page_is_as_the_document_says(app: Starlette) -> None:
    """Also that the model is another."""
    for path in PATHS:
        check(path, "get", await get(app, path))


async def test_every_route_is_in_the_document(app: Starlette) -> None:
    """With its method; and the document has no others."""
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    document_routes = {
        (path, method)
        for path, entry in document()["paths"].items()
        for method in entry
        if method != "parameters"
    }
    assert routes == document_routes


async def test_the_document_is_served_and_valid(app: Starlette) -> None:
    """Every reference leads somewhere, and every schema is one."""
    served_document = (await get(app, "/openapi.json")).json()
    assert served_document == json.loads(json.dumps(document()))
    for name in served_document["components"]["schemas"]:
        Draft202012Validator.check_schema(schema(name))
        list(Draft202012Validator(schema(name)).iter_errors({"a": 1}))


@pytest.mark.parametrize("name", ["CompletionBody", "ChatCompletionBody"])
def test_every_field_of_a_request_is_described(name: str) -> None:
    """What is checked is what is described: taken fields, and those that may only be null."""
    properties = document()["components"]["schemas"][name]["properties"]
    elsewhere = {"id", "raw", "prompt_token_ids", "prompt", "messages", "suffix"}
    assert RequestBody.model_fields.keys() - elsewhere <= properties.keys()
    assert NOT_BUILT | NOT_OFFERED.keys() <= properties.keys()


async def test_the_document_and_the_daemon_agree_about_bodies(app: Starlette) -> None:
    """What one takes, the other takes."""
    for name, body, is_good in BODIES:
        assert Draft202012Validator(schema(name)).is_valid(body) == is_good, body
        path = CHAT if name == "ChatCompletionBody" else COMPLETIONS
        assert ((await post(app, path, {**body, "max_tokens": 1})).status == 200) == is_good, body


async def test_while_loading_the_document_holds_too() -> None:
    """No context is known yet."""
    app = create_app(Service(Settings()))
    for path in ("/v1/models", "/ready", "/health", "/version"):
        check(path, "get", await get(app, path))
    check(COMPLETIONS, "post", await post(app, COMPLETIONS, PROMPT))
