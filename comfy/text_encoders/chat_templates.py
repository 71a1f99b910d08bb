"""How each language model was trained to be spoken to, and which tokens end its answer.

Sources: the chat templates published with the models (Qwen 2.5 VL and Qwen 3: Apache-2.0; Mistral Small 3.1: tekken's
version 7 of mistral-common, Apache-2.0) and the prompt formats in the model cards of Gemma and Llama 3.
"""

from __future__ import annotations

import dataclasses

QWEN_END, QWEN_TEXT_END = 151645, 151643
GEMMA_TEXT_END, GEMMA2_TURN_END = 1, 107
MISTRAL_TEXT_END = 2
LLAMA_TEXT_END, LLAMA_MESSAGE_END, LLAMA_TURN_END = 128001, 128008, 128009

# A prompt that begins so brings its own template.
MARKS = ("<|im_start|>", "<|start_header_id|>", "<|begin_of_text|>", "<start_of_turn>", "[INST]", "[SYSTEM_PROMPT]")
PICTURE_MARK = "<|image_pad|>"
PICTURE = f"<|vision_start|>{PICTURE_MARK}<|vision_end|>"
THOUGHT_END = "</think>"
NO_THOUGHT = f"<think>\n\n{THOUGHT_END}\n\n"


@dataclasses.dataclass(frozen=True)
class Chat:
    """One model. template: has one {} for the prompt; the token in front of everything is the tokenizer's business.
    ends: tokens that end an answer. thinks: it puts thoughts before its answer, unless one is there already.
    own_head: it was trained with an output head of its own, so that a file without one lacks something."""

    label: str
    template: str
    ends: frozenset[int]
    thinks: bool = False
    own_head: bool = False

    def dress(self, text: str, pictures: int = 0, thinking: bool = False, template: bool = True) -> str:
        """What the model is to read. pictures: how many there are; those without a place in the text go before it."""
        text = PICTURE * max(0, pictures - text.count(PICTURE_MARK)) + text
        if not template or text.startswith(MARKS):
            return text
        # Not format(): braces in a prompt are text.
        dressed = self.template.replace("{}", text, 1)
        return dressed + NO_THOUGHT if self.thinks and not thinking else dressed

    def answer(self, text: str) -> str:
        """An answer without the thoughts before it. Where they have no end there is no answer: then all of it."""
        return text.rpartition(THOUGHT_END)[2] if self.thinks else text


_CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_QWEN_ENDS = frozenset({QWEN_END, QWEN_TEXT_END})


def _qwen3(label: str, own_head: bool = False) -> Chat:
    return Chat(label, _CHATML, _QWEN_ENDS, thinks=True, own_head=own_head)


# By the name of the encoder.
CHATS = {
    "qwen3_4b": _qwen3("Qwen 3 4B"),
    "qwen3_8b": _qwen3("Qwen 3 8B", own_head=True),
    "qwen25_7b": Chat(
        "Qwen 2.5 VL 7B",
        f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{_CHATML}",
        _QWEN_ENDS,
        own_head=True,
    ),
    "gemma2_2b": Chat(
        "Gemma 2 2B",
        "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
        frozenset({GEMMA_TEXT_END, GEMMA2_TURN_END}),
    ),
    "mistral3_24b": Chat("Mistral Small 3 24B", "[INST]{}[/INST]", frozenset({MISTRAL_TEXT_END}), own_head=True),
    "llama": Chat(
        "Llama 3.1 8B",
        "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        frozenset({LLAMA_TEXT_END, LLAMA_MESSAGE_END, LLAMA_TURN_END}),
        own_head=True,
    ),
}
