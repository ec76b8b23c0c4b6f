# SPDX-License-Identifier: Apache-2.0
"""/v1/videos against tiny video models on a real server."""

from __future__ import annotations

import base64
import io
import json
import time
from typing import Any

import av
import httpx
import openai
import pytest
from PIL import Image

from tests.server.gateway.pictures import error_in
from tests.server.tiny_entries import TinyServer
from tests.tiny.media import draw_clip, draw_picture
from triton_diffusers.media.decode import read_frames
from triton_diffusers.media.encode import encode_video

KITE = {
    "prompt": "a kite over a field",
    "num_inference_steps": 2,
    "num_frames": 5,
    "seed": 7,
}
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def url(tiny_gateway: str, tiny_server: TinyServer) -> str:
    for entry in ("wan", "wan-streamed", "wan-starts", "wan-set", "clips", "ltx", "ltx2", "sana"):
        tiny_server.load(entry)
    return tiny_gateway


def create(url: str, model: str = "wan", **body: Any) -> httpx.Response:
    fields = {**KITE, "size": "32x16", **body, "model": model}
    sent = {name: value for name, value in fields.items() if value is not None}
    text = json.dumps(sent)  # which escapes what httpx does not
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{url}/v1/videos", content=text, headers=headers, timeout=TIMEOUT_S)


