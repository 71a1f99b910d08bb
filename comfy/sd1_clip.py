"""Text encoding under the names that node packs import: `comfy.text_encoders`."""

from __future__ import annotations

from comfy.text_encoders.clip_encoder import SDClipModel, gen_empty_tokens
from comfy.text_encoders.embedding_files import expand_directory_list, load_embed
from comfy.text_encoders.prompt_weights import escape_important, parse_parentheses, token_weights, unescape_important
from comfy.text_encoders.sd1 import SD1Tokenizer
from comfy.text_encoders.single import SingleEncoder as SD1ClipModel
from comfy.text_encoders.tokenizer import SDTokenizer

__all__ = [
    "SD1ClipModel",
    "SD1Tokenizer",
    "SDClipModel",
    "SDTokenizer",
    "escape_important",
    "expand_directory_list",
    "gen_empty_tokens",
    "load_embed",
    "parse_parentheses",
    "token_weights",
    "unescape_important",
]
