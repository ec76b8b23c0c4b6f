# SPDX-License-Identifier: Apache-2.0
"""A diffusers pipeline on Triton; ../config.pbtxt says which one and how to load it.

TritonPythonModel is what Triton's Python backend runs:
  initialize  loads the pipeline that the `parameters` of config.pbtxt describe;
  execute     checks the requests, runs the pipeline and answers each with tensors;
  finalize    frees the memory when the model is unloaded.
"""

try:
    from triton_diffusers.serving import TritonPythonModel
except ImportError as error:
    raise ImportError(
        f"{error}. This model needs triton-diffusers[runtime] in the Python that tritonserver "
        "uses: pip install 'FOLDER[runtime]', with the folder of its checkout"
    ) from error

__all__ = ["TritonPythonModel"]
