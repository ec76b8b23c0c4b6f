# SPDX-License-Identifier: Apache-2.0
"""Text encoders of the tiny pipelines: hidden size 32 unless stated."""

from __future__ import annotations

from typing import Any

from tests.tiny.tokenizers import QWEN_SPECIALS, VOCAB_SIZE
from tests.tiny.weights import randomize

WIDTH = 32


def _clip_config(**changes: Any) -> Any:
    from transformers import CLIPTextConfig

    config = {
        **{"vocab_size": VOCAB_SIZE, "bos_token_id": 512, "eos_token_id": 513, "pad_token_id": 513},
        **{"hidden_size": WIDTH, "intermediate_size": 37, "projection_dim": WIDTH},
        **{"num_attention_heads": 4, "num_hidden_layers": 2},
    }
    return CLIPTextConfig(**(config | changes))


def clip_text_encoder(seed: int = 1, **changes: Any) -> Any:
    from transformers import CLIPTextModel

    return randomize(CLIPTextModel(_clip_config(**changes)), seed)


def clip_text_encoder_with_projection(seed: int = 2, **changes: Any) -> Any:
    from transformers import CLIPTextModelWithProjection

    return randomize(CLIPTextModelWithProjection(_clip_config(**changes)), seed)


def _t5_sizes(**changes: Any) -> dict[str, Any]:
    sizes = {
        **{"vocab_size": VOCAB_SIZE, "d_model": WIDTH, "d_kv": 8, "d_ff": 37, "num_layers": 2},
        **{"num_heads": 4, "feed_forward_proj": "gated-gelu"},
    }
    return sizes | changes


def t5_encoder(seed: int = 3, **changes: Any) -> Any:
    from transformers import T5Config, T5EncoderModel

    return randomize(T5EncoderModel(T5Config(**_t5_sizes(**changes))), seed)


def umt5_encoder(seed: int = 5) -> Any:
    from transformers import UMT5Config, UMT5EncoderModel

    return randomize(UMT5EncoderModel(UMT5Config(**_t5_sizes())), seed)


def gemma2_encoder(seed: int = 4) -> Any:
    from transformers import Gemma2Config, Gemma2Model

    config = Gemma2Config(
        **{"vocab_size": VOCAB_SIZE, "hidden_size": WIDTH, "intermediate_size": 37, "head_dim": 8},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2},
        max_position_embeddings=1024,
    )
    return randomize(Gemma2Model(config), seed)


def t5_gemma_encoder(seed: int = 21) -> Any:
    """Build PRX's text encoder, whose file of configuration is that of the whole T5Gemma."""
    from transformers.models.t5gemma.configuration_t5gemma import T5GemmaConfig
    from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoder

    sizes = _decoder_sizes() | {"head_dim": 8, "query_pre_attn_scalar": 8}
    config = T5GemmaConfig(encoder=sizes, decoder=sizes)
    encoder = randomize(T5GemmaEncoder(config.encoder), seed)
    encoder.config = config
    return encoder


def _decoder_sizes() -> dict[str, Any]:
    return {
        **{"vocab_size": VOCAB_SIZE, "hidden_size": WIDTH, "intermediate_size": 37},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        "max_position_embeddings": 4096,
    }


def qwen3_encoder(seed: int = 6) -> Any:
    from transformers import Qwen3Config, Qwen3Model

    return randomize(Qwen3Model(Qwen3Config(**_decoder_sizes(), head_dim=8)), seed)


def _qwen25_vl_config() -> Any:
    from transformers import Qwen2_5_VLConfig

    ids = {token: 256 + index for index, token in enumerate(QWEN_SPECIALS)}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    return Qwen2_5_VLConfig(
        text_config=_decoder_sizes() | {"rope_parameters": rope},
        vision_config={
            **{"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2},
            **{"out_hidden_size": WIDTH, "fullatt_block_indexes": [0]},
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def qwen25_vl_encoder(seed: int = 7) -> Any:
    """Qwen2.5-VL: reads text and, where the tokens of a picture stand, the picture."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    return randomize(Qwen2_5_VLForConditionalGeneration(_qwen25_vl_config()), seed)


def qwen25_vl_text_encoder(seed: int = 16) -> Any:
    """The half of Qwen2.5-VL that reads text."""
    from transformers import Qwen2_5_VLTextModel

    return randomize(Qwen2_5_VLTextModel(_qwen25_vl_config().text_config), seed)


def qwen3_language_model(seed: int = 17) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return randomize(Qwen3ForCausalLM(Qwen3Config(**_decoder_sizes(), head_dim=8)), seed)


def glm_encoder(seed: int = 14) -> Any:
    from transformers import GlmConfig, GlmModel

    return randomize(GlmModel(GlmConfig(**_decoder_sizes(), head_dim=8, pad_token_id=0)), seed)


def llama_encoder(seed: int = 15) -> Any:
    from transformers import LlamaConfig, LlamaModel

    return randomize(LlamaModel(LlamaConfig(**_decoder_sizes(), pad_token_id=0)), seed)


def gemma3_language_model(seed: int = 18) -> Any:
    """Gemma 3 that also could see; its pictures are never used here."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    config = Gemma3Config(
        text_config=_decoder_sizes() | {"head_dim": 8},
        vision_config={
            **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        },
        mm_tokens_per_image=4,
        image_token_index=VOCAB_SIZE - 1,
    )
    return randomize(Gemma3ForConditionalGeneration(config), seed)
