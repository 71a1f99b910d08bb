"""Stable Diffusion 1's text side: CLIP ViT-L, its last hidden layer after the final norm, pooled without
projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.text_encoders.clip import CLIPTextConfig, config_from_state_dict
from comfy.text_encoders.clip_encoder import Chunk, SDClipModel
from comfy.text_encoders.tokenizer import SDTokenizer


class SD1Tokenizer:
    """Prompt -> {"l": chunks of CLIP tokens}."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
        embedding_size: int = 768,
    ):
        self.clip_name = "l"
        self.clip = "clip_l"
        self.clip_l = SDTokenizer(
            embedding_directory,
            embedding_size=embedding_size,
            embedding_key="clip_l",
            tokenizer_data=tokenizer_data,
        )

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, tokenizer_options: dict[str, Any] | None = None, **kwargs
    ) -> dict[str, list[list[tuple]]]:
        """See `SDTokenizer.tokenize_with_weights`."""
        options = tokenizer_options or {}
        return {"l": self.clip_l.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs)}

    def state_dict(self) -> dict[str, Tensor]:
        return {}


class SD1ClipModel(nn.Module):
    """CLIP ViT-L as Stable Diffusion 1 uses it. Its weights are named `clip_l.transformer.text_model...`."""

    def __init__(
        self,
        config: CLIPTextConfig | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__()
        self.clip_name = "l"
        self.clip = "clip_l"
        self.clip_l = SDClipModel(
            config or CLIPTextConfig(), device=device, dtype=dtype, return_projected_pooled=False, operations=operations
        )
        self.dtypes = {dtype}

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        self.clip_l.set_clip_options(options)

    def reset_clip_options(self) -> None:
        self.clip_l.reset_clip_options()

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple[Tensor, Tensor | None]:
        """Conditioning [1, tokens, width] and pooled vector of what `SD1Tokenizer` made."""
        return self.clip_l.encode_token_weights(token_weight_pairs["l"])


# Names below the encoder model: `clip_l.transformer.text_model...`.
_MODEL_PREFIX = "clip_l."
_TRANSFORMER = "clip_l.transformer."


def checkpoint_to_model(sd: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors named as below `cond_stage_model.` of a checkpoint, renamed to the encoder model's names.

    The oldest files lack the `text_model.` level; position ids are no weights and are dropped.
    """
    out = {}
    for key, value in sd.items():
        if key.endswith("position_ids"):
            continue
        key = key.removeprefix(_MODEL_PREFIX)
        for part in ("embeddings.", "encoder.", "final_layer_norm."):
            if key.startswith(f"transformer.{part}"):
                key = key.replace("transformer.", "transformer.text_model.", 1)
        out[_MODEL_PREFIX + key] = value
    return out


def build(
    sd: Mapping[str, Tensor],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
) -> SD1ClipModel:
    """The encoder for weights named as the model names them; they are not loaded yet."""
    config = config_from_state_dict(sd, _TRANSFORMER)
    return SD1ClipModel(config, device=device, dtype=dtype, operations=operations)


def is_clip_l(sd: Mapping[str, Tensor]) -> bool:
    """Whether a text encoder file holds ViT-L or a smaller transformer of its kind (H and bigG are wider)."""
    table = sd.get("text_model.embeddings.token_embedding.weight")
    return table is not None and table.shape[1] <= CLIPTextConfig.hidden_size


def encoder_file_to_model(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a file with this encoder alone (`text_model...`), renamed to the encoder model's names."""
    return {_TRANSFORMER + k: v for k, v in sd.items() if not k.endswith("position_ids") and k != "logit_scale"}
