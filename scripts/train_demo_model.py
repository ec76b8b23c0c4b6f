#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Train the demo model: a tiny FluxPipeline that draws handwritten digits.

The pictures are scikit-learn's digits (8x8), drawn smoothly at 64x64. A small AutoencoderKL is
trained on them, then a FluxTransformer2DModel on its latents. Both text encoders are random and
frozen: they only have to tell the words apart. `--evaluate` draws 100 digits with the saved
pipeline and asks a classifier, trained on digits the model never saw, what they show.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from diffusers import AutoencoderKL, DiffusionPipeline, FluxPipeline, FluxTransformer2DModel
from diffusers import FlowMatchEulerDiscreteScheduler as Scheduler
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.svm import SVC
from tokenizers.pre_tokenizers import ByteLevel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
PIPELINE_DIR = ROOT / "model_repository" / "demo" / "pipeline"
CONTACT_SHEET = ROOT / "docs" / "images" / "demo-contact-sheet.png"

# What a bare prompt needs: the same as the entry's `diffusers_call_kwargs`.
CALL_KWARGS = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 20,
    "max_sequence_length": 32,
    "negative_prompt": "",  # with true_cfg_scale: guidance, for clearer digits
    "true_cfg_scale": 2.0,
}

SIZE = 64
GLYPH = 46  # side of the digit's box; the rest of the picture is border
COPIES = 14  # of every training digit, each drawn a little differently
PAPER, INK = np.array([253, 251, 245.0]), np.array([27, 38, 92.0])
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = """{}|a {}|an {}|the {}|number {}|the number {}|digit {}|the digit {}|a digit {}
handwritten {}|a handwritten {}|the handwritten {}|a handwritten digit {}|handwritten digit {}
a handwritten number {}|a picture of a {}|a picture of a handwritten {}|an image of the digit {}
a photo of a handwritten {}|a drawing of the number {}|draw a {}|draw the digit {}|write a {}
write the number {}|{} written by hand|please draw a handwritten {}|show me a {}
a handwritten {} on paper|{} in blue ink""".replace("\n", "|").split("|")
KNOWN_WORDS = list(dict.fromkeys([*WORDS, *" ".join(TEMPLATES).replace("{}", "").split()]))
NO_DIGIT = ("", "", "", "a picture", "a handwritten digit", "a drawing", "draw something", "ink")
FILLERS = ("beautiful", "small", "old", "blue", "simple", "elegant", "nice", "clear", "with", "for")
TEXT_LENGTHS = {16: 12, 32: 6, 64: 1}  # max_sequence_length: how often; short ones train faster


# ---- pictures ----
def render_digit(image: np.ndarray, size=float(GLYPH), dx=0.0, dy=0.0, angle=0.0) -> np.ndarray:
    """Draw an 8x8 digit as a smooth stroke: float32 [64, 64], 0.0 paper to 1.0 ink.

    image: [8, 8], 0.0-1.0. size: pixels of its box; dx, dy: shift in pixels; angle: radians.
    """
    rows, columns = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2.0
    rows, columns = rows - dy, columns - dx
    cosine, sine = np.cos(angle) * 8 / size, np.sin(angle) * 8 / size
    where = np.stack([cosine * rows - sine * columns, sine * rows + cosine * columns])
    padded = np.pad(image, 3)
    smooth = ndimage.map_coordinates(padded, where + 3.5 + 3, order=3, mode="nearest")
    sharp = 2 * smooth - ndimage.gaussian_filter(smooth, 0.8 * size / 8)
    return (1 / (1 + np.exp(-12 * (sharp - 0.57)))).astype(np.float32)


def render_varied(images: np.ndarray, copies: int, rng: np.random.Generator) -> np.ndarray:
    """Draw every digit `copies` times, shifted, scaled and turned a little: [copies*N, 64, 64]."""

    def render(image: np.ndarray) -> np.ndarray:
        scale, dx, dy, angle = rng.uniform((0.92, -3, -2, -0.12), (1.06, 3, 2, 0.12))
        return render_digit(image, GLYPH * scale, dx, dy, angle)

    return np.stack([render(image) for _ in range(copies) for image in images])


def paint(ink: np.ndarray) -> np.ndarray:
    """Turn ink [N, 64, 64] into the VAE's pictures: float32 [N, 3, 64, 64], -1.0 to 1.0."""
    rgb = PAPER + ink[..., None] * (INK - PAPER)
    return (rgb / 127.5 - 1).astype(np.float32).transpose(0, 3, 1, 2)


