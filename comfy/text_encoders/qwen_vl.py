"""Qwen 2.5 VL: words and pictures in one sequence.

Source: Bai et al. 2025, "Qwen2.5-VL Technical Report" (Apache-2.0): a picture's tokens have a time, a row and a column;
words have all three alike, and go on behind the picture's larger side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from comfy.text_encoders.clip_encoder import Token
from comfy.text_encoders.llama import LlamaConfig
from comfy.text_encoders.llm_encoder import LAST, LLMTextEncoder, PicturesNotSeen
from comfy.text_encoders.qwen_vision import MERGE, PATCH, QwenVision, QwenVisionConfig, fitting_size, patches_of


class QwenVLEncoder(LLMTextEncoder):
    """A language model that may have eyes (`transformer.visual`). Tokens may be pictures: {"type": "image", "data":
    [1, height, width, 3] in 0..1}."""

    def __init__(
        self,
        config: LlamaConfig,
        layer: str | int | tuple[int, ...] = LAST,
        special_tokens: Mapping[str, int] | None = None,
        vision: QwenVisionConfig | None = None,
        **kwargs: Any,
    ):
        super().__init__(config, layer, special_tokens, **kwargs)
        if vision is not None:
            self.transformer.visual = QwenVision(vision, **kwargs)

    def encode(self, tokens: Sequence[Sequence[Any]]) -> tuple[Tensor, None]:
        """As `LLMTextEncoder.encode`; a picture takes the place of as many tokens as it is made of. Raises
        PicturesNotSeen for a file without eyes."""
        if not any(isinstance(token, dict) for row in tokens for token in row):
            return super().encode(tokens)
        rows = [self._encode_row(row) for row in tokens]
        return torch.cat(rows), None

    def _encode_row(self, row: Sequence[Token | dict]) -> Tensor:
        embeds, places, _ = self._embed_row(row)
        return self.transformer(embeds=embeds, positions=places).last.float()

    def embed_prompt(self, row: Sequence[Any]) -> tuple[Tensor, Tensor, int]:
        """As `LLMTextEncoder.embed_prompt`, pictures included. Raises PicturesNotSeen for a file without eyes."""
        if any(isinstance(token, dict) for token in row):
            return self._embed_row(row)
        return super().embed_prompt(row)

    def length_of(self, row: Sequence[Any]) -> int:
        step = PATCH * MERGE
        sizes = [fitting_size(*token["data"].shape[1:3]) for token in row if isinstance(token, dict)]
        return len(row) - len(sizes) + sum(rows * columns // step**2 for rows, columns in sizes)

    @property
    def sees(self) -> bool:
        return hasattr(self.transformer, "visual")

    def _embed_row(self, row: Sequence[Token | dict]) -> tuple[Tensor, Tensor, int]:
        parts, positions, start = [], [], 0
        for words, picture in _runs(row):
            if words:
                ids = torch.tensor([words], device=self.transformer.get_input_embeddings().weight.device)
                parts.append(self.transformer.embed(ids)[0])
                positions.append(torch.arange(start, start + len(words)).expand(3, -1))
                start += len(words)
            if picture is not None:
                seen, rows, columns = self.look_at(picture)
                parts.append(seen.to(torch.float32))
                grid = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
                time = torch.zeros(rows * columns, dtype=torch.long)
                positions.append(torch.stack([time, grid[0].flatten(), grid[1].flatten()]) + start)
                start += max(rows, columns)
        device = parts[0].device
        embeds = torch.cat([part.to(device) for part in parts]).unsqueeze(0)
        places = torch.cat(positions, dim=1).to(device)
        return embeds, places, start

    def look_at(self, picture: Tensor) -> tuple[Tensor, int, int]:
        """A picture [1, height, width, 3] as tokens [rows * columns, width], and their rows and columns."""
        if not hasattr(self.transformer, "visual"):
            raise PicturesNotSeen(
                "this file of Qwen 2.5 VL lacks the part that sees; use one with the tensors visual.*"
            )
        eyes = self.transformer.visual
        device = eyes.merger.ln_q.weight.device
        patches, (rows, columns) = patches_of(picture[0].to(device))
        return eyes(patches, rows, columns), rows // MERGE, columns // MERGE


def _runs(row: Sequence[Any]) -> list[tuple[list[int], Tensor | None]]:
    """Words, each run with the picture behind it (None at the end). Vectors of textual inversions are no words here."""
    runs: list[tuple[list[int], Tensor | None]] = []
    words: list[int] = []
    for token in row:
        if isinstance(token, dict):
            runs.append((words, token["data"]))
            words = []
        elif isinstance(token, int):
            words.append(token)
    if words:
        runs.append((words, None))
    return runs
