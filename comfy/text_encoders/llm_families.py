"""Text sides that are one language model: Lumina-Image 2.0, Z-Image, Qwen-Image, FLUX.2 and its small versions.

Templates, layers and lengths: the authors' pipelines (Apache-2.0: Lumina-Image-2.0, Z-Image, Qwen-Image, flux2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from comfy.text_encoders.clip_encoder import Chunk
from comfy.text_encoders.llama import LlamaConfig, config_from_state_dict
from comfy.text_encoders.llm_encoder import LAST, LLMTextEncoder, TemplateTokenizer
from comfy.text_encoders.qwen_vision import QwenVisionConfig
from comfy.text_encoders.qwen_vision import config_from_state_dict as vision_config
from comfy.text_encoders.qwen_vl import QwenVLEncoder

QWEN_PAD = 151643
QWEN_START = 151644
QWEN_PICTURE = 151655
# "user" and the line break behind it.
QWEN_USER = (872, 198)
GEMMA_START = 2
MISTRAL_START, MISTRAL_PAD = 1, 11
FLUX2_LENGTH = 512


class LuminaTokenizer(TemplateTokenizer):
    """Lumina's prompts come with their template (see `CLIPTextEncodeLumina2`)."""

    name = "gemma2_2b"
    options: ClassVar = {"vocabulary": "gemma2", "embedding_size": 2304, "start_token": GEMMA_START, "pad_token": 0}

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, tokenizer_options=None, **kwargs):
        """See `SDTokenizer.tokenize_with_weights`: weights in brackets count here."""
        tokenizer = self.gemma2_2b
        options = tokenizer_options or {}
        return {self.name: tokenizer.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs)}


class ZImageTokenizer(TemplateTokenizer):
    name = "qwen3_4b"
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    options: ClassVar = {"vocabulary": "qwen2.5", "embedding_size": 2560, "pad_token": QWEN_PAD}


class QwenImageTokenizer(TemplateTokenizer):
    name = "qwen25_7b"
    template = (
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
        "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    picture_template = (
        "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
        "background), then explain how the user's text instruction should alter or modify the image. Generate a new "
        "image that meets the user's requirements while maintaining consistency with the original input where "
        "appropriate.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    picture_token = QWEN_PICTURE
    options: ClassVar = {"vocabulary": "qwen2.5", "embedding_size": 3584, "pad_token": QWEN_PAD}


class KleinTokenizer(TemplateTokenizer):
    """FLUX.2 klein: the answer begins after an empty thought; prompts are filled up."""

    name = "qwen3_4b"
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    options: ClassVar = {
        "vocabulary": "qwen2.5",
        "embedding_size": 2560,
        "pad_token": QWEN_PAD,
        "min_length": FLUX2_LENGTH,
    }


class KleinTokenizer8B(KleinTokenizer):
    name = "qwen3_8b"
    options: ClassVar = {**KleinTokenizer.options, "embedding_size": 4096}


class Flux2Tokenizer(TemplateTokenizer):
    name = "mistral3_24b"
    template = (
        "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on "
        "object relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]{}[/INST]"
    )
    options: ClassVar = {
        "vocabulary": "mistral3",
        "embedding_size": 5120,
        "start_token": MISTRAL_START,
        "pad_token": MISTRAL_PAD,
        "min_length": FLUX2_LENGTH,
        "pad_left": True,
    }


class LLMModel(nn.Module):
    """One language model under a name. Weights: `<name>.transformer.model...`."""

    name = "llama"
    layer: str | int | tuple[int, ...] = LAST
    special_tokens: Mapping[str, int] = {"pad": 0}

    def __init__(self, config: LlamaConfig, name: str | None = None, **kwargs: Any):
        super().__init__()
        self.encoder_name = name or self.name
        encoder = LLMTextEncoder(config, self.layer, self.special_tokens, **kwargs)
        setattr(self, self.encoder_name, encoder)
        self.dtypes = {kwargs.get("dtype")}

    @classmethod
    def build(cls, sd: Mapping[str, Tensor], **kwargs: Any) -> LLMModel:
        """The encoder for weights named as the model names them; they are not loaded yet."""
        name = next(iter(sd)).partition(".")[0]
        return cls(config_from_state_dict(sd, f"{name}.transformer."), name, **kwargs)

    @property
    def encoder(self) -> LLMTextEncoder:
        return getattr(self, self.encoder_name)

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """The choice of a layer is the family's."""

    def reset_clip_options(self) -> None:
        pass

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple:
        """Conditioning, None (no pooled vector) and a dict with the mask, if there is one."""
        return self.encoder.encode_token_weights(token_weight_pairs[self.encoder_name])


class LuminaTEModel(LLMModel):
    """Gemma 2, the layer before the last."""

    name = "gemma2_2b"
    layer = -2
    special_tokens: ClassVar = {"start": GEMMA_START, "pad": 0}


class ZImageTEModel(LLMModel):
    """Qwen 3, the layer before the last."""

    name = "qwen3_4b"
    layer = -2
    special_tokens: ClassVar = {"pad": QWEN_PAD}


class QwenImageTEModel(LLMModel):
    """Qwen 2.5 VL, which also sees pictures where the file has its eyes. What the template says before the prompt is
    cut off again."""

    name = "qwen25_7b"
    special_tokens: ClassVar = {"pad": QWEN_PAD}

    def __init__(
        self, config: LlamaConfig, name: str | None = None, vision: QwenVisionConfig | None = None, **kwargs: Any
    ):
        super().__init__(config, name, **kwargs)
        encoder = QwenVLEncoder(config, self.layer, self.special_tokens, vision, **kwargs)
        setattr(self, self.encoder_name, encoder)

    @classmethod
    def build(cls, sd: Mapping[str, Tensor], **kwargs: Any) -> QwenImageTEModel:
        name = next(iter(sd)).partition(".")[0]
        eyes = f"{name}.transformer.visual."
        vision = vision_config(sd, eyes) if f"{eyes}blocks.0.mlp.gate_proj.weight" in sd else None
        return cls(config_from_state_dict(sd, f"{name}.transformer."), name, vision, **kwargs)

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple:
        cond, pooled, extra = super().encode_token_weights(token_weight_pairs)
        start = template_end([entry[0] for entry in token_weight_pairs[self.encoder_name][0]])
        extra = {name: value[:, start:] for name, value in extra.items()}
        return cond[:, start:], pooled, extra


def template_end(tokens: Sequence[Any]) -> int:
    """Where the user's words begin: behind the second start of a speaker, and the name and line break after it."""
    starts = [i for i, token in enumerate(tokens) if isinstance(token, int) and token == QWEN_START]
    if len(starts) < 2:
        return 0
    start = starts[1]
    return start + 3 if tuple(tokens[start + 1 : start + 3]) == QWEN_USER else start


class Flux2TEModel(LLMModel):
    """What goes into three layers, side by side on the channels."""

    name = "mistral3_24b"
    layer = (10, 20, 30)
    special_tokens: ClassVar = {"start": MISTRAL_START, "pad": MISTRAL_PAD}

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple:
        """The tokens that fill up stay, as in training; the model looks at all of them."""
        cond, pooled, _ = super().encode_token_weights(token_weight_pairs)
        return cond.movedim(1, 2).flatten(2), pooled, {}


class KleinTEModel(Flux2TEModel):
    """FLUX.2 klein: Qwen 3."""

    name = "qwen3_4b"
    layer = (9, 18, 27)
    special_tokens: ClassVar = {"pad": QWEN_PAD}