def read_ink(picture: Image.Image) -> np.ndarray:
    """The inverse of `paint` for one picture: float64 [64, 64], 0.0-1.0."""
    rgb = np.asarray(picture.convert("RGB"), dtype=np.float64)
    return np.clip(((rgb - PAPER) / (INK - PAPER)).mean(-1), 0, 1)


def split_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's digits: training images, held-out images, training labels, held-out labels."""
    digits = load_digits()
    images, labels = digits.images / 16.0, digits.target
    return train_test_split(images, labels, test_size=600, random_state=0, stratify=labels)


def keep_legible(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep about half of each digit: clear to a classifier, drawn in one piece, not blotted."""
    flat, classifier = images.reshape(len(images), -1), SVC(gamma=0.05)
    scores = cross_val_predict(classifier, flat, labels, cv=10, method="decision_function")
    true = np.eye(10, dtype=bool)[labels]
    margin = scores[true] - np.where(true, -np.inf, scores).max(1)
    strokes = [render_digit(image) > 0.5 for image in images]
    whole = np.array([ndimage.label(stroke)[1] == 1 for stroke in strokes])
    thickness = np.array([ndimage.distance_transform_edt(stroke).max() for stroke in strokes])
    keep = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        own = labels == digit
        clear = margin >= np.quantile(margin[own], 0.25)
        thin = thickness <= np.quantile(thickness[own], 0.7)
        keep |= own & whole & clear & thin
    return images[keep], labels[keep]


# ---- text ----
def decorate(text: str, rng: random.Random) -> str:
    """Write a prompt as another person would: more words, a capital letter, a full stop."""
    words = text.split()
    for filler in rng.choices(FILLERS, k=rng.choice((0, 0, 1, 2, 3))):
        words.insert(rng.randint(0, len(words)), filler)
    text = " ".join(words)
    if rng.random() < 0.6:
        text = text[0].upper() + text[1:]
    return text + rng.choice(("", "", ".", ".", "!"))


def list_prompts(rng: random.Random) -> list[list[str]]:
    """Training prompts for each digit; the last list names no digit."""
    prompts = []
    for digit, word in enumerate(WORDS):
        names = [word, word, word.capitalize(), word.upper(), str(digit), str(digit)]
        texts = [t.format(name) for t, name in itertools.product(TEMPLATES, names)]
        prompts.append(texts + [decorate(text, rng) for text in texts])
    return [*prompts, list(NO_DIGIT)]


def make_t5_tokenizer() -> transformers.T5TokenizerFast:
    """Whole words only; anything else is <unk>. No normalizer: it would be lost on reload."""
    spelled = [form for w in KNOWN_WORDS for form in (w, w.capitalize(), w.upper())]
    pieces = [f"▁{word}" for word in spelled + list("0123456789")] + list("0123456789,.!?:")
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    vocabulary += [(piece, -2.0) for piece in dict.fromkeys(pieces)]
    return transformers.T5TokenizerFast(vocab=vocabulary, extra_ids=0, model_max_length=512)


def make_clip_tokenizer() -> transformers.CLIPTokenizer:
    """Byte-level BPE whose merges spell the known words."""
    merges: dict[tuple[str, str], None] = {}
    for word in KNOWN_WORDS:
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        while len(pieces) > 1:
            merges[pieces[0], pieces[1]] = None
            pieces[:2] = ["".join(pieces[:2])]
    letters = sorted(ByteLevel.alphabet())
    pieces = letters + [f"{letter}</w>" for letter in letters] + ["".join(pair) for pair in merges]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=list(merges), model_max_length=77)


def make_t5_encoder(tokenizer: transformers.T5TokenizerFast) -> transformers.T5EncoderModel:
    """Random, with little attention: Flux does not mask the padding, which must not leak in."""
    shape = {"d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    encoder = transformers.T5EncoderModel(transformers.T5Config(vocab_size=len(tokenizer), **shape))
    torch.nn.init.normal_(encoder.shared.weight)
    encoder.encoder.block[0].layer[0].SelfAttention.o.weight.data *= 0.1
    return encoder.requires_grad_(False).eval()


def make_clip_encoder(tokenizer: transformers.CLIPTokenizer) -> transformers.CLIPTextModel:
    """Random, with weights large enough for the words to reach the pooled embedding."""
    shape = {"hidden_size": 64, "intermediate_size": 64, "projection_dim": 64}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 4}
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {name: getattr(tokenizer, name) for name in names}
    config = transformers.CLIPTextConfig(vocab_size=len(tokenizer), **shape, **depth, **ids)
    encoder = transformers.CLIPTextModel(config).requires_grad_(False).eval()
    for name, weight in encoder.named_parameters():
        if "token_embedding" in name:
            torch.nn.init.normal_(weight)
        elif name.endswith(("v_proj.weight", "out_proj.weight")):
            torch.nn.init.normal_(weight, std=0.25)
    return encoder


# ---- the pipeline and its training ----
def make_transformer() -> FluxTransformer2DModel:
    """1.2 M parameters. Modulation and output start at zero, so that every block starts idle."""
    layers = {"num_layers": 1, "num_single_layers": 2}
    heads = {"num_attention_heads": 4, "attention_head_dim": 32, "axes_dims_rope": (8, 12, 12)}
    widths = {"in_channels": 16, "joint_attention_dim": 64, "pooled_projection_dim": 64}
    transformer = FluxTransformer2DModel(**layers, **heads, **widths)
    for name, weight in transformer.named_parameters():
        if name.startswith(("proj_out", "norm_out")) or ("norm" in name and ".linear." in name):
            torch.nn.init.zeros_(weight)
    return transformer


def make_pipeline() -> FluxPipeline:
    """An untrained FluxPipeline; its autoencoder makes 64x64 pictures latents of 4x8x8."""
    down, up = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
    blocks = {"block_out_channels": (16, 16, 32, 32), "layers_per_block": 1, "norm_num_groups": 8}
    vae = AutoencoderKL(3, 3, down, up, latent_channels=4, sample_size=SIZE, **blocks)
    tokenizer, tokenizer_2 = make_clip_tokenizer(), make_t5_tokenizer()
    encoder, encoder_2 = make_clip_encoder(tokenizer), make_t5_encoder(tokenizer_2)
    transformer = make_transformer()
    return FluxPipeline(Scheduler(), vae, encoder, tokenizer, encoder_2, tokenizer_2, transformer)


def make_optimizers(model: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon for the matrices of transformer blocks, which it trains in fewer steps."""
    matrices, rest = [], []
    for name, weight in model.named_parameters():
        inner = "transformer_blocks" in name and "norm" not in name and weight.ndim == 2
        (matrices if inner else rest).append(weight)
    adamw = torch.optim.AdamW(rest, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    if not matrices:
        return [adamw]
    return [adamw, torch.optim.Muon(matrices, lr=15 * rate, weight_decay=0.01)]


def optimize(
    model: torch.nn.Module, steps: int, rate: float, loss_of_step: Callable[[], torch.Tensor]
) -> torch.nn.Module:
    """Minimize `loss_of_step()`; return the running average of the model."""

    def warm_up_and_decay(step: int) -> float:
        return min(1, (step + 1) / 50) * (1 + math.cos(math.pi * step / steps)) / 2

    optimizers = make_optimizers(model, rate)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, warm_up_and_decay) for o in optimizers]
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995))
    for _ in (progress := tqdm(range(steps), desc=type(model).__name__, mininterval=1)):
        model.zero_grad()
        loss = loss_of_step()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in (*optimizers, *schedules):
            part.step()
        average.update_parameters(model)
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return average.module.eval()


