"""What a tensor operation's complaint about shapes means to the user: parts of different model families were put
together. Asked only after a network has failed, so that whoever changes a network need not tell anyone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from comfy.devices import is_oom

# What the networks' configurations call the width of the text tokens and of the pooled vector.
_TEXT_WIDTHS = ("context_dim", "context_in_dim", "cond_seq_dim", "cap_feat_dim", "joint_attention_dim", "text_dim")
_CHANNELS = ("in_channels", "in_dim")
_VECTOR_WIDTHS = ("adm_in_channels", "vec_in_dim", "text_emb_dim")


class MismatchedParts(RuntimeError):
    """A model got a conditioning, a latent or a control that was made for another one."""


def _width(network: nn.Module, names: tuple[str, ...]) -> int | None:
    config = getattr(network, "config", None)
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)


def _text_width(network: nn.Module) -> int | None:
    caption = getattr(getattr(network, "config", None), "caption_channels", None)
    return caption if isinstance(caption, int) else _width(network, _TEXT_WIDTHS)


def find_mismatch(
    network: nn.Module, name: str, x: Tensor, context: Tensor | None, y: Tensor | None, control: bool
) -> str | None:
    """What of a call does not fit the network called `name`; None if nothing is known not to."""
    wanted = _text_width(network)
    if context is not None and wanted is not None and context.shape[-1] != wanted:
        return (
            f"the conditioning is {context.shape[-1]} wide, and {name} takes {wanted}: "
            "it comes from a text encoder of another model family"
        )
    wanted = _width(network, _VECTOR_WIDTHS)
    if y is not None and wanted is not None and y.shape[-1] != wanted:
        return (
            f"the conditioning's vector has {y.shape[-1]} values, and {name} takes {wanted}: "
            "it comes from a text encoder or a node of another model family"
        )
    channels = _width(network, _CHANNELS)
    if isinstance(channels, int) and x.ndim >= 4 and x.shape[1] < channels:
        return f"the latent has {x.shape[1]} channels with what is put beside it, and {name} takes {channels}"
    if control:
        return f"what a control adds does not fit the layers of {name}: it is for another model family"
    return None


@contextlib.contextmanager
def explained(
    network: nn.Module, name: str, x: Tensor, inputs: Mapping[str, Any], control: Any = None
) -> Iterator[None]:
    """Turns a complaint about shapes into one about what does not fit. inputs: the call's `context` and `y`.

    Raises MismatchedParts, or what was raised if everything seems to fit.
    """
    try:
        yield
    except RuntimeError as error:
        if is_oom(error):
            raise
        problem = find_mismatch(network, name, x, inputs.get("context"), inputs.get("y"), bool(control))
        if problem is None:
            raise
        raise MismatchedParts(problem) from error
