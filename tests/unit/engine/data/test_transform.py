"""From stored crops to segments in mV, in torch; the loaders' contract compares DALI with it."""

import torch

from engine.data.augmentations import RandomLeadMasking, RandomLeadMaskingOptions
from engine.data.transform import Transform


def apply(transform: Transform, signals: torch.Tensor, start: int) -> torch.Tensor:
    out = torch.full(transform.output_shape(len(signals)), torch.nan)
    return transform.apply(signals, transform.gain(start, len(signals)), out)


def make_signals(num_leads: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-(2**15), 2**15, (4, num_leads, 5000), dtype=torch.int16, generator=generator)


def test_segments_are_the_two_halves_in_millivolts() -> None:
    signals = make_signals()
    segments = apply(Transform([], 12), signals, 0)
    assert segments.shape == (4, 2, 12, 2500)
    assert segments.dtype == torch.float32
    assert segments.is_contiguous()
    torch.testing.assert_close(segments[:, 0].double(), signals[:, :, :2500].double() / 1000, rtol=1e-6, atol=0)
    torch.testing.assert_close(segments[:, 1].double(), signals[:, :, 2500:].double() / 1000, rtol=1e-6, atol=0)


def test_masked_leads_are_exactly_zero_and_the_others_untouched() -> None:
    signals = make_signals(3)
    masking = RandomLeadMasking(RandomLeadMaskingOptions(p=0.5), seed=4)
    plain, masked = apply(Transform([], 3), signals, 17), apply(Transform([masking], 3), signals, 17)
    keep = masking.gain(torch.arange(17, 21), 3).bool()
    assert 0 < keep.sum() < keep.numel()
    assert torch.equal(masked[keep], plain[keep])
    assert not masked[~keep].any()
