"""Kinds of low-rank and other small changes to weights, as files of LoRA trainers hold them.

`adapters` lists the kinds; each knows the parts it is made of and turns them into a change of one weight.
"""

from __future__ import annotations

from comfy.weight_adapter.base import AdapterParts, WeightAdapter
from comfy.weight_adapter.boft import BOFTAdapter
from comfy.weight_adapter.glora import GLoRAAdapter
from comfy.weight_adapter.loha import LoHaAdapter
from comfy.weight_adapter.lokr import LoKrAdapter
from comfy.weight_adapter.lora import LoRAAdapter
from comfy.weight_adapter.oft import OFTAdapter

# BOFT before OFT: both store `oft_blocks` and differ in its number of dimensions.
adapters: list[type[WeightAdapter]] = [LoRAAdapter, LoHaAdapter, LoKrAdapter, GLoRAAdapter, BOFTAdapter, OFTAdapter]

__all__ = [
    "AdapterParts",
    "BOFTAdapter",
    "GLoRAAdapter",
    "LoHaAdapter",
    "LoKrAdapter",
    "LoRAAdapter",
    "OFTAdapter",
    "WeightAdapter",
    "adapters",
]
