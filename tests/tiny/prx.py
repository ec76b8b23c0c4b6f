# SPDX-License-Identifier: Apache-2.0
"""PRX, whose text encoder is a class that diffusers itself puts into transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.tiny.autoencoders import flux_autoencoder
from tests.tiny.calls import picture_call
from tests.tiny.entry import describe, make_parts
from tests.tiny.schedulers import flow_match
from tests.tiny.text_encoders import WIDTH, t5_gemma_encoder
from tests.tiny.tokenizers import gemma_tokenizer
from tests.tiny.weights import build_model


def _transformer() -> Any:
    from diffusers import PRXTransformer2DModel

    return build_model(
        PRXTransformer2DModel,
        70,
        in_channels=4,
        patch_size=1,
        context_in_dim=WIDTH,
        hidden_size=16,
        mlp_ratio=2.0,
        num_heads=2,
        depth=1,
        axes_dim=[4, 4],
    )


def _tokenizer() -> Any:
    tokenizer = gemma_tokenizer()
    tokenizer.model_max_length = 64  # to which the pipeline pads
    return tokenizer


def _components() -> dict[str, Any]:
    return make_parts(
        scheduler=flow_match,
        vae=flux_autoencoder,
        text_encoder=t5_gemma_encoder,
        tokenizer=_tokenizer,
        transformer=_transformer,
    ) | {"default_sample_size": 512}


PIPELINES = (
    describe(
        "prx",
        "PRXPipeline",
        "text-to-image",
        _components,
        partial(picture_call, use_resolution_binning=False),
    ),
)
