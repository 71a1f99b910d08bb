"""Several tensors of different shapes that travel as one latent (picture and sound of a video)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


class NestedTensor:
    """A list of tensors with one batch size; arithmetic and `to` act on each."""

    is_nested = True

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)

    def unbind(self) -> list[Tensor]:
        """The tensors."""
        return self.tensors

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def shape(self) -> Any:
        """Of the first tensor."""
        return self.tensors[0].shape

    @property
    def ndim(self) -> int:
        """The largest of the tensors."""
        return max(t.ndim for t in self.tensors)

    @property
    def dtype(self) -> Any:
        return self.tensors[0].dtype

    @property
    def device(self) -> Any:
        return self.tensors[0].device

    @property
    def layout(self) -> Any:
        return self.tensors[0].layout

    def size(self) -> Any:
        """Of the first tensor."""
        return self.tensors[0].size()

    def apply(self, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> NestedTensor:
        """`function` on each tensor."""
        return NestedTensor([function(t, *args, **kwargs) for t in self.tensors])

    def to(self, *args: Any, **kwargs: Any) -> NestedTensor:
        return self.apply(lambda t: t.to(*args, **kwargs))

    def cpu(self) -> NestedTensor:
        return self.to("cpu")

    def clone(self) -> NestedTensor:
        return self.apply(lambda t: t.clone())

    def float(self) -> NestedTensor:
        return self.apply(lambda t: t.float())

    def _pairwise(self, other: Any, function: Callable[[Tensor, Any], Tensor]) -> NestedTensor:
        if isinstance(other, NestedTensor):
            return NestedTensor([function(a, b) for a, b in zip(self.tensors, other.tensors)])
        return NestedTensor([function(a, other) for a in self.tensors])

    def __add__(self, other: Any) -> NestedTensor:
        return self._pairwise(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> NestedTensor:
        return self._pairwise(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> NestedTensor:
        return self._pairwise(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> NestedTensor:
        return self._pairwise(other, lambda a, b: a / b)

    def __getitem__(self, index: Any) -> NestedTensor:
        """The same slice of each tensor's batch."""
        return self.apply(lambda t: t[index])

    def __repr__(self) -> str:
        return f"NestedTensor({[tuple(t.shape) for t in self.tensors]})"


def parts_of(latent: Any) -> list[Tensor]:
    """The tensors of a nested latent; a plain one alone."""
    return latent.unbind() if getattr(latent, "is_nested", False) else [latent]


def like(latent: Any, parts: Sequence[Tensor]) -> Any:
    """`parts` nested if `latent` is; else the only one of them."""
    return NestedTensor(parts) if getattr(latent, "is_nested", False) else parts[0]
