# SPDX-License-Identifier: Apache-2.0
"""The text of config.pbtxt, read so that what was written can be told from a default.

Triton's schema tells neither whether a number was left out or written as 0, nor that a key of a map
stands twice.
"""

import functools
import importlib.util
import re
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any

from triton_diffusers.errors import ConfigError, near_miss

FIELDS = (
    *("name", "backend", "max_batch_size", "input", "output", "data_type", "dims", "optional"),
    *("instance_group", "count", "kind", "gpus", "model_transaction_policy", "decoupled"),
    *("parameters", "key", "value", "string_value"),
)
"""What a misspelt field may mean: those that an entry has."""


def written(text: str) -> dict[str, Any]:
    """Return what config.pbtxt says, defaults that were written included and no others.

    Repeated fields are lists, also those that Triton's schema makes maps: a key may stand twice.
    Raises ConfigError where the text cannot be read.
    """
    from google.protobuf import text_format

    try:
        return _as_dict(text_format.Parse(text, _message_class()()))
    except text_format.ParseError as error:
        raise ConfigError(f"config.pbtxt cannot be read: {error}{way_out(error)}") from None


def way_out(error: Exception) -> str:
    """Say what to do about an error of protobuf's parser."""
    if unknown := re.search(r'has no field named "([^"]+)"', str(error)):
        return near_miss(unknown[1], FIELDS) or " Remove it."
    if twice := re.search(r'should not have multiple "([^"]+)" fields', str(error)):
        return f" Keep one {twice[1]}."
    line = getattr(error, "GetLine", int)()
    return f"; correct line {line}" if line else ""


@functools.cache
def _message_class() -> Any:
    """Return Triton's ModelConfig with a schema in which what is not written is not there."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto.FromString(_schema())
    file.name, file.package, file.syntax = f"as_written/{file.name}", "as_written", "proto2"
    _make_explicit(file.message_type)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName("as_written.ModelConfig")
    return message_factory.GetMessageClass(found)


def _schema() -> bytes:
    """Return Triton's schema, read from tritonclient without gRPC, whose import takes longer."""
    spec = importlib.util.find_spec("tritonclient")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise ModuleNotFoundError("No module named 'tritonclient'", name="tritonclient")
    path = Path(folders[0]) / "grpc" / "model_config_pb2.py"
    found = importlib.util.spec_from_file_location("triton_diffusers_model_config_pb2", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return bytes(module.DESCRIPTOR.serialized_pb)


def _make_explicit(messages: Any) -> None:
    for message in messages:
        message.options.ClearField("map_entry")
        for field in message.field:
            package, dot, name = field.type_name.partition(".inference.")
            if dot and not package:
                field.type_name = f".as_written.{name}"
        _make_explicit(message.nested_type)


def _as_dict(message: Any) -> dict[str, Any]:
    def plain(field: Any, value: Any) -> Any:
        if field.message_type is not None:
            return _as_dict(value)
        return field.enum_type.values_by_number[value].name if field.enum_type else value

    return {
        field.name: [plain(field, v) for v in value]
        if isinstance(value, MutableSequence)
        else plain(field, value)
        for field, value in message.ListFields()
    }