def wait(url: str, created: httpx.Response, status: str = "completed") -> dict[str, Any]:
    """Return the job when it has ended, as `status` says."""
    assert created.status_code == 200, created.text
    id = created.json()["id"]
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        job: dict[str, Any] = httpx.get(f"{url}/v1/videos/{id}").json()
        if job["status"] not in ("queued", "in_progress"):
            assert job["status"] == status, job
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def content(url: str, job: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.get(f"{url}/v1/videos/{job['id']}/content", headers=headers, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("file_format", "kind"), [("mp4", "video/mp4"), ("gif", "image/gif"), (None, "video/mp4")]
)
def test_a_job_makes_the_video_that_the_model_makes_without_the_gateway(
    url: str, tiny_server: TinyServer, file_format: str | None, kind: str
) -> None:
    created = create(url, output_format=file_format)
    asked = {**KITE, "width": 32, "height": 16, "output_format": file_format or "mp4"}
    expected = tiny_server.ask("wan", **asked)
    job = wait(url, created)
    assert (job["progress"], job["media_type"]) == (100, kind)
    assert (job["size"], job["seed"], job["error"]) == ("32x16", 7, None)
    assert float(job["seconds"]) == pytest.approx(5 / 16, rel=0.05)
    assert job["created_at"] <= job["completed_at"] < job["expires_at"]
    video = content(url, job)
    assert video.headers["content-type"] == kind
    assert video.content == expected.media[0]
    assert len(read_frames(video.content)) == 5


def test_the_answer_to_a_new_job_is_openais_video_object(url: str) -> None:
    created = create(url, seed=None)
    job = created.json()
    assert job["id"].startswith("video_")
    told = {name: job[name] for name in ("object", "model", "prompt", "size", "status")}
    assert told == {
        "object": "video",
        "model": "wan",
        "prompt": KITE["prompt"],
        "size": "32x16",
        "status": "queued",
    }
    assert 0 <= job["seed"] < 2**32
    again = wait(url, create(url, seed=job["seed"]))
    assert content(url, wait(url, created)).content == content(url, again).content


def test_seconds_become_frames_by_the_rate_that_the_server_plays_at(url: str) -> None:
    job = wait(url, create(url, num_frames=None, seconds="0.3125"))
    assert job["notes"][0] == "seconds: 0.3125 at 16 frames a second, sent as num_frames=5"
    assert job["seconds"] == "0.3125"
    job = wait(url, create(url, num_frames=None, seconds=0.5, fps=10))
    assert job["notes"][0] == "seconds: 0.5 at 10 frames a second, sent as num_frames=5"
    assert job["seconds"] == "0.5"


def test_seconds_become_frames_by_the_pipelines_own_rate(url: str) -> None:
    size = {"size": "64x32", "num_frames": None}
    job = wait(url, create(url, "ltx", seconds=0.36, **size))
    assert job["notes"][0] == "seconds: 0.36 at 25 frames a second, sent as num_frames=9"
    assert job["seconds"] == "0.36"
    job = wait(url, create(url, "ltx", seconds=0.45, frame_rate=20, **size))
    assert job["notes"][0].endswith("sent as num_frames=9")
    assert job["seconds"] == "0.45"


def test_seconds_for_a_model_that_makes_one_length_are_refused(url: str) -> None:
    refused = create(url, "clips", num_frames=None, seconds=1)
    assert refused.status_code == 400
    assert "makes videos of one length" in refused.json()["error"]["message"]


def test_a_length_that_the_model_rounds_is_told(url: str) -> None:
    job = wait(url, create(url, num_frames=7))
    made = len(read_frames(content(url, job).content))
    assert made != 7
    assert f"num_frames: 7 sent, {made} made" in job["notes"]


@pytest.mark.parametrize("as_form", [False, True])
@pytest.mark.parametrize("field", ["input_reference", "image_reference", "image"])
def test_a_picture_to_start_from_reaches_the_model(
    url: str, tiny_server: TinyServer, field: str, as_form: bool
) -> None:
    file = png(draw_picture(23, 32, 16))
    asked = {**KITE, "width": 32, "height": 16}
    expected = tiny_server.ask("wan-starts", **asked, image=file, output_format="mp4")
    if as_form:
        fields = {name: str(value) for name, value in asked.items()}
        created = httpx.post(
            f"{url}/v1/videos",
            data={**fields, "model": "wan-starts"},
            files={field: ("start.png", file, "image/png")},
        )
    else:
        value: Any = f"data:image/png;base64,{base64.b64encode(file).decode()}"
        value = {"image_url": value} if field == "image_reference" else value
        created = create(url, "wan-starts", **{field: value})
    assert content(url, wait(url, created)).content == expected.media[0]


def test_a_video_to_start_from_reaches_the_model(url: str, tiny_server: TinyServer) -> None:
    import numpy as np

    frames = np.stack([np.asarray(frame.convert("RGB")) for frame in draw_clip(5, 24, 32, 16)])
    file = encode_video(frames, "mp4", 16)
    asked = {"prompt": "a kite", "seed": 7, "num_inference_steps": 4, "strength": 0.6}
    asked |= {"width": 32, "height": 16}
    expected = tiny_server.ask("clips", **asked, video=file, output_format="mp4")
    created = httpx.post(
        f"{url}/v1/videos",
        data={"model": "clips", **{name: str(value) for name, value in asked.items()}},
        files={"input_reference": ("start.mp4", file, "video/mp4")},
    )
    assert content(url, wait(url, created)).content == expected.media[0]
    picture = base64.b64encode(png(draw_picture(23, 32, 16))).decode()
    refused = create(url, "clips", num_frames=None, input_reference=picture)
    assert refused.status_code == 400
    assert "takes no image to start from" in refused.json()["error"]["message"]


def test_what_vllm_omnis_example_sends(url: str) -> None:
    fields = {
        "model": "wan-set",
        "prompt": "A cinematic shot of a mountain lake",
        "width": "32",
        "height": "16",
        "num_frames": "5",
        "fps": "16",
        "negative_prompt": "blurry",
        "num_inference_steps": "2",
        "guidance_scale": "4.0",
        "guidance_scale_2": "3.0",
        "boundary_ratio": "0.3",
        "flow_shift": "5.5",
        "seed": "42",
        "extra_params": json.dumps({"max_sequence_length": 32}),
    }
    job = wait(url, httpx.post(f"{url}/v1/videos", files={n: (None, v) for n, v in fields.items()}))
    assert (job["seed"], job["size"]) == (42, "32x16")


@pytest.mark.parametrize(
    ("body", "status", "param", "text"),
    [
        ({"model": "wann"}, 404, "model", "Did you mean 'wan'?"),
        ({"model": "pictures"}, 400, "model", "makes image, not video"),
        ({"model": "wan-starts", "prompt": [1]}, 400, "prompt", "string"),
        ({"seconds": 2}, 400, "seconds", "disagree"),
        ({"seconds": -1, "num_frames": None}, 400, "seconds", "greater than 0"),
        ({"seconds": "long", "num_frames": None}, 400, "seconds", "number"),
        ({"num_frames": 2.5}, 400, "num_frames", "integer"),
        ({"size": "60"}, 400, "size", "WIDTHxHEIGHT"),
        ({"width": 64}, 400, "size", "disagree"),
        ({"n": 2}, 400, "n", "one video"),
        ({"extra_params": {"seconds": "x"}, "num_frames": None}, 400, "seconds", "number"),
        ({"extra_params": {"output_format": "webm"}}, 400, "output_format", "'mp4' or 'gif'"),
        ({"prompt": "\ud800"}, 400, "prompt", "Unicode"),
        ({"output_format": "webm"}, 400, "output_format", "'mp4' or 'gif'"),
        ({"boundary_ratio": 0.5}, 400, "boundary_ratio", "cannot change"),
        ({"shared_memory": True}, 400, "shared_memory", "Accepted:"),
        ({"max_sequence_length": "many"}, 400, "max_sequence_length", "integer"),
        ({"guidance_scale": [1, 2]}, 400, "guidance_scale", "number"),
        ({"input_reference": "iVBORw0KGgo="}, 400, "input_reference", "takes no"),
        ({"model": "wan-starts", "image": "/etc/passwd"}, 400, "image", "not accepted"),
        ({"model": "wan-starts", "input_reference": "/etc/hostname"}, 400, None, "not accepted"),
        (
            {"model": "wan-starts", "extra_params": {"image": "/etc/passwd"}},
            400,
            "image",
            "not accepted",
        ),
        (
            {"model": "wan-starts", "input_reference": {"file_id": "file-1"}},
            400,
            "input_reference",
            "file_id",
        ),
    ],
)
def test_what_the_model_cannot_take_is_refused_at_once(
    url: str,
    tiny_server: TinyServer,
    body: dict[str, Any],
    status: int,
    param: str | None,
    text: str,
) -> None:
    tiny_server.load("pictures")
    refused = create(url, **body)
    assert refused.status_code == status, refused.text
    error = refused.json()["error"]
    assert text in error["message"]
    assert param in (error["param"], None)


def test_a_length_that_no_server_makes_fails(url: str) -> None:
    job = wait(url, create(url, num_frames=None, seconds=1e308, fps=1e308), "failed")
    assert "num_frames" in job["error"]["message"] or "fps" in job["error"]["message"]


def test_a_size_that_the_model_does_not_make_is_refused_with_the_nearest(url: str) -> None:
    job = wait(url, create(url, size="40x24"), "failed")
    assert "Nearest size: " in job["error"]["message"]


def test_parts_of_a_video(url: str) -> None:
    job = wait(url, create(url))
    whole = content(url, job)
    assert whole.headers["accept-ranges"] == "bytes"
    file, size = whole.content, len(whole.content)
    for asked, start, end in (
        ("bytes=0-99", 0, 100),
        ("bytes=100-", 100, size),
        ("bytes=-50", size - 50, size),
        (f"bytes=10-{size * 2}", 10, size),
    ):
        part = content(url, job, Range=asked)
        assert part.status_code == 206
        assert part.content == file[start:end]
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
    for asked in ("bytes=0-1,5-6", "bytes=9-3", "bytes=-", "pages=1-2"):
        assert content(url, job, Range=asked).content == file
    for asked in (f"bytes={size}-", "bytes=-0"):
        missing = content(url, job, Range=asked)
        assert missing.status_code == 416
        assert missing.headers["content-range"] == f"bytes */{size}"
    tag = whole.headers["etag"]
    assert content(url, job, **{"Range": "bytes=0-9", "If-Range": tag}).status_code == 206
    assert content(url, job, **{"Range": "bytes=0-9", "If-Range": '"x"'}).content == file
    thumbnail = httpx.get(f"{url}/v1/videos/{job['id']}/content", params={"variant": "thumbnail"})
    assert thumbnail.status_code == 400


def test_content_of_a_video_that_is_not_ready(url: str) -> None:
    created = create(url, "wan-streamed", num_inference_steps=20_000)
    early = content(url, created.json())
    assert early.status_code == 409
    assert early.json()["error"]["code"] == "video_not_ready"
    httpx.delete(f"{url}/v1/videos/{created.json()['id']}")
    assert content(url, created.json()).status_code == 404


def test_jobs_are_listed_page_by_page(url: str) -> None:
    made = [wait(url, create(url, seed=seed))["id"] for seed in range(3)]
    page = httpx.get(f"{url}/v1/videos", params={"limit": 2}).json()
    assert page["object"] == "list"
    assert [job["id"] for job in page["data"]] == [made[2], made[1]]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[2], made[1], True)
    page = httpx.get(f"{url}/v1/videos", params={"limit": 1, "after": made[1]}).json()
    assert [job["id"] for job in page["data"]] == [made[0]]
    oldest = httpx.get(f"{url}/v1/videos", params={"order": "asc", "limit": 100}).json()["data"]
    assert [job["id"] for job in oldest[-3:]] == made
    for wrong in ({"after": "video_0"}, {"limit": 0}, {"limit": 101}, {"order": "up"}):
        assert httpx.get(f"{url}/v1/videos", params=wrong).status_code == 400


