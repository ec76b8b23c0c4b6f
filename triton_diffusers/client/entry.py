# SPDX-License-Identifier: Apache-2.0
"""What the server says about an entry: its inputs, its outputs, and whether it streams."""

from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import model_config_pb2

from triton_diffusers.contract import BYTES_SUFFIX, Tensor


@dataclass(frozen=True)
class ServedEntry:
    """A model on the server. `decoupled`: it sends its progress before the result."""

    name: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    decoupled: bool

    def is_media(self, name: str) -> bool:
        """Tell whether `name` is the tensor form of a media input: `name_bytes` is beside it."""
        return name in self.inputs and name + BYTES_SUFFIX in self.inputs

    def is_file(self, name: str) -> bool:
        """Tell whether `name` is the file form (`x_bytes`) of a media input."""
        return name.endswith(BYTES_SUFFIX) and self.is_media(name.removesuffix(BYTES_SUFFIX))


def read_entry(config: Any) -> ServedEntry:
    """Read a `ModelConfig` message."""
    return ServedEntry(
        name=config.name,
        inputs={i.name: _read_tensor(i, i.optional) for i in config.input},
        outputs={o.name: _read_tensor(o, False) for o in config.output},
        decoupled=config.model_transaction_policy.decoupled,
    )


def _read_tensor(listed: Any, optional: bool) -> Tensor:
    data_type = model_config_pb2.DataType.Name(listed.data_type)
    return Tensor(listed.name, data_type, tuple(listed.dims), optional)
