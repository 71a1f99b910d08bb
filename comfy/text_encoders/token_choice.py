"""Which token comes next: penalties and filters on logits, and a draw from what they leave.

In the order of the `transformers` library: repetition penalty (Keskar et al. 2019, "CTRL"), presence penalty (as in the
interfaces of hosted models), temperature, the k likeliest tokens, nucleus (Holtzman et al. 2020), smallest share of the
likeliest (Nguyen et al. 2024). Logits are float32 [..., vocabulary]; what a filter forbids becomes minus infinity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

FORBIDDEN = float("-inf")


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How to draw. Without effect are: temperature 1, top_k 0, top_p 1, min_p 0, repetition_penalty 1 or 0 (nothing
    could be divided by that), presence_penalty 0."""

    temperature: float = 0.7
    top_k: int = 64
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.05
    presence_penalty: float = 0.0
    seed: int = 0


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Tokens that are there already (seen: bool [vocabulary]) become less likely: their logits are divided by
    `penalty` if positive, else multiplied with it."""
    if penalty in (0.0, 1.0):
        return logits
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalise_presence(logits: Tensor, written: Tensor, penalty: float) -> Tensor:
    """Take `penalty` off the logits of tokens written so far (bool [vocabulary]), however often each was."""
    return logits if penalty == 0.0 else logits - written * penalty


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The `k` likeliest, and whatever is as likely as the last of them."""
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, FORBIDDEN)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The likeliest tokens up to the one with which their shares reach `p`; never less than one."""
    if p >= 1.0:
        return logits
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    shares = values.softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    beyond = before >= p
    beyond[..., 0] = False
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), FORBIDDEN)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """The tokens with at least `p` times the share of the likeliest."""
    if p <= 0.0:
        return logits
    shares = logits.softmax(dim=-1)
    return logits.masked_fill(shares < p * shares.amax(dim=-1, keepdim=True), FORBIDDEN)


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits of the tokens that may be drawn, after temperature and filters."""
    logits = logits / sampling.temperature
    logits = keep_top_k(logits, sampling.top_k)
    logits = keep_top_p(logits, sampling.top_p)
    return keep_min_p(logits, sampling.min_p)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """The token at `uniform` [1] of 0..1 on a line on which each has its share, the likeliest first: [1].

    Unlike a draw with the device's own generator it gives the same on every device.
    """
    shares, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    ends = shares.cumsum(dim=-1)
    place = torch.searchsorted(ends, uniform.to(ends) * ends[-1], right=True)
    # Rounding may put the last of the line behind all that has a share.
    return order[torch.minimum(place, (shares > 0).sum() - 1)]


class Chooser:
    """Chooses one token after another. Everything it needs waits on the device, so that no choice waits for the host.

    sampling None: always the likeliest. The repetition penalty counts the prompt's tokens too, the presence penalty
    only those that were chosen. count: how many there will be at most.
    """

    def __init__(
        self, vocabulary: int, prompt: Sequence[int], sampling: Sampling | None, count: int, device: torch.device
    ):
        self.sampling = sampling
        if sampling is None:
            return
        self.written = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self.seen = self.written.clone()
        self.seen[torch.tensor([token for token in prompt if token < vocabulary], dtype=torch.long, device=device)] = 1
        generator = torch.Generator().manual_seed(sampling.seed)
        self.uniforms = torch.rand(count, generator=generator).to(device)
        self.number = 0

    def choose(self, logits: Tensor) -> Tensor:
        """The next token [1], of logits [vocabulary]."""
        if self.sampling is None:
            return logits.argmax(dim=-1, keepdim=True)
        logits = penalise_repetition(logits, self.seen, self.sampling.repetition_penalty)
        logits = penalise_presence(logits, self.written, self.sampling.presence_penalty)
        token = draw(filtered(logits, self.sampling), self.uniforms[self.number : self.number + 1])
        for noted in (self.seen, self.written):
            noted.index_fill_(0, token, 1)
        self.number += 1
        return token
