# SPDX-License-Identifier: Apache-2.0
"""Hand edits of config.pbtxt that cannot work: `builder check` and the load refuse each."""

from __future__ import annotations

from dataclasses import dataclass

ETA = '{ name: "eta" data_type: TYPE_FP64 dims: [ 1 ] optional: true }'
SEED_OUT = '{ name: "seed" data_type: TYPE_INT64 dims: [ -1 ] }'
GROUP = "{ count: 1 kind: KIND_AUTO }"
ZERO = "max_batch_size: 0"


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new`; without `old`, `new` is added at the end."""

    name: str
    new: str
    words: tuple[str, ...]
    old: str = ""
    passes: bool = True
    """Whether Triton hands it to the entry, or refuses it itself."""

    def apply(self, text: str) -> str:
        """Return the text of config.pbtxt, edited."""
        if not self.old:
            return f"{text}\n{self.new}\n"
        assert self.old in text
        return text.replace(self.old, self.new, 1)


def _added(name: str, value: str, *words: str, passes: bool = True) -> Edit:
    field = name.partition(":")[0]
    return Edit(name, f"{field} {value}", (f"'{field}'", "remove it", *words), passes=passes)


def _in(what: str, name: str, value: str, *words: str, passes: bool = True) -> Edit:
    """A field put into an input, an output or the instance group."""
    block = {"input": ETA, "output": SEED_OUT, "group": GROUP}[what]
    told = (f"'{name}'", "remove it", *words)
    return Edit(f"{what}-{name}", f"{block[:-1]}{name}{value} }}", told, block, passes)


def _group(name: str, new: str, *words: str, passes: bool = True) -> Edit:
    return Edit(f"group-{name}", f"{{ {new} }}", ("instance_group", *words), GROUP, passes)


def _without(name: str, word: str, *words: str, passes: bool = True) -> Edit:
    return Edit(f"eta-without-{name}", ETA.replace(word, ""), words, ETA, passes)


def _parameter(name: str, text: str, *words: str) -> Edit:
    return Edit(f"parameter-{name}", f"parameters {{ {text} }}", words)


def _set(key: str, value: str, *words: str) -> Edit:
    return _parameter(key, f'key: "{key}" value {{ string_value: "{value}" }}', key, *words)


WARM_UP = '[ { name: "w" batch_size: 1 inputs { key: "seed" value { data_type: TYPE_INT64 dims: [ 1 ] zero_data: true } } } ]'  # noqa: E501
EDITS = (
    _added("response_cache", "{ enable: true }", "empty success"),
    _added("response_cache:off", "{ enable: false }"),
    _added("dynamic_batching", "{ }", "request_batching"),
    _added("dynamic_batching:delay", "{ max_queue_delay_microseconds: 100 }", "max_queue"),
    _added("dynamic_batching:sizes", "{ preferred_batch_size: [ 4 ] }", passes=False),
    _added("dynamic_batching:priorities", "{ priority_levels: 2 default_priority_level: 1 }"),
    _added("sequence_batching", "{ }"),
    _added("sequence_batching:oldest", "{ oldest { max_candidate_sequences: 4 } }", passes=False),
    _added("ensemble_scheduling", '{ step [ { model_name: "x" } ] }', "ensemble", passes=False),
    _added("model_warmup", WARM_UP, "'warmup'", passes=False),
    _added("version_policy:all", "{ all { } }", "one version"),
    _added("version_policy:latest", "{ latest { num_versions: 2 } }"),
    _added("version_policy:specific", "{ specific { versions: [ 1 ] } }"),
    _added("version_policy:other", "{ specific { versions: [ 3 ] } }", passes=False),
    _added("version_policy:default", "{ latest { num_versions: 1 } }"),
    _added("default_model_filename", ': "model.py"', "1/model.py"),
    _added("default_model_filename:other", ': "other.py"', "1/model.py", passes=False),
    _added("cc_model_filenames", '{ key: "8.0" value: "m.py" }'),
    _added("platform", ': "pytorch_libtorch"'),
    _added("runtime", ': "libother.so"', passes=False),
    _added("model_operations", '{ op_library_filename: [ "x.so" ] }'),
    _added("optimization:priority", "{ priority: PRIORITY_MAX }"),
    _added("optimization:graphs", "{ cuda { graphs: true } }", "torch_compile"),
    _added(
        "optimization:accelerator",
        '{ execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" } ] } }',
    ),
    _added("optimization:pinned", "{ input_pinned_memory { enable: false } }"),
    _added("metric_tags", '{ key: "team" value: "art" }', "metrics"),
    _added("model_repository_agents", '{ agents [ { name: "checksum" } ] }', passes=False),
    _added(
        "model_metrics",
        '{ metric_control [ { metric_identifier { family: "f" } } ] }',
        passes=False,
    ),
    _added(
        "batch_input",
        '[ { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "eta" } ]',  # noqa: E501
    ),
    _added(
        "batch_output",
        '[ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "seed" source_input: "eta" } ]',
    ),
    _in("input", "reshape", " { shape: [ 1, 1 ] }", "no batches"),
    _in("input", "allow_ragged_batch", ": true"),
    _in("input", "is_shape_tensor", ": true", passes=False),
    _in("input", "is_non_linear_format_io", ": true", passes=False),
    _in("input", "format", ": FORMAT_NHWC", passes=False),
    _in("output", "reshape", " { shape: [ -1 ] }"),
    _in("output", "label_filename", ': "labels.txt"', passes=False),
    _in("output", "is_shape_tensor", ": true", passes=False),
    _in("group", "rate_limiter", ' { resources [ { name: "GPU" global: true count: 1 } ] }'),
    _in("group", "host_policy", ': "node0"'),
    _in("group", "passive", ": true"),
    _in("group", "profile", ': [ "0" ]', passes=False),
    _in("group", "secondary_devices", " [ { device_id: 0 } ]"),
    _group("count-0", "count: 0 kind: KIND_CPU", "count is 0", "1 or more"),
    _group("count-below-0", "count: -2 kind: KIND_CPU", "count is -2", "1 or more"),
    _group("gpus-of-cpu", "kind: KIND_CPU gpus: [ 0 ]", "no gpus", passes=False),
    _group("gpu", "count: 1 kind: KIND_GPU", "this machine has no GPU", "KIND_AUTO", passes=False),
    _group("gpu-7", "kind: KIND_AUTO gpus: [ 7 ]", "GPU", "7", passes=False),
    _group("gpu-twice", "kind: KIND_GPU gpus: [ 0, 0 ]", "'0' is given 2 times", passes=False),
    _group("gpu-below-0", "kind: KIND_GPU gpus: [ -1 ]", "from 0", passes=False),
    Edit("input-twice", f"{ETA},\n  {ETA}", ("'eta' is given 2 times", "keep one"), ETA),
    Edit("output-twice", f"{SEED_OUT}, {SEED_OUT}", ("'seed' is given 2 times",), SEED_OUT),
    Edit("backend-twice", 'backend: "python"', ("backend", "Keep one"), passes=False),
    Edit("batch-size-twice", f"{ZERO}\n{ZERO}", ("max_batch_size", "Keep one"), ZERO),
    _without("optional", " optional: true", "eta", "optional", "add-model"),
    _without("type", "data_type: TYPE_FP64 ", "eta", "no data_type", "add it", passes=False),
    _without("dims", "dims: [ 1 ] ", "eta", "no dims", "add it", passes=False),
    _without("name", 'name: "eta" ', "no name", "add it", passes=False),
    Edit("optional-false", ETA.replace("true", "false"), ("eta", "optional"), ETA),
    Edit("eta-removed", "", ("lacks eta", "add-model"), ETA + ","),
    Edit("eta-renamed", ETA.replace("eta", "etta"), ("lacks eta", "has etta"), ETA),
    Edit("eta-of-other-type", ETA.replace("64", "32"), ("TYPE_FP32", "TYPE_FP64"), ETA),
    Edit("eta-of-other-rank", ETA.replace("[ 1 ]", "[ 1, 1 ]"), ("eta", "[1, 1]"), ETA),
    Edit("seed-of-other-type", SEED_OUT.replace("64", "32"), ("seed", "TYPE_INT32"), SEED_OUT),
    Edit("batches", "max_batch_size: 8", ("max_batch_size is 8", "must be 0"), ZERO),
    Edit("decoupled", "model_transaction_policy { decoupled: true }", ("progress", "add-model")),
    Edit("no-backend", "", ("backend is ''", "set it to"), 'backend: "python"'),
    Edit("other-backend", '"onnxruntime"', ("onnxruntime", "set it"), '"python"', False),
    Edit("unknown-field", "max_batch_sise: 0", ("Did you mean 'max_batch_size'",), ZERO, False),
    Edit("unclosed", "input [", ("not a valid", "correct line"), passes=False),
    Edit("wrong-enum", "{ kind: KIND_NPU }", ("not a valid", "KIND_NPU"), GROUP, False),
    _parameter("twice", 'key: "model" value { string_value: "x" }', "'model' is given 2 times"),
    _parameter("no-key", 'value { string_value: "x" }', "no key", "remove it"),
    _parameter("no-value", 'key: "variant"', "variant", "no value", "string_value"),
    _set("dtipe", "float32", "Did you mean 'dtype'"),
    _set("EXECUTION_ENV_PATH", "/opt/env", "Accepted"),
    _set("max_queue", "-1", "below 1"),
    _set("dtype", "fp61", "not one of"),
)