def train_vae(vae: AutoencoderKL, pictures: torch.Tensor, steps: int) -> AutoencoderKL:
    def loss_of_step() -> torch.Tensor:
        batch = pictures[torch.randint(len(pictures), (16,))]
        latents = vae.encode(batch).latent_dist
        error = vae.decode(latents.sample()).sample - batch
        return error.abs().mean() + error.square().mean() + 4e-7 * latents.kl().mean()

    return optimize(vae, steps, 3e-3, loss_of_step)


@torch.no_grad()
def encode_pictures(vae: AutoencoderKL, pictures: torch.Tensor) -> torch.Tensor:
    """Latents [N, 4, 8, 8] of mean 0 and deviation 1; writes that scaling into the VAE's config."""
    latents = torch.cat([vae.encode(batch).latent_dist.mean for batch in pictures.split(256)])
    shift, scale = latents.mean().item(), 1 / latents.std().item()
    vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    return (latents - shift) * scale


def train_transformer(
    pipeline: FluxPipeline, latents: torch.Tensor, labels: np.ndarray, steps: int
) -> FluxTransformer2DModel:
    """Flow matching on packed latents, with prompts drawn for each picture's digit."""
    rng = random.Random(0)
    prompts = list_prompts(rng)
    starts = np.cumsum([0] + [len(texts) for texts in prompts])
    texts = list(itertools.chain(*prompts))
    encoded = {n: pipeline.encode_prompt(texts, max_sequence_length=n) for n in TEXT_LENGTHS}
    packed = FluxPipeline._pack_latents(latents, len(latents), *latents.shape[1:])
    side = latents.shape[-1] // 2
    image_ids = FluxPipeline._prepare_latent_image_ids(1, side, side, "cpu", torch.float32)

    def loss_of_step() -> torch.Tensor:
        index = torch.randint(len(packed), (64,))
        shown = [10 if rng.random() < 0.1 else labels[i] for i in index]
        prompt = torch.tensor([rng.randrange(starts[d], starts[d + 1]) for d in shown])
        [length] = rng.choices(list(TEXT_LENGTHS), list(TEXT_LENGTHS.values()))
        embeds, pooled, text_ids = encoded[length]
        clean, noise = packed[index], torch.randn_like(packed[index])
        sigma = torch.sigmoid(torch.randn(len(index)))
        noisy, ids = torch.lerp(clean, noise, sigma[:, None, None]), (image_ids, text_ids)
        velocity = pipeline.transformer(noisy, embeds[prompt], pooled[prompt], sigma, *ids).sample
        return (velocity - (noise - clean)).square().mean()

    return optimize(pipeline.transformer, steps, 2e-3, loss_of_step)


