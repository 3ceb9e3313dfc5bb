"""The blocking face: order, errors, cancelling, and a life beside a running event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

import pytest

from ssd_runtime.errors import EngineClosedError, ModelError, RequestError
from ssd_runtime.llm import LLM
from ssd_runtime.settings.schema import EngineSettings, Settings
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.fake_engine import FakeEngine, Step, echo, prompt_text
from ssd_runtime.types import Request, SamplingParams


def never(request: Request) -> Iterable[Step]:
    return ["first", asyncio.Event()]


def test_answers_come_in_the_order_of_the_prompts() -> None:
    """Texts and requests may be mixed; the parameters are for the texts."""
    engine = FakeEngine()
    with LLM(engine=lambda: engine) as llm:
        answers = llm.generate(["a b", Request("own", "c d"), "e"], SamplingParams(seed=7))
    assert [answer.text for answer in answers] == ["a b", "c d", "e"]
    assert [answer.seed for answer in answers] == [7, 0, 7]


def test_one_prompt_gives_a_list_of_one() -> None:
    """A text is not taken for a sequence of letters."""
    with LLM(engine=FakeEngine) as llm:
        assert [answer.text for answer in llm.generate("hello you")] == ["hello you"]


def test_it_works_inside_a_running_loop() -> None:
    """As in a notebook, whose cells run inside a loop."""

    async def cell() -> str:
        with LLM(engine=FakeEngine) as llm:
            return llm.generate("hi")[0].text

    assert asyncio.run(cell()) == "hi"


def test_many_prompts_never_overflow_the_queue() -> None:
    """At most four batches are handed over at once."""
    engine = FakeEngine(settings=Settings(engine=EngineSettings(max_batch_size=2)))
    with LLM(engine=lambda: engine) as llm:
        assert len(llm.generate([f"{number}" for number in range(50)])) == 50
    assert engine.most_running == 8


def test_the_first_error_is_raised_and_the_others_are_cancelled() -> None:
    """A wrong request does not leave the rest running."""

    def script(request: Request) -> Iterable[Step]:
        wrong = prompt_text(request) == "bad"
        return [RequestError("no", "prompt")] if wrong else [asyncio.Event()]

    engine = FakeEngine(script)
    with LLM(engine=lambda: engine) as llm:
        with pytest.raises(RequestError, match="no"):
            llm.generate([Request("1", "good"), Request("2", "bad")])
        engine._script = echo
        assert llm.generate("again")[0].text == "again"
    assert engine.cancelled == ["1"]


def test_a_stream_gives_the_pieces() -> None:
    """The pieces joined are the answer; the last one has the finish reason."""
    with LLM(engine=FakeEngine) as llm:
        pieces = list(llm.stream("a b c"))
    assert "".join(piece.text for piece in pieces) == "a b c"
    assert pieces[-1].finish_reason == "stop"


def test_leaving_a_stream_cancels_the_request() -> None:
    """Closing the iterator is enough."""
    engine = FakeEngine(never)
    with LLM(engine=lambda: engine) as llm:
        stream = llm.stream(Request("1", "x"))
        assert next(stream).text == "first"
        stream.close()  # type: ignore[attr-defined]
        assert engine.cancelled == ["1"]


def test_closing_ends_what_another_thread_waits_for() -> None:
    """The waiting thread gets `EngineClosedError`, it does not hang."""
    engine = FakeEngine(never)
    llm = LLM(engine=lambda: engine)
    started, errors = threading.Event(), list[BaseException]()

    def work() -> None:
        stream = llm.stream("x")
        next(stream)
        started.set()
        try:
            next(stream)
        except EngineClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    llm.close()
    thread.join()
    assert len(errors) == 1


def test_a_closed_llm_says_so() -> None:
    """Closing twice is allowed, asking afterwards is not."""
    llm = LLM(engine=FakeEngine)
    llm.close()
    llm.close()
    with pytest.raises(EngineClosedError, match="closed"):
        llm.generate("x")


def test_a_model_that_cannot_be_loaded_raises_where_the_llm_is_made() -> None:
    """The error crosses the thread."""

    class Broken(FakeEngine):
        async def __aenter__(self) -> Broken:
            raise ModelError("no such model")

    with pytest.raises(ModelError, match="no such model"):
        LLM(engine=Broken)


@pytest.mark.parametrize("policy", ["autoregressive", "ssd"])
def test_every_parameter_goes_through_it(policy: str) -> None:
    """The blocking face takes the same parameters and gives the same answers as the engine does."""
    params = SamplingParams(
        temperature=1.0,
        max_tokens=5,
        seed=1,
        n=2,
        logprobs=1,
        banned_token_ids=(0, 40),
        frequency_penalty=1.0,
        echo=True,
    )
    with LLM(engine=lambda: toy_engine(f"scheduler.policy={policy}")) as llm:
        [answer] = llm.generate("HI", params)
        pieces = list(llm.stream("HI", params))
    assert len(answer.choices) == 2
    for index, choice in enumerate(answer.choices):
        assert choice.text.startswith("HI")
        assert len(choice.logprobs) == 5
        assert "".join(piece.text for piece in pieces if piece.index == index) == choice.text
