"""A decoder on another device, proved without one: every tensor goes there, and by the transfer alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from ssd_runtime.device.streams import Stream
from ssd_runtime.device.transfer import StreamTransfer
from ssd_runtime.errors import NotAvailableError
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer, PackedMatrix, PlainMatrix, TiledMatrix, moved
from ssd_runtime.models.loading import place_model
from ssd_runtime.testing.fake_device import FakeDevice
from ssd_runtime.testing.toy import toy_config, toy_decoder, toy_weights

GPU = torch.device("meta")
"""Any device but the CPU: torch without CUDA cannot index tensors that say they are on a GPU."""
PROMPT = (9, 30, 12, 4, 8)
ROWS = [ForwardRow(PROMPT, 0, range(2), 2), ForwardRow((7, 5), 0, range(2, 4), 1)]


class FakeGPU(FakeDevice):
    """Memory that torch believes to be on a GPU. It holds nothing, so that there is nothing to copy."""

    device = GPU

    def pinned_like(self, tensor: Tensor) -> Tensor:
        """Host memory."""
        return torch.empty_like(tensor, device="cpu")

    def device_like(self, tensor: Tensor) -> Tensor:
        """Memory on the device."""
        return torch.empty_like(tensor, device=GPU)

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Only between host and device."""
        assert target.device != source.device


class Weight:
    """A matrix that knows no other device."""

    nbytes = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Not called."""
        return x


@pytest.mark.parametrize("tiled", [False, True])
def test_a_pass_mixes_no_devices(tiled: bool) -> None:
    """Under torch's fake tensors a product of tensors on two devices raises; every feature is on.

    Weights, biases, norms, windows, KV and plan: all of it on the GPU; the logits on the host.
    """
    config = replace(
        toy_config(), qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True, windows=(None, 4)
    )
    weights = toy_weights(config, 1)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(weight) for name, weight in weights.items()}
        decoder = Decoder(config, fake, PlainQuantizer()).to(StreamTransfer(FakeGPU(lambda n: 0)))
        if tiled:
            decoder.use_tiles()
        kv = decoder.new_kv(4, 4)
        with decoder.transfer.use():
            logits = decoder.forward(ROWS, kv)
    assert (kv.data.device, logits.device.type) == (GPU, "cpu")
    assert logits.shape == (3, config.vocab_size)


class PlainQuantizer:
    """What `PackedMatrix` becomes on a GPU; fake tensors cannot be packed."""

    name = "plain"

    def pack(self, weight: Tensor) -> PlainMatrix:
        """The weight as it is."""
        return PlainMatrix(weight)


@pytest.mark.parametrize("seed", range(8))
def test_a_pass_over_streams_has_the_bits_of_the_pass_without(seed: int) -> None:
    """The real decoder with copies that are done late, in some order: waits are where they must be."""
    model = toy_decoder(1)
    transfer = StreamTransfer(EagerCompute(random.Random(seed).randrange))
    placed = model.decoder.to(transfer)
    ours, theirs = placed.new_kv(4, 4), model.decoder.new_kv(4, 4)
    for rows in (ROWS, [ForwardRow((3,), len(PROMPT), range(2), 1)]):
        with transfer.use():
            logits = placed.forward(rows, ours)
        assert torch.equal(logits, model.decoder.forward(rows, theirs))


class EagerCompute(FakeDevice):
    """Torch computes at once here, so the compute stream has always done its uploads; results are late."""

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """In the compute stream at once."""
        super().copy(target, source, stream)
        if stream is self.current_stream():
            stream.record_event().synchronize()


def test_a_model_is_placed_once_for_each_lane() -> None:
    """On its own lane it stays the object it is; another lane of the device shares its weights."""
    model = toy_decoder(1)
    assert place_model(model, model.decoder.transfer) is model
    first = place_model(model, StreamTransfer(EagerCompute(lambda n: 0)))
    second = place_model(first, StreamTransfer(EagerCompute(lambda n: 0)))
    assert first.decoder.transfer is not second.decoder.transfer
    assert first.decoder.weight_bytes == second.decoder.weight_bytes == model.decoder.weight_bytes
    assert second.row_policy == "whole rows"


def test_packed_weights_leave_their_layout_behind() -> None:
    """oneDNN's layout is the CPU's; elsewhere the same numbers lie in rows, tiled where they were."""
    weight = torch.randn(24, 16)
    packed = Float32Quantizer().pack(weight)
    if isinstance(packed, PackedMatrix):
        assert torch.equal(packed._packed.to_dense(), weight)
    plain, tiled = (moved(matrix, torch.device("meta")) for matrix in (packed, TiledMatrix(packed)))
    assert isinstance(plain, PlainMatrix)
    assert isinstance(tiled, TiledMatrix)
    assert plain.weight.device.type == "meta"
    assert plain.nbytes == tiled.nbytes == weight.nbytes


def test_a_format_without_a_way_to_the_gpu_is_refused() -> None:
    """The message names the format, the device and what to set instead; on the CPU it stays."""
    matrix = Weight()
    assert moved(matrix, torch.device("cpu")) is matrix
    with pytest.raises(NotAvailableError, match=r"format of Weight .* meta; set .*none or bf16"):
        moved(matrix, GPU)