def train(folder: Path, vae_steps: int, transformer_steps: int) -> None:
    """Train everything and save the pipeline, its large parts as float16."""
    torch.manual_seed(0)
    started = time.monotonic()
    images, _, labels, _ = split_digits()
    images, labels = keep_legible(images, labels)
    pictures = torch.from_numpy(paint(render_varied(images, COPIES, np.random.default_rng(0))))
    pipeline = make_pipeline()
    pipeline.vae = train_vae(pipeline.vae, pictures, vae_steps)
    latents, labels = encode_pictures(pipeline.vae, pictures), np.tile(labels, COPIES)
    pipeline.transformer = train_transformer(pipeline, latents, labels, transformer_steps)
    pipeline.vae.half()
    pipeline.transformer.half()
    pipeline.save_pretrained(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    seconds = time.monotonic() - started
    print(
        f"saved {folder}: {size / 1e6:.2f} MB, {seconds:.0f} s, {time.process_time():.0f} s of CPU"
    )


# ---- evaluation ----
def shrink(ink: np.ndarray) -> np.ndarray:
    """Features of the classifier: ink [N, 64, 64] -> [N, 256], the means of 4x4 blocks."""
    return ink.reshape(len(ink), 16, 4, 16, 4).mean((2, 4)).reshape(len(ink), -1)


def train_classifier() -> SVC:
    """A classifier that has seen only digits held out from the diffusion model."""
    _, images, _, labels = split_digits()
    ink = render_varied(images, 6, np.random.default_rng(1))
    return SVC(C=10).fit(shrink(ink), np.tile(labels, 6))


def write_contact_sheet(pictures: list[Image.Image], path: Path) -> None:
    """Lay 100 pictures out in ten rows, without gaps: all have the same paper."""
    tiles = np.stack([np.asarray(picture) for picture in pictures]).reshape(10, 10, SIZE, SIZE, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(np.concatenate(tiles, 1), 1)).save(path, optimize=True)


def evaluate(folder: Path, sheet: Path, seed: int) -> None:
    """Draw 100 digits, write the sheet, and print how many the classifier names rightly."""
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    pictures = []
    for i in tqdm(range(100), desc="drawing", unit="picture"):
        prompt, generator = f"a handwritten {WORDS[i % 10]}", torch.manual_seed(seed + i)
        pictures += pipeline(prompt, generator=generator, **CALL_KWARGS).images
    write_contact_sheet(pictures, sheet)
    named = train_classifier().predict(shrink(np.stack([read_ink(p) for p in pictures])))
    wanted = np.arange(100) % 10
    for i in np.flatnonzero(named != wanted):
        print(f"seed {seed + i}: a {WORDS[wanted[i]]} was taken for a {WORDS[named[i]]}")
    print(f"call kwargs: {json.dumps(CALL_KWARGS)}\ncontact sheet: {sheet}")
    print(f"{(named == wanted).sum()} of 100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--evaluate", action="store_true", help="train nothing; evaluate the saved pipeline")
    add("--folder", type=Path, default=PIPELINE_DIR, help="the pipeline's folder")
    add("--sheet", type=Path, default=CONTACT_SHEET, help="where --evaluate writes its PNG")
    add("--seed", type=int, default=1000, help="first of the 100 seeds of --evaluate (%(default)s)")
    add("--threads", type=int, default=1, help="of torch; the weights depend on it (%(default)s)")
    add("--vae-steps", type=int, default=1100, help="(%(default)s)")
    add("--transformer-steps", type=int, default=2800, help="(%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.evaluate:
        evaluate(options.folder, options.sheet, options.seed)
    else:
        train(options.folder, options.vae_steps, options.transformer_steps)


if __name__ == "__main__":
    main()
