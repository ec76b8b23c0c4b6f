# SPDX-License-Identifier: Apache-2.0
"""What a model needs of the host's memory, what there is, and when it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.pipelines.test_weight_files import write_safetensors
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.weight_files import Weights
from triton_diffusers.placement.host_memory import (
    HostBytes,
    available_memory,
    check_host_memory,
    split,
    weights_of,
)

GIB = 2**30
INDEX: dict[str, Any] = {
    "_class_name": "FluxPipeline",
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "image_encoder": [None, None],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "force_zeros": True,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """4 GiB of bfloat16 in the transformer, 1 GiB of float32 in the vae; headers only."""
    transformer = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors"
    write_safetensors(transformer, a=("BF16", [2 * GIB]))
    write_safetensors(
        tmp_path / "vae" / "diffusion_pytorch_model.safetensors", a=("F32", [GIB // 4])
    )
    (tmp_path / "tokenizer").mkdir()
    return tmp_path


def refusal(model: Path, available: int, **kwargs: Any) -> str:
    try:
        check_host_memory(model, INDEX, kwargs, stays_on_cpu=True, available=available)
    except ConfigError as error:
        return str(error)
    return ""


def test_weights_that_change_their_dtype_are_copied(model: Path) -> None:
    found = weights_of(model, INDEX, {"dtype": "torch.float32"})
    assert found["transformer"].copied == 8 * GIB
    assert found["vae"].copied == 0
    found = weights_of(model, INDEX, {"torch_dtype": {"vae": "float16", "default": "bfloat16"}})
    assert {name: size.copied for name, size in found.items()} == {
        "transformer": 0,
        "vae": GIB // 2,
        "tokenizer": 0,
    }


def test_what_is_not_loaded_counts_nothing(model: Path) -> None:
    assert "transformer" not in weights_of(model, INDEX, {"dtype": "float32", "transformer": None})


@pytest.mark.parametrize(
    ("stored", "dtype", "expected"),
    [
        ((("F32", 10),), "float32", HostBytes(0, 40)),
        ((("F32", 10),), "bfloat16", HostBytes(20, 0)),
        ((("BF16", 20),), "float32", HostBytes(80, 0)),
        ((("I64", 5),), "float16", HostBytes(0, 40)),
        ((("F32", 5), ("F16", 10)), "float16", HostBytes(10, 20)),
        ((("F32", 10),), None, HostBytes(0, 40)),
        ((), "float32", HostBytes(0, 40)),
    ],
)
def test_split(stored: tuple[tuple[str, int], ...], dtype: str | None, expected: HostBytes) -> None:
    assert split(Weights(40, stored), dtype) == expected


def test_too_large_a_model_is_refused_with_the_sizes(model: Path) -> None:
    text = refusal(model, 6 * GIB, dtype="float32")
    for word in ("needs 8.00 GiB", "transformer 8.00", "6.00 GiB is available", "set the dtype"):
        assert word in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "kwargs",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float32", "device_map": "cuda"},
        {"dtype": "float32", "quantization_config": object()},
        {"dtype": "float32", "transformer": None},
    ],
    ids=lambda kwargs: " ".join(kwargs),
)
def test_what_may_fit_is_not_refused(model: Path, kwargs: dict[str, Any]) -> None:
    assert refusal(model, 6 * GIB, **kwargs) == ""


def test_the_margin_is_on_the_models_side(model: Path) -> None:
    assert refusal(model, int(7.5 * GIB), dtype="float32") == ""
    assert refusal(model, 7 * GIB, dtype="float32")


def test_unmapped_files_are_copied(model: Path) -> None:
    size = sum(f.stat().st_size for f in model.glob("*/*.safetensors"))
    found = weights_of(model, INDEX, {"dtype": None, "disable_mmap": True})
    assert sum(sizes.copied for sizes in found.values()) == size
    assert not any(sizes.mapped for sizes in found.values())


def test_files_that_cannot_be_read_are_left_to_the_load(model: Path) -> None:
    (model / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"PK")
    assert "vae" not in weights_of(model, INDEX, {})


def test_mapped_weights_beyond_the_memory_are_warned_of(model: Path) -> None:
    (note,) = check_host_memory(model, INDEX, {}, stays_on_cpu=True, available=100)
    assert "read them from the disk" in note
    assert check_host_memory(model, INDEX, {}, stays_on_cpu=False, available=100) == []


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """100 MiB available and 10 MiB of swap; no control groups."""
    write(
        tmp_path / "proc",
        meminfo="MemTotal: 204800 kB\nMemAvailable: 102400 kB\nSwapFree: 10240 kB\n",
    )
    return tmp_path


def test_the_machine(machine: Path) -> None:
    assert available_memory(machine / "proc", machine / "cgroup") == 110 * 2**20


def test_version_2_of_control_groups(machine: Path) -> None:
    write(machine / "proc" / "self", cgroup="0::/pods/one\n")
    pods = machine / "cgroup" / "pods"
    stat = "anon 1\ninactive_file 300\nactive_file 20\n"
    write(pods / "one", memory__max="max\n", memory__current="5\n", memory__stat=stat)
    assert available_memory(machine / "proc", machine / "cgroup") == 110 * 2**20
    write(pods, memory__max="1000\n", memory__current="900\n", memory__stat=stat)
    assert available_memory(machine / "proc", machine / "cgroup") == 1000 - 900 + 320


def test_version_1_of_control_groups(machine: Path) -> None:
    write(machine / "proc" / "self", cgroup="4:cpu:/x\n3:memory:/docker/abc\n0::/\n")
    inside = machine / "cgroup" / "memory"  # in a container the outer path is not there
    stat = "total_inactive_file 7\ntotal_active_file 3\n"
    write(inside, **{"memory__limit_in_bytes": "5000", "memory__usage_in_bytes": "4000"})
    write(inside, memory__stat=stat)
    assert available_memory(machine / "proc", machine / "cgroup") == 1010


def test_here() -> None:
    assert 2**20 < available_memory() < 2**50