def test_the_video_comes_in_the_answer_of_sync(url: str, tiny_server: TinyServer) -> None:
    asked = {**KITE, "width": 32, "height": 16}
    expected = tiny_server.ask("wan", **asked, output_format="mp4")
    video = httpx.post(f"{url}/v1/videos/sync", json={**asked, "model": "wan"}, timeout=TIMEOUT_S)
    assert video.status_code == 200, video.text
    assert video.headers["content-type"] == "video/mp4"
    assert video.content == expected.media[0]
    assert (video.headers["x-seed"], video.headers["x-model"]) == ("7", "wan")
    assert (video.headers["x-size"], video.headers["x-seconds"]) == ("32x16", "0.3125")
    assert isinstance(json.loads(video.headers["x-notes"]), list)
    refused = httpx.post(f"{url}/v1/videos/sync", json={**asked, "model": "wan", "stepz": 2})
    assert refused.status_code == 400
    refused = httpx.post(f"{url}/v1/videos/sync", json={**asked, "model": "wan", "size": "40x24"})
    assert refused.status_code == 400


def test_leaving_sync_stops_the_model(url: str) -> None:
    long = {**KITE, "size": "32x16", "model": "wan-streamed", "num_inference_steps": 20_000}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/videos/sync", json=long, timeout=1.5)
    wait(url, create(url, "wan-streamed"))


