"""The daemon follows its file while it serves, and no answer shows it: `POST /admin/reload`, SIGHUP."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from starlette.types import ASGIApp

from ssd_runtime.engine.thread import LoopThread
from ssd_runtime.errors import ConfigError, EngineClosedError, ModelError, PluginError
from ssd_runtime.hooks.kinds import Observer
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.server.app import create_app
from ssd_runtime.server.openapi import document
from ssd_runtime.server.service import Service
from ssd_runtime.settings.difference import RELOADABLE
from ssd_runtime.stats import RoundRecord
from ssd_runtime.testing.asgi import JSON, Exchange, post, served
from ssd_runtime.testing.daemon import running
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.fake_engine import FakeEngine
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import ToyTokenizer, toy_decoder

RELOAD, COMPLETIONS = "/admin/reload", "/v1/completions"
KEY = {"authorization": "Bearer secret"}
SSD = {"engine": {"draft_model": "self"}, "scheduler": {"policy": "ssd"}}
ASKED = {"ignore_eos": True, "temperature": 0.9, "stream": True}
CLIENTS = range(8)


class File:
    """A configuration that changes: its first content, then what `write` adds to it."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        self.path = folder / "engine.yaml"
        self._content = content
        self.write()

    def write(self, **sections: Any) -> None:
        """Other values in some sections; these alone."""
        content = {name: {**self._content.get(name, {}), **value} for name, value in sections.items()}
        self.path.write_text(yaml.safe_dump({**self._content, **content}), encoding="utf-8")


@pytest.fixture(name="file")
def configuration(tmp_path: Path) -> File:
    return File(tmp_path, SSD)


async def reloaded(app: ASGIApp) -> dict[str, Any]:
    """The answer, which is as the document says."""
    exchange = await post(app, RELOAD, b"", **KEY)
    assert exchange.status == 200, exchange.body
    components = document("smollm2-135m")["components"]
    schema = {"$ref": "#/components/schemas/Reloaded", "components": components}
    Draft202012Validator(schema).validate(exchange.json())
    answer: dict[str, Any] = exchange.json()
    return answer


def names(changes: list[dict[str, str]]) -> list[str]:
    return [change["setting"] for change in changes]


class Brake:
    """An observer that stops the rounds so many `times`, after two of every client, until `release`.

    So a change meets all of them in the middle of their answers, however fast the machine is.
    """

    def __init__(self) -> None:
        self.times = 0
        self.held = threading.Semaphore(0)
        self._let = threading.Semaphore(0)
        self._seen: dict[str, int] = {}

    @hookimpl
    def ssd_register_observers(self, registry: Registry[Observer]) -> None:
        """Once for each engine."""
        registry.register("brake", lambda: self)

    def observe(self, record: RoundRecord) -> None:
        """On the engine's loop, which stands still meanwhile."""
        if not self.times or record.request_id == "warm-up":
            return
        self._seen[record.request_id] = self._seen.get(record.request_id, 0) + 1
        if len(self._seen) == len(CLIENTS) and min(self._seen.values()) >= 2:
            self._seen.clear()
            self.times -= 1
            self.held.release()
            assert self._let.acquire(timeout=60)

    def release(self) -> None:
        """Go on."""
        self._let.release()


@pytest.fixture(name="brake")
def held_rounds(monkeypatch: pytest.MonkeyPatch) -> Brake:
    """Released as soon as a change is on its way to the engine's loop."""
    brake, call = Brake(), LoopThread.call

    def calling(self: LoopThread, function: Callable[..., object], *arguments: Any) -> None:
        call(self, function, *arguments)
        if getattr(function, "__name__", "") == "between_rounds":
            brake.release()

    monkeypatch.setattr(LoopThread, "call", calling)
    return brake


def begin(app: ASGIApp, max_tokens: int = 160) -> list[Exchange]:
    """Eight streams, each with a prompt and a seed of its own."""
    bodies = [{**ASKED, "prompt": f"HELLO {i}", "seed": i, "max_tokens": max_tokens} for i in CLIENTS]
    return [Exchange(app, "POST", COMPLETIONS, body, {**JSON, **KEY}) for body in bodies]


async def ids(exchanges: list[Exchange]) -> list[list[int]]:
    """What each stream brought; all ended as they should."""
    for exchange in exchanges:
        await exchange.done()
        assert exchange.status == 200
        assert exchange.events()[-1]["choices"][0]["finish_reason"] == "length"
    return [
        [token for event in exchange.events() for choice in event["choices"] for token in choice["token_ids"]]
        for exchange in exchanges
    ]


async def undisturbed(max_tokens: int = 160) -> list[list[int]]:
    """The ids of the eight streams without a reload."""
    async with served(toy_engine("engine.draft_model=none"), key="secret") as (app, _):
        return await ids(begin(app, max_tokens))


