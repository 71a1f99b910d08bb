"""Batching of conditioning values."""

import torch

from comfy.conds import CONDConstant, CONDCrossAttn, CONDList, CONDNoiseShape, CONDRegular


def test_regular_repeats_to_the_batch():
    cond = CONDRegular(torch.tensor([[1.0], [2.0]])).process_cond(batch_size=3, device="cpu", area=None)
    assert cond.cond.flatten().tolist() == [1, 2, 1]
    assert cond.can_concat(CONDRegular(torch.zeros(3, 1)))
    assert not cond.can_concat(CONDRegular(torch.zeros(3, 2)))
    assert cond.concat([cond, cond]).shape == (9, 1)
    assert cond.size() == [3, 1]


def test_noise_shape_follows_the_area():
    x = torch.arange(64.0).reshape(1, 1, 8, 8)
    cond = CONDNoiseShape(x).process_cond(batch_size=2, device="cpu", area=(2, 3, 4, 5))
    assert torch.equal(cond.cond, x[:, :, 4:6, 5:8].repeat(2, 1, 1, 1))
    assert CONDNoiseShape(x).process_cond(batch_size=1, area=None).cond.shape == x.shape


def test_contexts_are_repeated_to_a_common_length():
    a, b = CONDCrossAttn(torch.randn(1, 77, 4)), CONDCrossAttn(torch.randn(1, 154, 4))
    assert a.can_concat(b) and b.can_concat(a)
    joined = a.concat([b])
    assert joined.shape == (2, 154, 4)
    assert torch.equal(joined[0], a.cond[0].repeat(2, 1))
    assert torch.equal(joined[1], b.cond[0])


def test_contexts_of_very_different_length_stay_apart():
    short, long = CONDCrossAttn(torch.zeros(1, 7, 4)), CONDCrossAttn(torch.zeros(1, 35, 4))
    assert not short.can_concat(long)
    assert not short.can_concat(CONDCrossAttn(torch.zeros(1, 8, 4)))
    assert not short.can_concat(CONDCrossAttn(torch.zeros(1, 7, 5)))
    assert short.can_concat(CONDCrossAttn(torch.zeros(1, 28, 4)))


def test_constants_and_lists():
    assert CONDConstant(3).can_concat(CONDConstant(3))
    assert not CONDConstant(3).can_concat(CONDConstant(4))
    tensor = CONDConstant(torch.ones(2))
    assert tensor.can_concat(CONDConstant(torch.ones(2)))
    assert not tensor.can_concat(CONDConstant(torch.zeros(2)))
    assert not tensor.can_concat(CONDConstant(1))
    assert tensor.process_cond(4).concat([]) is tensor.cond

    a = CONDList([torch.zeros(1, 2), torch.zeros(1, 3)]).process_cond(2)
    assert [t.shape for t in a.concat([a])] == [(4, 2), (4, 3)]
    assert not a.can_concat(CONDList([torch.zeros(2, 2)]))
    assert a.size() == [1, 1, 10]
