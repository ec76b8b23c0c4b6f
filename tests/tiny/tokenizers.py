# SPDX-License-Identifier: Apache-2.0
"""Tokenizers with one token a character, made without any download."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCAB_SIZE = 600  # of every tiny text encoder: more than any tokenizer here has
QWEN_SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_PRINTABLE = string.ascii_letters + string.digits + string.punctuation
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def _numbered(*groups: object) -> dict[str, int]:
    tokens = [token for group in groups for token in group]
    return {token: index for index, token in enumerate(tokens)}


def clip_tokenizer() -> PreTrainedTokenizerBase:
    """CLIP's byte-level BPE without merges; the last two ids are start and end of text."""
    from transformers import CLIPTokenizer

    letters = _byte_alphabet()
    ends = [f"{letter}</w>" for letter in letters]
    vocab = _numbered(letters, ends, ["<|startoftext|>", "<|endoftext|>"])
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)


def t5_tokenizer(model_max_length: int = 64) -> PreTrainedTokenizerBase:
    """T5's Unigram model over single characters."""
    from transformers import T5Tokenizer

    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [(letter, -3.0) for letter in "\u2581" + _PRINTABLE]
    return T5Tokenizer(vocab=specials + letters, extra_ids=0, model_max_length=model_max_length)


def qwen_tokenizer() -> PreTrainedTokenizerBase:
    """Qwen's byte-level BPE without merges, with a ChatML template."""
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer(
        vocab=_numbered(_byte_alphabet(), QWEN_SPECIALS),
        merges=[],
        extra_special_tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        model_max_length=2048,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(QWEN_SPECIALS)})
    tokenizer.chat_template = _CHATML
    return tokenizer


def gemma_tokenizer() -> PreTrainedTokenizerBase:
    """Gemma's BPE over single characters."""
    from transformers import GemmaTokenizer

    specials = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    return GemmaTokenizer(vocab=_numbered(specials, "\u2581" + _PRINTABLE), merges=[])


def qwen_vl_processor() -> Any:
    """Text and pictures -> tokens and patches, as Qwen2.5-VL wants them.

    Qwen's own processor class needs torchvision for videos; this one computes the same without.
    """
    from transformers import PaddleOCRVLProcessor, Qwen2VLImageProcessorPil

    images = Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112})
    return PaddleOCRVLProcessor(image_processor=images, tokenizer=qwen_tokenizer())


def llama_tokenizer() -> PreTrainedTokenizerBase:
    """Llama's BPE over single characters."""
    from transformers import LlamaTokenizer

    specials = ("<unk>", "<s>", "</s>", "<pad>")
    return LlamaTokenizer(
        vocab=_numbered(specials, "\u2581\n" + _PRINTABLE), merges=[], pad_token="<pad>"
    )


def glm_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level BPE without merges in the general class, padded on the left as GLM's."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = _numbered(["<pad>", "<unk>"], _byte_alphabet())
    model = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", unk_token="<unk>", padding_side="left"
    )


def roberta_tokenizer() -> PreTrainedTokenizerBase:
    """RoBERTa's byte-level BPE without merges."""
    from transformers import RobertaTokenizer

    specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return RobertaTokenizer(
        vocab=_numbered(specials, _byte_alphabet()), merges=[], model_max_length=77
    )


def gpt2_tokenizer() -> PreTrainedTokenizerBase:
    """GPT-2's byte-level BPE without merges."""
    from transformers import GPT2Tokenizer

    return GPT2Tokenizer(vocab=_numbered(_byte_alphabet(), ["<|endoftext|>"]), merges=[])