def lanes() -> list[str]:
    """The threads of engines."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("ssd-"))


class TestUnderLoad:
    async def test_eight_streams_go_on_with_the_same_texts(self, file: File, brake: Brake) -> None:
        """self, ngram, self; plain and back; other budgets; at last coupled becomes rejection."""
        expected = await undisturbed()
        engine = toy_engine(plugins=[brake], config=file.path)
        steps: list[dict[str, Any]] = [
            {"engine": {"draft_model": "ngram"}},
            {"engine": {"draft_model": "self", "cache_policy": "uniform", "branch_budget": 3}},
            {"scheduler": {"policy": "autoregressive"}},
            {"scheduler": {"policy": "speculative"}, "engine": {"speculative_length": 2}},
            {"engine": {"sampler": {"name": "rejection", "c": 0.5}}},
            {"engine": {"draft_quantization": "int8"}},
        ]
        async with served(engine, key="secret") as (app, service):
            brake.times = len(steps)
            streams = begin(app)
            for step in steps:
                await asyncio.to_thread(brake.held.acquire)
                assert service.snapshot().running == len(CLIENTS)
                file.write(**step)
                answer = await reloaded(app)
                assert names(answer["needs_restart"]) == []
            assert await ids(streams) == expected
            snapshot = service.snapshot()
        assert snapshot.num_violations == 0

    async def test_who_begins_after_the_change_has_the_new_sampler(self, file: File, brake: Brake) -> None:
        """Those before keep theirs, in the same rounds; coupled again is as if nothing had been."""
        expected = await undisturbed(24)
        engine = toy_engine("engine.speculative_length=2", plugins=[brake], config=file.path)
        async with served(engine, key="secret") as (app, _):
            brake.times = 1
            before = begin(app, 24)
            await asyncio.to_thread(brake.held.acquire)
            file.write(engine={"sampler": "rejection"})
            assert names((await reloaded(app))["changed"]) == ["engine.sampler"]
            between = begin(app, 24)
            assert await ids(before) == expected
            by_chance = await ids(between)
            assert all(one != coupled for one, coupled in zip(by_chance, expected, strict=True))
            file.write()
            await reloaded(app)
            assert await ids(begin(app, 24)) == expected


class TestAnswers:
    async def test_it_says_what_changed_and_what_needs_a_restart(self, file: File) -> None:
        """With the names and both values; what needs a restart is said until there is one."""
        async with served(toy_engine("engine.top_p=0.5", config=file.path), key="secret") as (app, service):
            file.write(engine={"draft_model": "ngram", "top_p": 0.1}, server={"port": 9000})
            port = {"setting": "server.port", "old": "8000", "new": "9000"}
            draft = {"setting": "engine.draft_model", "old": "self", "new": "ngram"}
            assert await reloaded(app) == {"changed": [draft], "needs_restart": [port]}
            assert await reloaded(app) == {"changed": [], "needs_restart": [port]}
            assert service.settings.server.port == 8000
            assert service.settings.engine.top_p == 0.5, "--set holds"
            assert service.snapshot().troubles == ()

    async def test_what_is_said_to_new_requests_is_followed(self, file: File) -> None:
        """Default parameters, and the mode that `/ready` tells."""
        async with served(toy_engine(config=file.path), key="secret") as (app, service):
            body = {"prompt": "HELLO", "max_tokens": 12, "ignore_eos": True, "seed": 3}
            warm = (await post(app, COMPLETIONS, body, **KEY)).json()
            file.write(engine={"temperature": 0.0}, scheduler={"policy": "speculative"})
            await reloaded(app)
            assert service.status()["mode"] == "speculative"
            cold = (await post(app, COMPLETIONS, body, **KEY)).json()
            greedy = (await post(app, COMPLETIONS, body | {"temperature": 0}, **KEY)).json()
            assert cold["choices"][0]["token_ids"] == greedy["choices"][0]["token_ids"]
            assert cold["choices"][0]["token_ids"] != warm["choices"][0]["token_ids"]
            assert (warm["speculation"]["mode"], cold["speculation"]["mode"]) == ("ssd", "speculative")

    async def test_counters_go_on_and_lanes_do_not_pile_up(self, file: File) -> None:
        """What was counted stays; the old lane ends, and nobody holds what it served."""
        engine = toy_engine(config=file.path)
        async with served(engine, key="secret") as (app, service):
            await post(app, COMPLETIONS, {"prompt": "HELLO", "max_tokens": 40, "ignore_eos": True}, **KEY)
            assert engine._parts is not None
            old = weakref.ref(engine._parts.speculation.speculator)
            before = service.snapshot()
            threads = lanes()
            for number in range(5):
                file.write(engine={"speculative_length": 1 + number})
                await reloaded(app)
            after = service.snapshot()
            assert lanes() == threads
            gc.collect()
            assert old() is None
        assert after.num_branches >= before.num_branches > 0
        assert after.rounds_by_mode["ssd"] >= before.rounds_by_mode["ssd"] > 0
        assert after.draft_prefix_queries >= before.draft_prefix_queries > 0

    async def test_without_a_key_nobody_may_and_with_a_wrong_one_neither(self, file: File) -> None:
        """And nothing is read."""
        async with served(toy_engine(config=file.path), key=None) as (app, _):
            exchange = await post(app, RELOAD, b"")
            assert (exchange.status, exchange.json()["error"]["code"]) == (403, "no_api_key")
        async with served(toy_engine(config=file.path), key="secret") as (app, _):
            assert (await post(app, RELOAD, b"")).status == 401

    async def test_a_body_is_refused(self) -> None:
        """Settings that were sent would be ignored in silence."""
        async with served(FakeEngine(), key="secret") as (app, _):
            exchange = await post(app, RELOAD, {"engine": {"draft_model": "none"}}, **KEY)
        assert (exchange.status, exchange.json()["error"]["param"]) == (400, "body")

    async def test_while_it_loads_there_is_nothing_to_change(self) -> None:
        """As for everything else: 503, try again."""
        exchange = await post(create_app(Service(FakeEngine().settings), "secret"), RELOAD, b"", **KEY)
        assert exchange.status == 503

    @pytest.mark.parametrize("kind", [ConfigError, ModelError, PluginError])
    async def test_what_would_stop_the_start_is_400(self, kind: type[Exception]) -> None:
        """With its words."""
        engine = FakeEngine()
        engine.difference = kind("engine.yaml:5 engine.model: no such thing")
        async with served(engine, key="secret") as (app, _):
            exchange = await post(app, RELOAD, b"", **KEY)
        error = exchange.json()["error"]
        assert (exchange.status, error["code"]) == (400, "invalid_configuration")
        assert error["message"] == "engine.yaml:5 engine.model: no such thing"


BROKEN: list[tuple[str, str]] = [
    ("engine: {speculative_length: -1}", "engine.speculative_length: got -1, expected"),
    ("engine: [", "engine.yaml"),
    ("engine: {colour: red}", "engine.colour"),
    ("engine: {draft_model: self}\nscheduler: {policy: sad}", "scheduler.policy"),
    ("engine: {sampler: {name: rejection, c: 7}}", "engine.sampler"),
    ("engine: {cache_policy: nothing}", "'nothing' is not available; available: adaptive"),
    ("engine: {quantization: int3}", "engine.quantization: 'int3' is not available"),
    ("plugins: [no.such.module]", "plugin 'no.such.module' could not be imported"),
]


class TestMistakes:
    @pytest.mark.parametrize(("text", "expected"), BROKEN)
    async def test_a_broken_file_changes_nothing(self, file: File, text: str, expected: str) -> None:
        """The words are those of the start, and the daemon goes on as before."""
        async with served(toy_engine(config=file.path), key="secret") as (app, service):
            before = service.settings
            file.path.write_text(text, encoding="utf-8")
            exchange = await post(app, RELOAD, b"", **KEY)
            assert exchange.status == 400
            assert exchange.json()["error"]["message"] == await at_start(file)
            assert expected in exchange.json()["error"]["message"]
            assert service.settings == before
            body = {"prompt": "HELLO", "max_tokens": 20, "ignore_eos": True}
            answer = (await post(app, COMPLETIONS, body, **KEY)).json()
            assert answer["speculation"]["hits"] > 0
            file.write()
            assert await reloaded(app) == {"changed": [], "needs_restart": []}

    async def test_a_draft_that_cannot_be_loaded_changes_nothing(self, file: File) -> None:
        """Though the settings are well formed: here it has another vocabulary."""
        model = toy_decoder(2)
        tokenizer = ToyTokenizer(VOCAB)
        tokenizer.tokens = lambda: [*ToyTokenizer(VOCAB).tokens()[:-1], "other"]  # type: ignore[method-assign]
        models = {"toy/other": LoadedModel(model.config, model.decoder, tokenizer, "toy/other")}
        async with served(toy_engine(config=file.path, models=models), key="secret") as (app, service):
            threads = lanes()
            file.write(engine={"draft_model": "toy/other"})
            exchange = await post(app, RELOAD, b"", **KEY)
            assert exchange.status == 400
            assert "token 63 is 'other'" in exchange.json()["error"]["message"]
            assert lanes() == threads
            assert service.snapshot().troubles == ()
            assert service.settings.engine.draft_model == "self"

    async def test_an_engine_that_closes_meanwhile_says_so(self, file: File) -> None:
        """503, and what was made for it is ended."""
        before = set(threading.enumerate())
        engine = toy_engine(config=file.path)
        async with served(engine, key="secret") as (app, _):
            assert engine._parts is not None
            engine._thread.call(engine._parts.core.close)
            await asyncio.to_thread(engine._thread.join)
            file.write(engine={"draft_model": "ngram"})
            assert (await post(app, RELOAD, b"", **KEY)).status == 503
            with pytest.raises(EngineClosedError, match="closed"):
                await engine.reload()
        while any(one.name.startswith("ssd-") for one in set(threading.enumerate()) - before):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def at_start(file: File) -> str:
    """What an engine says that starts with this file."""
    with pytest.raises((ConfigError, ModelError, PluginError)) as caught:
        async with toy_engine(config=file.path):
            raise AssertionError("it starts")
    return str(caught.value)


def test_the_documentation_names_every_setting_that_is_followed() -> None:
    """And no other in the table that says from when on."""
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    table = text.partition("| Followed |")[2].partition("\n\n")[0]
    keys = {key for line in table.splitlines()[2:] for key in re.findall(r"`([^`]+)`", line.split("|")[1])}
    assert keys == RELOADABLE


class TestPlugins:
    async def test_a_new_module_provides_parts_at_once(
        self, file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """But who observes rounds is known at the start only, and so it is said."""
        (tmp_path / "late_plugin.py").write_text(LATE, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        async with served(toy_engine(config=file.path), key="secret") as (app, service):
            file.path.write_text(
                yaml.safe_dump({**SSD, "plugins": ["late_plugin"], "engine": {"draft_model": "late"}}),
                encoding="utf-8",
            )
            answer = await reloaded(app)
            body = {"prompt": "HELLO", "max_tokens": 20, "ignore_eos": True, "warpers": [{"name": "late"}]}
            assert (await post(app, COMPLETIONS, body, **KEY)).status == 200
            assert service.snapshot().troubles == ()
        assert names(answer["changed"]) == ["engine.draft_model", "plugins"]
        assert answer["needs_restart"] == [{"setting": "plugins (observers)", "old": "[]", "new": "[late]"}]


LATE = """
from ssd_runtime.api import hookimpl

