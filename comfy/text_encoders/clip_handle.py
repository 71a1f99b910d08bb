"""A text encoder as nodes use it: prompt in, conditioning out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.model_base import load_assigned
from comfy.model_patcher import ModelPatcher
from comfy.quantization import to_dtype
from comfy.quantized_files import is_scaled, with_shapes_of_values
from comfy.text_encoders.llm_generation import LanguageModel, OutputHead, take_head
from comfy.text_encoders.token_choice import Sampling
from comfy.weights import source_of

if TYPE_CHECKING:
    from comfy.hooks import HookGroup
    from comfy.supported_models_base import ClipTarget


_WHOLE = ("clip_l.", "clip_g.", "clip_h.", "t5xxl.")  # how names of a whole text side begin


class CLIP:
    """Tokenizer, encoder model and patcher of one text side.

    target: what builds them; state_dict: the encoder's tensors, named as its model names them. `clone()`
    shares the model. disable_dynamic: accepted for the interface's sake; encoders are always loaded whole.
    head_patcher: the output head of a language model, which only writing needs; None where the file has none.
    """

    head_patcher: ModelPatcher | None = None

    def __init__(
        self,
        target: ClipTarget | None = None,
        embedding_directory: str | Sequence[str] | None = None,
        no_init: bool = False,
        tokenizer_data: dict[str, Any] | None = None,
        parameters: int = 0,
        state_dict: Mapping[str, Tensor] | None = None,
        model_options: Mapping[str, Any] | None = None,
        disable_dynamic: bool = False,
    ):
        if no_init:
            return
        options = model_options or {}
        sd = dict(state_dict or {})
        load_device = options.get("load_device", comfy.model_management.text_encoder_device())
        offload_device = options.get("offload_device", comfy.model_management.text_encoder_offload_device())
        file = source_of(sd.values())
        head = _in_dtype(take_head(sd), options.get("dtype"), torch.device(load_device))
        sd = _in_dtype(sd, options.get("dtype"), torch.device(load_device))
        dtype = comfy.utils.weight_dtype(sd)
        operations = options.get("custom_operations", comfy.ops.manual_cast)
        with torch.inference_mode(False):
            model = target.clip(with_shapes_of_values(sd), device="meta", dtype=dtype, operations=operations)
            model.weights_file = file  # tensors in another dtype no longer know it
            load_assigned(model, sd, "text encoder")
            head = OutputHead.build(head, dtype=comfy.utils.weight_dtype(head), operations=operations)
            if head is not None:
                self.head_patcher = ModelPatcher(head, load_device, offload_device)
        self.cond_stage_model = model.eval()
        self.tokenizer = target.tokenizer(embedding_directory=embedding_directory, tokenizer_data=tokenizer_data or {})
        self.patcher = ModelPatcher(self.cond_stage_model, load_device, offload_device)
        self.patcher.is_clip = True
        self.layer_idx: int | None = None
        self.tokenizer_options: dict[str, Any] = {}
        # Whether hooks change the encoder in the course of sampling, and those that conditionings get.
        self.use_clip_schedule = False
        self.apply_hooks_to_conds: HookGroup | None = None

    def clone(self) -> CLIP:
        """Same model, own patches and settings."""
        n = self.__class__(no_init=True)
        n.patcher = self.patcher.clone()
        n.cond_stage_model = self.cond_stage_model
        n.head_patcher = self.head_patcher
        n.tokenizer = self.tokenizer
        n.layer_idx = self.layer_idx
        n.tokenizer_options = self.tokenizer_options.copy()
        n.use_clip_schedule = self.use_clip_schedule
        n.apply_hooks_to_conds = self.apply_hooks_to_conds
        return n

    # --- settings

    def clip_layer(self, layer_idx: int) -> None:
        """Use the output of this layer: -1 the last, -2 the one before it..."""
        self.layer_idx = layer_idx

    def set_tokenizer_option(self, option_name: str, value: Any) -> None:
        self.tokenizer_options[option_name] = value

    def add_patches(self, patches: dict, strength_patch: float = 1.0, strength_model: float = 1.0) -> list[Any]:
        return self.patcher.add_patches(patches, strength_patch, strength_model)

    def get_key_patches(self) -> dict[str, list[Any]]:
        return self.patcher.get_key_patches()

    def is_dynamic(self) -> bool:
        return False

    def set_hooks(self, hooks: HookGroup, apply_to_conds: bool = True, schedule: bool = False) -> None:
        """Encode with these hooks in force.

        apply_to_conds: conditionings carry them along to the diffusion model. schedule: `encode_from_tokens_scheduled`
        gives an entry for each part of sampling in which their keyframes have other strengths; otherwise keyframes do
        not matter to the encoder.
        """
        if apply_to_conds:
            self.apply_hooks_to_conds = hooks
        self.use_clip_schedule = schedule
        forced = hooks.clone()
        if not schedule:
            forced.set_keyframes_on_hooks(None)
        self.patcher.register_all_hook_patches(forced, {})
        self.patcher.forced_hooks = forced

    # --- use

    def tokenize(self, text: str, return_word_ids: bool = False, **kwargs: Any) -> dict[str, list[list[tuple]]]:
        """Chunks of weighted tokens per encoder: {"l": [[(token, weight), ...], ...]}; with `return_word_ids`
        also the number of the word."""
        options = {**self.tokenizer_options, **kwargs.pop("tokenizer_options", {})}
        return self.tokenizer.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs)

    def encode_from_tokens(
        self, tokens: Mapping[str, Any], return_pooled: bool | str = False, return_dict: bool = False
    ) -> Any:
        """Conditioning [1, tokens, width]; with `return_pooled` also the pooled vector (`"unprojected"`:
        before its projection); with `return_dict` both as {"cond", "pooled_output"}."""
        cond, pooled, extra = self._encode(tokens, unprojected=return_pooled == "unprojected")
        if return_dict:
            return {"cond": cond, "pooled_output": pooled, **extra, **self._hooks_for_conds()}
        return (cond, pooled) if return_pooled else cond

    def encode_from_tokens_scheduled(
        self,
        tokens: Mapping[str, Any],
        unprojected: bool = False,
        add_dict: Mapping[str, Any] | None = None,
        show_pbar: bool = True,
    ) -> list[list[Any]]:
        """CONDITIONING: [[tensor, {"pooled_output": ..., **add_dict}]]; with scheduled hooks an entry for each part of
        sampling in which the encoder is another (see `set_hooks`)."""
        more = dict(add_dict or {})
        hooks = self.patcher.forced_hooks if self.use_clip_schedule else None
        if hooks is None:
            return [self._entry(tokens, unprojected, more)]
        try:
            entries = []
            for start, end in hooks.keyframe_ranges():
                # What the entry's own range leaves out need not be encoded.
                if end >= more.get("start_percent", 0.0) and start <= more.get("end_percent", 1.0):
                    hooks.go_to_percent(start)
                    part = {"clip_start_percent": start, "clip_end_percent": end}
                    entries.append(self._entry(tokens, unprojected, {**part, **more}))
            return entries
        finally:
            hooks.reset()

    def _entry(self, tokens: Mapping[str, Any], unprojected: bool, more: dict[str, Any]) -> list[Any]:
        cond, pooled, extra = self._encode(tokens, unprojected=unprojected)
        return [cond, {"pooled_output": pooled, **extra, **self._hooks_for_conds(), **more}]

    def _hooks_for_conds(self) -> dict[str, Any]:
        return {} if self.apply_hooks_to_conds is None else {"hooks": self.apply_hooks_to_conds}

    def encode(self, text: str) -> Tensor:
        """Conditioning of a prompt."""
        return self.encode_from_tokens(self.tokenize(text))

    def _encode(self, tokens: Mapping[str, Any], unprojected: bool) -> tuple[Tensor, Tensor | None, dict]:
        model = self.cond_stage_model
        model.reset_clip_options()
        if self.layer_idx is not None:
            model.set_clip_options({"layer": self.layer_idx})
        if unprojected:
            model.set_clip_options({"projected_pooled": False})
        self.load_model(tokens)
        with self._hooks_in_force():
            cond, pooled, *rest = model.encode_token_weights(tokens)
        between = comfy.model_management.to_intermediate
        return between(cond), None if pooled is None else between(pooled), rest[0] if rest else {}

    @contextmanager
    def _hooks_in_force(self) -> Iterator[None]:
        if self.patcher.forced_hooks is None:
            yield
            return
        self.patcher.patch_hooks(self.patcher.forced_hooks.hooks)
        try:
            yield
        finally:
            self.patcher.release_hooks()

    def language_model(self) -> LanguageModel:
        """What writes here. Raises NoLanguageModel for encoders that only encode."""
        return LanguageModel.of(self.cond_stage_model, self.tokenizer, self.head_patcher)

    def generate(
        self,
        tokens: Mapping[str, Any],
        do_sample: bool = True,
        max_length: int = 512,
        temperature: float = Sampling.temperature,
        top_k: int = Sampling.top_k,
        top_p: float = Sampling.top_p,
        min_p: float = Sampling.min_p,
        repetition_penalty: float = Sampling.repetition_penalty,
        seed: int | None = None,
        presence_penalty: float = Sampling.presence_penalty,
    ) -> list[int]:
        """The ids of what the language model writes after a prompt (`tokenize`, or `language_model().tokenize` for the
        way it was trained to be spoken to), at most `max_length`; see `decode`.

        do_sample False: always the likeliest token. The others: see `comfy.text_encoders.token_choice`; seed None:
        another one each time. Raises NoLanguageModel, and InterruptProcessingException between tokens.
        """
        writer = self.language_model()
        sampling = None
        if do_sample:
            seed = torch.Generator().seed() if seed is None else seed
            sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, seed)
        progress = comfy.utils.ProgressBar(max_length)
        with self._hooks_in_force():
            ids = writer.write(tokens, max_length, sampling, self.patcher, progress.update_absolute)
        progress.update_absolute(max_length)
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids that `generate` gave, thoughts included. skip_special_tokens: accepted for the interface's
        sake; there are none in it."""
        return self.language_model().decode(token_ids)

    def load_model(self, tokens: Mapping[str, Any] | None = None) -> ModelPatcher:
        """Make the encoder ready to run."""
        comfy.model_management.load_models_gpu([self.patcher])
        return self.patcher

    # --- weights

    def load_sd(self, sd: Mapping[str, Tensor], full_model: bool = False) -> list[str]:
        """Replace weights; returns the keys that were not used.

        full_model: `sd` is named as the whole text side names its tensors, and has all of them; one that is not so
        named is the file of one encoder (see `load_sd` of the model).
        """
        if full_model or any(key.startswith(_WHOLE) for key in sd):
            return load_assigned(self.cond_stage_model, sd, "text encoder")
        return list(self.cond_stage_model.load_sd(sd).unexpected_keys)

    def state_dict_for_saving(self) -> dict[str, Tensor]:
        """The encoder's tensors as a checkpoint is to hold them, patches applied."""
        return self.get_sd()

    def get_sd(self) -> dict[str, Tensor]:
        """The encoder's tensors, patches applied, and those of the output head if it has one."""
        sd = self.patcher._patched_state_dict()
        head = self.head_patcher
        return sd if head is None else {**sd, **head.model.tensors(head._patched_state_dict())}


def _in_dtype(sd: dict[str, Tensor], asked: torch.dtype | None, device: torch.device) -> dict[str, Tensor]:
    """The encoder's tensors in the dtype they are to rest in: `asked`, else what a flag says; else as in the file, but
    not in float32 where the device's own choice is smaller. Every layer casts as it computes."""
    management = comfy.model_management
    dtype = asked or management.text_encoder_asked_dtype()
    if dtype is None:
        own = management.text_encoder_dtype(device)
        if comfy.utils.weight_dtype(sd) != torch.float32 or own == torch.float32:
            return sd
        dtype = own
    eight_bits = dtype in management.FLOAT8_DTYPES

    def wanted(name: str, tensor: Tensor) -> bool:
        # Of float8 only matrices: norms and biases would lose too much for what they save.
        small = eight_bits and tensor.ndim < 2
        return tensor.is_floating_point() and not small and not is_scaled(sd, name)

    return {name: to_dtype(tensor, dtype) if wanted(name, tensor) else tensor for name, tensor in sd.items()}
