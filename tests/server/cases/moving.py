# SPDX-License-Identifier: Apache-2.0
"""Video and sound files that are none, broken, too long or bombs; numbers in sound."""

from __future__ import annotations

import numpy as np

from tests.server import broken_files as files
from tests.server.broken_files import truncated
from tests.server.cases.case import Case


def _video(name: str, content: object, *words: str) -> Case:
    inputs = {"prompt": "a kite", "video_bytes": content}
    return Case(f"video-{name}", "clips", inputs, ("video_bytes", *words))


def _sound(name: str, content: object, *words: str) -> Case:
    inputs = {"prompt": "rain", "initial_audio_waveforms_bytes": content}
    return Case(f"sound-{name}", "sounds", inputs, ("initial_audio_waveforms_bytes", *words))


def _samples(name: str, samples: np.ndarray, *words: str) -> Case:
    rate = {"initial_audio_sampling_rate": 800}
    inputs = {"prompt": "rain", "initial_audio_waveforms": samples} | rate
    return Case(f"samples-{name}", "sounds", inputs, ("initial_audio_waveforms", *words))


CASES = (
    _video("mp4-truncated", lambda: truncated(files.video_file(5)), "MP4 or GIF"),
    _video("mp4-scrambled", lambda: files.scrambled(files.video_file(5)), "MP4 or GIF"),
    _video("mp4-head-only", lambda: files.video_file(5)[:32], "MP4 or GIF"),
    _video("gif-truncated", lambda: truncated(files.video_file(5, "gif"), 0.1), "MP4 or GIF"),
    _video("gif-bomb", files.gif_bomb, "max_input_pixels"),
    _video("gif-that-grows", files.growing_gif, "max_input_pixels"),
    _video("mp4-too-many-frames", lambda: files.video_file(300), "8 frames", "max_frames"),
    _video("gif-too-many-frames", lambda: files.video_file(50, "gif"), "8 frames", "max_frames"),
    _video("wav", lambda: files.sound_file("wav"), "no video"),
    _video("zeros", bytes(500), "MP4 or GIF"),
    _video("words", "a kite over a field", "base64"),
    _video("empty", b"", "empty"),
    _video("playlist", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "MP4 or GIF"),
    _video("concat", b"ffconcat version 1.0\nfile /etc/passwd\n", "MP4 or GIF"),
    _video("two", lambda: [files.video_file(2), files.video_file(2)], "no image"),
    Case(
        "video-tensor-too-many-frames",
        "clips",
        {"prompt": "a kite", "video": np.zeros((9, 16, 16, 3), np.uint8)},
        ("video", "max_frames"),
    ),
    _sound("wav-truncated", lambda: files.sound_file("wav")[:30], "WAV or FLAC"),
    _sound("flac-truncated", lambda: files.sound_file("flac")[:60], "WAV or FLAC"),
    _sound("flac-scrambled", lambda: files.scrambled(files.sound_file("flac")), "WAV or FLAC"),
    _sound("flac-bomb", files.flac_bomb, "samples"),
    _sound("flac-silence", lambda: files.silence(6 * 3600, 8000), "samples"),
    _sound("picture", lambda: files.image_file("png"), "WAV or FLAC"),
    _sound("words", "rain on a tin roof", "base64"),
    _sound("empty", b"", "empty"),
    _sound("two", lambda: [files.sound_file("wav")] * 2, "one"),
    _samples("nan", np.array([[0.0, np.nan]], np.float32), "finite"),
    _samples("infinite", np.array([[0.0, np.inf]], np.float32), "finite"),
    _samples("none", np.zeros((1, 0), np.float32), "empty"),
    _samples("no-channel", np.zeros((0, 100), np.float32), "empty"),
    _samples("hundred-channels", np.zeros((100, 800), np.float32), "channels"),
)