class Late:
    def propose(self, token_ids, k):
        return [token_ids[-1]] * k
    def warp(self, logits, token_ids, num_prompt):
        return logits
    def observe(self, record):
        pass

@hookimpl
def ssd_register_proposers(registry):
    registry.register("late", Late)

@hookimpl
def ssd_register_warpers(registry):
    registry.register("late", Late)

@hookimpl
def ssd_register_observers(registry):
    registry.register("late", Late)
"""

DAEMON = """
import asyncio, sys
from pathlib import Path
from ssd_runtime.cli.options import configure_logging
from ssd_runtime.server.run import open_door, serve
from ssd_runtime.server.service import Service
from ssd_runtime.settings.load import load_settings

path, options = Path(sys.argv[1]), ["server.port=0", "log.format=json"]
settings = load_settings(path, options, environ={}).settings
configure_logging(settings.log)
service = Service(settings)
door = open_door(service)
from ssd_runtime.testing.engines import toy_engine

make = lambda service: toy_engine(*options, plugins=[service.metrics], config=path)
sys.exit(asyncio.run(serve(service, make, door)))
"""


class TestHangup:
    def test_a_daemon_reads_its_file_again_and_serves_on(self, file: File) -> None:
        """While a client streams; what is wrong is logged in the words of the start and changes nothing."""
        body = {"prompt": "tell me", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with running("-c", DAEMON, str(file.path)) as daemon:
            daemon.process.send_signal(signal.SIGHUP)  # too early; it does not end who loads
            daemon.logged("ready")
            response = daemon.post(body).getresponse()
            first = response.read(20)
            file.write(engine={"draft_model": "ngram"}, server={"host": "::1"})
            daemon.process.send_signal(signal.SIGHUP)
            entry = daemon.logged("reloaded")
            assert entry["changed"] == {"engine.draft_model": "self -> ngram"}
            assert entry["needs_restart"] == {"server.host": "127.0.0.1 -> ::1"}
            file.path.write_text("engine:\n  draft_model: [1]\n", encoding="utf-8")
            daemon.process.send_signal(signal.SIGHUP)
            entry = daemon.logged("the configuration was not reloaded; everything is as before")
            assert "engine.yaml:2 engine.draft_model: got [1]" in entry["error"]
            assert (first + response.read()).endswith(b"data: [DONE]\n\n")
            status, ready = daemon.get("/ready")
            assert (status, json.loads(ready)["status"]) == (200, "ready")
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(20) == 0

    async def test_one_while_the_daemon_loads_is_refused(self) -> None:
        """The file has just been read, and nothing is there that could follow it."""
        with pytest.raises(EngineClosedError, match="loading"):
            await Service(FakeEngine().settings).reload()
