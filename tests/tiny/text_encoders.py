# SPDX-License-Identifier: Apache-2.0
"""Text encoders of the tiny pipelines: hidden size 32 unless stated."""

from __future__ import annotations

from typing import Any

from tests.tiny.tokenizers import VOCAB_SIZE
from tests.tiny.weights import randomize

WIDTH = 32


def _clip_config(**changes: Any) -> Any:
    from transformers import CLIPTextConfig

    config = {
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": 512,
        "eos_token_id": 513,
        "pad_token_id": 513,
        "hidden_size": WIDTH,
        "intermediate_size": 37,
        "projection_dim": WIDTH,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    return CLIPTextConfig(**(config | changes))


def clip_text_encoder(seed: int = 1, **changes: Any) -> Any:
    from transformers import CLIPTextModel

    return randomize(CLIPTextModel(_clip_config(**changes)), seed)


def clip_text_encoder_with_projection(seed: int = 2, **changes: Any) -> Any:
    from transformers import CLIPTextModelWithProjection

    return randomize(CLIPTextModelWithProjection(_clip_config(**changes)), seed)


def t5_encoder(seed: int = 3) -> Any:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=VOCAB_SIZE,
        d_model=WIDTH,
        d_kv=8,
        d_ff=37,
        num_layers=2,
        num_heads=4,
        is_gated_act=True,
        dense_act_fn="gelu_new",
    )
    return randomize(T5EncoderModel(config), seed)


def gemma2_encoder(seed: int = 4) -> Any:
    from transformers import Gemma2Config, Gemma2Model

    config = Gemma2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=WIDTH,
        intermediate_size=37,
        head_dim=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        max_position_embeddings=1024,
    )
    return randomize(Gemma2Model(config), seed)
