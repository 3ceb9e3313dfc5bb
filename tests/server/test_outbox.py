"""The queue of events that wait for one client."""

from __future__ import annotations

import asyncio

import pytest

from ssd_runtime.server.errors import SlowClientError
from ssd_runtime.server.outbox import CHUNK_BYTES, Outbox


async def test_what_waits_is_taken_together_and_in_order() -> None:
    """A client that was slow for a moment gets one write, not many."""
    outbox = Outbox(100)
    for event in (b"a", b"b", b"c"):
        outbox.put(event)
    outbox.end()
    assert [await outbox.take(), await outbox.take(), await outbox.take()] == [b"abc", b"", b""]


async def test_who_takes_waits_for_the_next_event() -> None:
    """And gets it as soon as it is there."""
    outbox = Outbox(100)
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put(b"a")
    assert await taking == b"a"


async def test_an_error_comes_after_what_was_put_before_it() -> None:
    """The client gets everything that the engine gave."""
    outbox = Outbox(100)
    outbox.put(b"a")
    outbox.end(ValueError("no more"))
    assert await outbox.take() == b"a"
    with pytest.raises(ValueError, match="no more"):
        await outbox.take()


async def test_more_than_its_size_is_refused() -> None:
    """What was taken counts no longer."""
    outbox = Outbox(10)
    for _ in range(5):
        outbox.put(b"12345678")
        await outbox.take()
    outbox.put(b"12345678")
    with pytest.raises(SlowClientError, match=r"16 bytes .* \(server\.stream_buffer_bytes\)"):
        outbox.put(b"12345678")


async def test_little_is_handed_over_at_once() -> None:
    """So that the rest is still counted; but an event stays whole."""
    outbox = Outbox(10 * CHUNK_BYTES)
    half, large = b"h" * (CHUNK_BYTES // 2), b"l" * (2 * CHUNK_BYTES)
    for event in (half, half, half, large):
        outbox.put(event)
    assert [len(await outbox.take()) for _ in range(3)] == [CHUNK_BYTES, CHUNK_BYTES // 2, 2 * CHUNK_BYTES]
