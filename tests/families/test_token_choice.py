"""Penalties, filters and draws, against cases computed by hand from the published definitions."""

from __future__ import annotations

import math

import pytest
import torch

from comfy.text_encoders.token_choice import (
    Chooser,
    Sampling,
    draw,
    filtered,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_presence,
    penalise_repetition,
)

HOST = torch.device("cpu")
# Shares 0.5, 0.25, 0.125, 0.125 in another order.
SHARES = torch.tensor([0.125, 0.5, 0.25, 0.125])
LOGITS = SHARES.log()
NEUTRAL = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)


def kept(logits: torch.Tensor) -> list[int]:
    return [i for i, value in enumerate(logits.tolist()) if value != -math.inf]


def test_repetition_penalty():
    logits = torch.tensor([2.0, -2.0, 3.0, -3.0])
    seen = torch.tensor([True, True, False, False])
    assert penalise_repetition(logits, seen, 2.0).tolist() == [1.0, -4.0, 3.0, -3.0]
    assert penalise_repetition(logits, seen, 0.5).tolist() == [4.0, -1.0, 3.0, -3.0]
    for off in (0.0, 1.0):
        assert torch.equal(penalise_repetition(logits, seen, off), logits)


def test_presence_penalty():
    written = torch.tensor([True, False, False, True])
    assert penalise_presence(torch.tensor([1.0, 2.0, 3.0, -1.0]), written, 1.5).tolist() == [-0.5, 2.0, 3.0, -2.5]


@pytest.mark.parametrize(
    "k, expected", [(0, [0, 1, 2, 3]), (1, [1]), (2, [1, 2]), (3, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k(k, expected):
    """The third and the fourth are as likely as each other: both stay."""
    assert kept(keep_top_k(LOGITS, k)) == expected


@pytest.mark.parametrize(
    "p, expected",
    [
        (0.0, [1]),
        (0.3, [1]),
        (0.51, [1, 2]),
        (0.74, [1, 2]),
        (0.8, [0, 1, 2]),
        (0.9, [0, 1, 2, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p(p, expected):
    assert kept(keep_top_p(LOGITS, p)) == expected


@pytest.mark.parametrize(
    "p, expected", [(0.0, [0, 1, 2, 3]), (0.2, [0, 1, 2, 3]), (0.3, [1, 2]), (0.49, [1, 2]), (0.6, [1]), (1.0, [1])]
)
def test_min_p(p, expected):
    assert kept(keep_min_p(LOGITS, p)) == expected


def test_order_of_the_filters():
    """After the first two are kept their shares are 2/3 and 1/3: the nucleus of 0.6 is then the first alone. At a
    temperature of 1/2 shares are squared: 16, 4, 1, 1 of 22."""
    assert kept(filtered(LOGITS, Sampling(1.0, 2, 0.6, 0.0))) == [1]
    assert kept(filtered(LOGITS, Sampling(1.0, 0, 0.6, 0.0))) == [1, 2]
    squared = filtered(LOGITS, Sampling(0.5, 0, 1.0, 0.0)).softmax(-1)
    assert torch.allclose(squared, torch.tensor([1.0, 16.0, 4.0, 1.0]) / 22)
    assert kept(filtered(LOGITS, Sampling(0.5, 0, 1.0, 0.3))) == [1] and kept(keep_min_p(LOGITS, 0.3)) == [1, 2]


@pytest.mark.parametrize(
    "place, token", [(0.0, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 0), (0.88, 3), (0.9999999, 3)]
)
def test_draw(place, token):
    assert draw(LOGITS, torch.tensor([place])).tolist() == [token]


def test_a_draw_never_gives_what_is_forbidden():
    logits = torch.full((1000,), -math.inf)
    logits[:7] = torch.linspace(0.1, 0.9, 7)
    last = torch.tensor([1 - 2**-24])
    assert draw(logits, last).item() == 0 and draw(torch.zeros(3), last).item() == 2


def test_what_is_drawn_has_its_share():
    chooser = Chooser(4, [], NEUTRAL, 4000, HOST)
    counts = torch.bincount(torch.cat([chooser.choose(LOGITS) for _ in range(4000)]), minlength=4)
    assert torch.allclose(counts / 4000, SHARES, atol=0.03)


def test_seeds():
    def drawn(seed: int) -> list[int]:
        chooser = Chooser(50, [], Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed), 20, HOST)
        return [chooser.choose(torch.zeros(50)).item() for _ in range(20)]

    assert drawn(3) == drawn(3) != drawn(4)
    assert len(drawn(2**64 - 1)) == 20


@pytest.mark.parametrize(
    "edge",
    [
        {"temperature": 0.01},
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
        {"temperature": 0.01, "top_k": 1000, "top_p": 0.0, "min_p": 1.0, "repetition_penalty": 0.0},
    ],
)
def test_values_at_their_edges_leave_the_likeliest(edge):
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, **edge}
    chooser = Chooser(4, [1], Sampling(**values), 50, HOST)
    assert {chooser.choose(LOGITS * 30).item() for _ in range(50)} == {1}


def test_what_penalties_count():
    """A repetition in prompt or answer, a presence in the answer only; tokens beyond the vocabulary are none."""
    greedy = {"temperature": 0.01, "top_k": 1, "top_p": 1.0, "min_p": 0.0}
    logits = torch.tensor([4.0, 3.0, 1.0])
    chooser = Chooser(3, [0, 99], Sampling(**greedy, repetition_penalty=2.0), 3, HOST)
    assert [chooser.choose(logits).item() for _ in range(3)] == [1, 0, 0]
    chooser = Chooser(3, [0], Sampling(**greedy, repetition_penalty=1.0, presence_penalty=1.5), 3, HOST)
    assert [chooser.choose(logits).item() for _ in range(3)] == [0, 1, 0]
    assert Chooser(3, [0], None, 3, HOST).choose(logits).tolist() == [0]
