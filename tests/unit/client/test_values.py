# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.client.values import encode_value
from triton_diffusers.contract import WIRE, Kind, Tensor


def tensor(kind: Kind) -> Tensor:
    return Tensor("x", *WIRE[kind])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Kind.INT, 7, [7]),
        (Kind.INT, -(2**63), [-(2**63)]),
        (Kind.INT, np.int32(7), [7]),
        (Kind.INT, np.uint64(7), [7]),
        (Kind.INT, np.array(7), [7]),
        (Kind.INT, 20.0, [20]),
        (Kind.INT, [7], [7]),
        (Kind.INTS, 7, [7]),
        (Kind.INTS, [1, 2**63 - 1], [1, 2**63 - 1]),
        (Kind.INTS, (999, 500, 0), [999, 500, 0]),
        (Kind.INTS, range(3), [0, 1, 2]),
        (Kind.INTS, np.arange(3, dtype=np.int16), [0, 1, 2]),
        (Kind.INTS, [], []),
        (Kind.FLOAT, 0.1, [0.1]),
        (Kind.FLOAT, 3, [3.0]),
        (Kind.FLOAT, 5e-324, [5e-324]),
        (Kind.FLOAT, math.inf, [math.inf]),
        (Kind.FLOAT, np.float32(0.1), [float(np.float32(0.1))]),
        (Kind.FLOAT, np.float64(0.1), [0.1]),
        (Kind.FLOATS, [1, 0.5, np.float16(0.25)], [1.0, 0.5, 0.25]),
        (Kind.BOOL, True, [True]),
        (Kind.BOOL, np.bool_(False), [False]),
        (Kind.BOOLS, [True, False], [True, False]),
        (Kind.STRING, "", [b""]),
        (Kind.TEXT, "h\u00e9llo \U0001f600", ["h\u00e9llo \U0001f600".encode()]),
        (Kind.TEXT, ["a", "bc\0"], [b"a", b"bc\0"]),
        (Kind.TEXT, ("a",), [b"a"]),
        (Kind.TEXT, np.array(["a", "b"]), [b"a", b"b"]),
        (Kind.TEXT, [], []),
    ],
)
def test_values_arrive_exactly(kind, value, expected):
    array = encode_value(tensor(kind), value)
    assert array.tolist() == expected
    assert array.ndim == 1
    wanted = {"TYPE_INT64": "int64", "TYPE_FP64": "float64", "TYPE_BOOL": "bool"}
    assert array.dtype == wanted.get(WIRE[kind][0], "object")


def test_nan_is_left_to_the_server():
    assert math.isnan(encode_value(tensor(Kind.FLOAT), math.nan)[0])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.INT, 2.5),
        (Kind.INT, True),
        (Kind.INT, np.bool_(True)),
        (Kind.INT, "7"),
        (Kind.INT, math.nan),
        (Kind.INT, math.inf),
        (Kind.INT, 2**63),
        (Kind.INT, np.uint64(2**63)),
        (Kind.INT, 1e300),
        (Kind.INT, [1, 2]),
        (Kind.INT, []),
        (Kind.INT, {"a": 1}),
        (Kind.INT, object()),
        (Kind.INTS, [1, None]),
        (Kind.INTS, [[1, 2], [3, 4]]),
        (Kind.INTS, np.zeros((2, 2), np.int64)),
        (Kind.FLOAT, True),
        (Kind.FLOAT, "0.1"),
        (Kind.FLOAT, 1j),
        (Kind.FLOAT, 2**53 + 1),
        (Kind.FLOAT, 10**400),
        (Kind.FLOATS, [0.1, False]),
        (Kind.BOOL, 1),
        (Kind.BOOL, "true"),
        (Kind.BOOL, 0.0),
        (Kind.STRING, b"bytes"),
        (Kind.STRING, 5),
        (Kind.STRING, ["a", "b"]),
        (Kind.TEXT, ["a", None]),
        (Kind.TEXT, [["a"], ["b"]]),
        (Kind.TEXT, "\ud800"),
    ],
)
def test_what_a_dtype_does_not_hold_is_refused_by_name(kind, value):
    with pytest.raises(InvalidRequest, match="input 'x'") as caught:
        encode_value(tensor(kind), value)
    assert len(str(caught.value)) < 300


def test_a_long_prompt_is_not_repeated_in_a_message():
    with pytest.raises(InvalidRequest) as caught:
        encode_value(tensor(Kind.INT), "secret " * 1000)
    assert len(str(caught.value)) < 200


def test_inputs_of_higher_rank_take_arrays_of_that_rank():
    latents = Tensor("latents", "TYPE_FP32", (-1, -1, -1))
    assert encode_value(latents, np.zeros((1, 2, 3), np.float32)).shape == (1, 2, 3)
    for wrong in (np.zeros((2, 3), np.float32), np.zeros((1, 2, 3), np.complex64), 1.0):
        with pytest.raises(InvalidRequest, match="latents"):
            encode_value(latents, wrong)


def test_a_data_type_that_cannot_travel_is_refused():
    with pytest.raises(InvalidRequest, match="TYPE_BF16"):
        encode_value(Tensor("x", "TYPE_BF16", (1,)), 1.0)
