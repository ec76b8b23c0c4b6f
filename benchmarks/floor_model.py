# SPDX-License-Identifier: Apache-2.0
"""The trivial Triton model that `overhead` measures against: it returns a ready array."""

import io
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Returns arrays that were stored beside it, as they are or as MP4."""

    def initialize(self, args):
        folder = Path(args["model_repository"])
        self.arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
        self.fps = json.loads((folder / "fps.json").read_text())

    def execute(self, requests):
        responses = []
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "what").as_numpy()[0].decode()
            as_mp4 = pb_utils.get_input_tensor_by_name(request, "as_mp4")
            array = self.arrays[name]
            if as_mp4 is not None and as_mp4.as_numpy()[0]:
                tensor = pb_utils.Tensor("media", np.array([encode(array[0], self.fps)], object))
            else:
                tensor = pb_utils.Tensor(name, array)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses


def encode(frames, fps):
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()
