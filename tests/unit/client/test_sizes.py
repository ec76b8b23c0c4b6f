# SPDX-License-Identifier: Apache-2.0
import os

import numpy as np
import pytest

from triton_diffusers.client.address import read_address
from triton_diffusers.client.entry import ServedEntry
from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.client.regions import LARGE_BYTES, Region, place
from triton_diffusers.client.request import build_inputs
from triton_diffusers.client.sizes import MAX_REMEMBERED, OutputSizes, plan_region
from triton_diffusers.config.admin_key import SHARED_MEMORY_DIR, is_local
from triton_diffusers.contract import EXTRA, IMAGES, OUTPUT_FORMAT, SEED, WIRE, Kind, Tensor

KINDS = {"prompt": Kind.TEXT, "height": Kind.INT, "image": Kind.IMAGE}
INPUTS = {name: Tensor(name, *WIRE[kind]) for name, kind in KINDS.items()}
INPUTS |= {
    t.name: t for t in (SEED, EXTRA, OUTPUT_FORMAT, Tensor("image_bytes", "TYPE_STRING", (-1,)))
}
ENTRY = ServedEntry("demo", INPUTS, {"images": IMAGES}, decoupled=False)
LARGE = np.zeros((1, 2048, 1024, 3), np.uint8)
SMALL = np.zeros((1, 8, 8, 3), np.uint8)


def key(**keywords):
    return OutputSizes().key(ENTRY, build_inputs(ENTRY, keywords))


BASE = {"prompt": "a", "height": 8, "seed": 1}


@pytest.mark.parametrize("change", [{"prompt": "b"}, {"seed": 2}])
def test_words_and_seeds_do_not_change_a_size(change):
    assert key(**BASE) == key(**(BASE | change))


def test_pixels_do_not_change_a_size():
    assert key(image=SMALL) == key(image=SMALL + 1)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": ["a", "b"]},
        {"seed": [1, 2]},
        {"height": 16},
        {"height": None},
        {"other": 3},
        {"output_format": "png"},
        {"image": SMALL},
        {"image": b"file"},
    ],
)
def test_everything_else_does(change):
    assert key(**BASE) != key(**(BASE | change))


def test_file_contents_do():
    assert key(image=b"one") != key(image=b"two")


def test_a_size_is_expected_once_it_was_seen_twice():
    memory = OutputSizes()
    memory.learn("k", {"images": LARGE, "seed": np.zeros(1)})
    assert memory.expected("k") == {}
    memory.learn("k", {"images": LARGE, "seed": np.zeros(1)})
    assert memory.expected("k") == {"images": LARGE.nbytes}
    memory.learn("k", {"images": LARGE})
    assert memory.expected("k") == {"images": LARGE.nbytes}


def test_a_size_that_varies_or_failed_is_never_expected_again():
    memory = OutputSizes()
    memory.learn("k", {"images": LARGE})
    memory.learn("k", {"images": LARGE[:, :-1]})
    memory.learn("k", {"images": LARGE})
    assert memory.expected("k") == {}
    memory.learn("j", {"images": LARGE})
    memory.forget("j")
    memory.learn("j", {"images": LARGE})
    memory.learn("j", {"images": LARGE})
    assert memory.expected("j") == {}


def test_the_memory_is_bounded():
    memory = OutputSizes()
    for number in range(MAX_REMEMBERED + 10):
        memory.learn(number, {"images": LARGE})
        memory.learn(number, {"images": LARGE})
    assert memory.expected(0) == {}
    assert memory.expected(MAX_REMEMBERED + 9)


def test_only_large_tensors_are_placed():
    assert plan_region(ENTRY, {"image": SMALL}, {}, None) is None
    plan = plan_region(ENTRY, {"image": LARGE}, {"images": 5_000_000}, None)
    assert set(plan.inputs) == {"image"}
    assert plan.outputs["images"].byte_size == 5_000_000
    assert plan.outputs["images"].offset >= LARGE.nbytes
    assert plan.byte_size >= LARGE.nbytes + 5_000_000


def test_the_caller_may_know_the_size():
    plan = plan_region(ENTRY, {}, {}, 123)
    assert plan.outputs["images"].byte_size == 123


def test_slots_do_not_overlap():
    slots, end = place({"a": 1, "b": 64, "c": 65})
    assert [slot.offset for slot in slots.values()] == [0, 64, 128]
    assert end == 256


def test_a_region_holds_tensors_and_leaves_nothing():
    region = Region(LARGE_BYTES)
    path = SHARED_MEMORY_DIR / region.name
    assert path.stat().st_size == LARGE_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    region.unlink()
    region.unlink()
    assert not path.exists()
    slots, _ = place({"a": 64, "b": 80})
    values = np.arange(10, dtype=np.int64)
    region.write(slots["b"], values)
    read = region.array(slots["b"], np.int64, (10,))
    del region
    assert np.array_equal(read, values)


def test_a_region_that_does_not_fit_leaves_nothing():
    before = os.listdir(SHARED_MEMORY_DIR)
    with pytest.raises(OSError, match=r"space|large"):
        Region(1 << 50)
    assert set(os.listdir(SHARED_MEMORY_DIR)) <= set(before)


@pytest.mark.parametrize(
    "url", ["localhost:8001", "127.0.0.1:8001", "[::1]:8001", "localhost:80/p"]
)
def test_local(url):
    assert is_local(url)


@pytest.mark.parametrize("url", ["example.com:8001", "10.0.0.1:8001", "localhost.evil:80"])
def test_not_local(url):
    assert not is_local(url)


def test_addresses():
    assert read_address("h:1", "grpc", False, None, None).url == "h:1"
    secure = read_address("https://h:1/path/", "http", False, None, {"Authorization": "x"})
    assert (secure.url, secure.ssl) == ("h:1/path", True)
    assert secure.metadata == (("authorization", "x"),)
    for url, protocol in (("http://h:1", "grpc"), ("h:1", "ftp")):
        with pytest.raises(InvalidRequest):
            read_address(url, protocol, False, None, None)