def test_the_openai_package(url: str, tiny_server: TinyServer) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    extra = {"num_inference_steps": 2, "seed": 7, "fps": 16}
    start = png(draw_picture(23, 32, 16))
    video = client.videos.create_and_poll(
        model="wan-starts",
        prompt="a kite over a field",
        seconds="0.3125",
        size="32x16",
        input_reference=("start.png", start, "image/png"),
        extra_body=extra,
        poll_interval_ms=100,
        timeout=TIMEOUT_S,
    )
    assert video.status == "completed", video
    asked = {**KITE, "width": 32, "height": 16, "image": start}
    expected = tiny_server.ask("wan-starts", **asked, fps=16.0, output_format="mp4")
    assert client.videos.download_content(video.id).read() == expected.media[0]
    assert client.videos.retrieve(video.id).id == video.id
    assert video.id in [each.id for each in client.videos.list(limit=2)]
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()


def test_a_model_that_makes_sound_with_its_video(url: str, tiny_server: TinyServer) -> None:
    made: dict[str, Any] = {**KITE, "width": 64, "height": 32, "frame_rate": 25.0}
    made |= {"spatio_temporal_guidance_blocks": [0], "use_cross_timestep": False}
    expected = tiny_server.ask("ltx2", **made, output_format="mp4")
    job = wait(url, create(url, "ltx2", **made, size=None))
    assert not [note for note in job["notes"] if "sound" in note]
    file = content(url, job).content
    assert file == expected.media[0]
    with av.open(io.BytesIO(file)) as container:
        (stream,) = container.streams.audio
        assert (stream.channels, stream.rate) == (2, 16000)
        assert container.streams.video[0].average_rate == 25
    as_gif = wait(url, create(url, "ltx2", **made, size=None, output_format="gif"))
    assert "the model also made sound, which the video's file does not hold" in as_gif["notes"]


def test_fps_is_the_rate_that_the_model_is_told(url: str) -> None:
    size = {"size": "64x32", "num_frames": None}
    job = wait(url, create(url, "ltx", seconds=0.45, fps=20, **size))
    assert job["notes"][:2] == [
        "fps: sent as frame_rate=20 too, which the model is told",
        "seconds: 0.45 at 20 frames a second, sent as num_frames=9",
    ]
    assert job["seconds"] == "0.45"


@pytest.mark.parametrize("path", ["videos", "videos/sync"])
@pytest.mark.parametrize(
    ("wrong", "param", "text"),
    [
        ({"foo": 1}, "foo", "Accepted:"),
        ({"num_frame": 9}, "num_frame", "Did you mean 'num_frames'?"),
        ({"prompt": None}, "prompt", "prompt is missing: 'wan' makes videos from a text"),
    ],
)
def test_what_the_model_does_not_know_is_refused_before_it_is_queued(
    url: str, path: str, wrong: dict[str, Any], param: str, text: str
) -> None:
    sent = {name: v for name, v in {**KITE, **wrong, "model": "wan"}.items() if v is not None}
    error = error_in(httpx.post(f"{url}/v1/{path}", json=sent, timeout=TIMEOUT_S))
    assert text in error["message"]
    assert error["param"] == param


def test_what_travels_in_extra_is_known(url: str) -> None:
    job = wait(url, create(url, attention_kwargs={"scale": 1.0}))
    assert job["status"] == "completed"
