# SPDX-License-Identifier: Apache-2.0
"""The client against a real tritonserver, with an entry that repeats what it was sent."""

import asyncio
import hashlib
import io
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from PIL import Image

from builder.tritonserver.server import start_server
from tests.server.wire import admin
from tests.waiting import wait_for as wait_until
from triton_diffusers.client import (
    AsyncDiffusersClient,
    Cancelled,
    DiffusersClient,
    DiffusersClientError,
    InvalidRequest,
    ModelNotFound,
    PipelineError,
    ServerBusy,
    ServerUnavailable,
)
from triton_diffusers.client.regions import PREFIX
from triton_diffusers.config.admin_key import SHARED_MEMORY_DIR

MODELS = Path(__file__).parent / "test_client_models"
PROTOCOLS = ("grpc", "http")
BIG = {"height": 1400, "width": 1200}
"""5 MB of picture: large enough for shared memory."""

pytestmark = pytest.mark.timeout(120)


def write_entry(repository: Path, name: str, **changes: str) -> None:
    """Copy the echo entry under another name, with words of its config replaced."""
    shutil.copytree(MODELS / "echo", repository / name, dirs_exist_ok=True)
    config = (MODELS / "echo" / "config.pbtxt").read_text().replace('"echo"', f'"{name}"')
    for old, new in changes.items():
        config = config.replace(old, new)
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("client") / "repository"
    progress = '"progress", data_type: TYPE_INT64, dims: [ 2 ] },\n  { name: "info"'
    policy = "model_transaction_policy { decoupled: true }\ninstance_group"
    write_entry(folder, "echo")
    write_entry(folder, "changing")
    write_entry(folder, "dying")
    write_entry(folder, "stream", **{'"info"': progress, "instance_group": policy})
    return folder


@pytest.fixture(scope="module")
def server(repository):
    log = repository.parent / "server.log"
    names = ("echo", "changing", "dying", "stream")
    with start_server(repository, names, log=log, exit_timeout_s=3) as running:
        yield running
        print(running.log_tail())


@pytest.fixture(params=PROTOCOLS)
def protocol(request):
    return request.param


@pytest.fixture
def connect(server):
    """Open clients by protocol and entry; all are closed at the end."""
    opened = []

    def open_client(protocol, model="echo"):
        url = server.grpc_url if protocol == "grpc" else server.http_url
        opened.append(DiffusersClient(url, model, protocol))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture
def client(connect, protocol):
    return connect(protocol)


@pytest.fixture
def regions(server):
    """List the regions of clients that the server or /dev/shm still hold."""
    triton = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    def held():
        status = triton.get_system_shared_memory_status(
            headers=admin(server, "grpc"), client_timeout=10
        ).regions
        return sorted({*status, *(p.name for p in SHARED_MEMORY_DIR.glob(PREFIX + "*"))})

    yield held
    triton.close()


def received(result, name):
    return result.info["inputs"][name]


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def picture(height, width, mode="RGB", seed=0):
    channels = len(mode) if mode != "L" else 1
    shape = (height, width, channels) if channels > 1 else (height, width)
    pixels = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    return Image.fromarray(pixels)


# --- values


@pytest.mark.parametrize("value", [0.1, 1 / 3, 5e-324, -0.0, math.inf, math.nan, 7, 1e300])
def test_floats_arrive_exactly(client, value):
    seen = received(client.generate(guidance_scale=value), "guidance_scale")
    assert seen["dtype"] == "float64"
    assert seen["digest"] == digest(np.array([value], np.float64))


@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, -(2**63), 500_000])
def test_integers_arrive_exactly(client, value):
    seen = received(client.generate(seed=value), "seed")
    assert seen["values"] == [str(value)]


def test_lists_and_flags_arrive(client):
    inputs = client.generate(
        sigmas=[1.0, 0.1], timesteps=(999, 0), flag=False, seed=np.arange(3)
    ).info["inputs"]
    assert inputs["sigmas"]["values"] == ["1.0", "0.1"]
    assert inputs["timesteps"]["values"] == ["999", "0"]
    assert inputs["flag"]["values"] == ["False"]
    assert inputs["seed"]["values"] == ["0", "1", "2"]


@pytest.mark.parametrize("text", ["", "caf\u00e9 \U0001f600", "a\0b", "line\nline", "x" * 100_000])
def test_texts_arrive_exactly(client, text):
    seen = received(client.generate(prompt=text), "prompt")
    assert seen["digests"] == [hashlib.sha256(text.encode()).hexdigest()]


def test_several_texts_and_none_of_them(client):
    inputs = client.generate(prompt=["a", "", "c"], negative_prompt=None).info["inputs"]
    assert inputs["prompt"]["values"] == ["a", "", "c"]
    assert "negative_prompt" not in inputs
    assert received(client.generate(prompt=[]), "prompt")["shape"] == [0]


def test_only_what_was_sent_arrives(client):
    assert client.generate().info["inputs"] == {}


def test_other_keywords_arrive_in_extra(client):
    seen = received(client.generate(prompt="a", cfg={"x": [1, None]}, extra='{"y": 2}'), "extra")
    assert seen["values"] == ['{"y": 2, "cfg": {"x": [1, null]}}']


# --- media


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_pictures_arrive_as_their_pixels(client, mode):
    image = picture(33, 17, mode)
    result = client.generate(image=[image, image])
    assert received(result, "image")["shape"] == [2, 33, 17, 1 if mode == "L" else len(mode)]
    assert [i.mode for i in result.images] == [mode] * 2
    assert all(np.array_equal(np.asarray(i), np.asarray(image)) for i in result.images)
    assert result.nsfw_content_detected == [True]


def test_pictures_of_several_sizes_arrive_as_png(client):
    images = [picture(33, 17), picture(20, 40, "L")]
    result = client.generate(image=images, output_format="png")
    assert received(result, "image_bytes")["shape"] == [2]
    decoded = [Image.open(io.BytesIO(file)) for file in result.media]
    for got in (decoded, result.images):
        assert all(
            np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(got, images, strict=True)
        )


def test_files_arrive_as_they_are(client, tmp_path):
    path = tmp_path / "cat.webp"
    picture(33, 17).save(path)
    content = path.read_bytes()
    for given in (path, str(path), content):
        assert client.generate(image=given, output_format="png").media == [content]


def test_frames_arrive_as_one_tensor(client):
    frames = [picture(16, 24, seed=n) for n in range(9)]
    assert received(client.generate(image=frames), "image")["shape"] == [9, 16, 24, 3]


def test_sound_arrives_exactly(client, tmp_path):
    sound = np.random.default_rng(0).uniform(-1, 1, (2, 1000)).astype(np.float32)
    result = client.generate(audio=sound)
    assert np.array_equal(result.audios[0], sound)
    assert result.sampling_rate == 16000
    assert result.save(tmp_path / "x.wav")[0].exists()


def test_the_result_as_it_came(client, tmp_path):
    result = client.generate(height=10, width=20, seed=[5, 6])
    assert result.arrays["images"].shape == (2, 10, 20, 3)
    ramp = np.arange(2 * 10 * 20 * 3) % 251
    assert np.array_equal(result.arrays["images"].reshape(-1), ramp)
    assert result.seeds == [5, 6]
    assert [p.name for p in result.save(tmp_path / "x.png")] == ["x-0.png", "x-1.png"]


# --- what the entry is


def test_inputs_and_readiness(client, connect, protocol, server):
    inputs = client.inputs()
    assert (inputs["height"].data_type, inputs["height"].dims) == ("TYPE_INT64", (1,))
    assert inputs["prompt"].optional
    assert client.is_ready()
    assert not connect(protocol, "missing").is_ready()
    assert not DiffusersClient(closed_port(), "echo", protocol).is_ready()


def test_a_changed_entry_is_read_again(client, connect, protocol, server, repository):
    changing = connect(protocol, "changing")
    changing.generate(height=8, width=8)
    write_entry(repository, "changing", **{'"height"': '"tall"', '"width"': '"wide"'})
    server.load("changing")
    try:
        seen = changing.generate(tall=16, wide=16).info["inputs"]
        assert set(seen) == {"tall", "wide"}
        with pytest.raises(InvalidRequest):
            changing.generate(tall="x")
    finally:
        write_entry(repository, "changing")
        server.load("changing")
    assert set(changing.generate(height=8).info["inputs"]) == {"height"}


# --- errors


CODES = {
    "INVALID_ARG": InvalidRequest,
    "UNSUPPORTED": InvalidRequest,
    "NOT_FOUND": ModelNotFound,
    "UNAVAILABLE": ServerBusy,
    "INTERNAL": PipelineError,
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("entry", ["echo", "stream"])
def test_each_code_is_one_class_over_both_protocols(connect, code, entry):
    for protocol in PROTOCOLS if entry == "echo" else ("grpc",):
        with pytest.raises(DiffusersClientError) as caught:
            connect(protocol, entry).generate(behave=code)
        assert type(caught.value) is CODES[code]
        assert str(caught.value) == f"asked to answer {code}"


def test_a_request_that_the_model_cancels(client):
    with pytest.raises(Cancelled, match="the request was cancelled"):
        client.generate(behave="cancel")


def test_no_such_entry(connect, protocol):
    with pytest.raises(ModelNotFound, match="unknown model: 'missing'"):
        connect(protocol, "missing").generate(prompt="a")


def test_an_entry_that_could_not_be_loaded(server, repository, connect, protocol):
    write_entry(repository, "broken")
    (repository / "broken" / "1" / "model.py").write_text("raise ValueError('no such thing')")
    with pytest.raises(Exception, match="no such thing"):
        server.load("broken")
    with pytest.raises(ModelNotFound, match=r"could not load it .* builder check broken$"):
        connect(protocol, "broken").generate(prompt="a")


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_no_server_says_the_same_over_both_protocols():
    url = closed_port()
    for protocol in PROTOCOLS:
        with DiffusersClient(url, "echo", protocol) as lost, pytest.raises(ServerUnavailable) as e:
            lost.generate(prompt="a")
        assert str(e.value) == f"no server answers at {url}: Connection refused"


def test_the_port_of_the_other_protocol(server):
    for protocol, url, spoken in (
        ("grpc", server.http_url, "HTTP"),
        ("http", server.grpc_url, "gRPC"),
    ):
        with DiffusersClient(url, "echo", protocol) as lost, pytest.raises(ServerUnavailable) as e:
            lost.generate(prompt="a", timeout_s=10)
        assert f"the port seems to speak {spoken}" in str(e.value)
        assert "8000" in str(e.value)
        assert "8001" in str(e.value)
        assert str(e.value).isprintable()


def test_a_server_that_accepts_and_says_nothing(protocol):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        with DiffusersClient(url, "echo", protocol) as lost:
            start = time.monotonic()
            with pytest.raises((Cancelled, ServerUnavailable)):
                lost.generate(prompt="a", timeout_s=0.5)
            assert time.monotonic() - start < 5


def test_a_name_that_does_not_resolve(protocol):
    lost = DiffusersClient("no-such-host.invalid:8001", "echo", protocol)
    with lost, pytest.raises(ServerUnavailable):
        lost.generate(prompt="a", timeout_s=5)


def test_a_dead_model_is_unavailable(connect, server):
    """The last test of this entry: once a request met the dead stub, Triton cannot unload it."""
    connect("grpc", "dying").generate(behave="die", timeout_s=5)
    wait_until(lambda: "dying" not in {stub.model for stub in server.stubs()})
    for dying in (connect(protocol, "dying") for protocol in PROTOCOLS):
        with pytest.raises(ServerUnavailable, match=r"^Stub process 'dying_0_0' is not healthy"):
            dying.generate(prompt="a", timeout_s=5)


def test_what_triton_refuses_is_an_invalid_request(connect):
    messages = set()
    for strict in map(connect, PROTOCOLS):
        with pytest.raises(InvalidRequest, match="unexpected shape for input 'flags'") as caught:
            strict.generate(flags=[True, False, True])
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert not messages.pop().startswith("[")


@pytest.mark.parametrize("keywords", [{"sead": 1}, {"extra": {"sead": 1}}])
def test_a_keyword_in_extra_is_refused_as_the_caller_wrote_it(client, keywords):
    with pytest.raises(InvalidRequest) as caught:
        client.generate(behave="refuse input 'extra': argument 'sead' is not known", **keywords)
    prefix = "input 'extra': " if "extra" in keywords else ""
    assert str(caught.value) == f"{prefix}argument 'sead' is not known"


# --- time-outs and cancelling


def test_a_timeout_cancels(client, protocol):
    before = client.generate().info["cancelled"]
    start = time.monotonic()
    with pytest.raises(Cancelled, match=r"did not answer within 0.5 s"):
        client.generate(behave="sleep 10", timeout_s=0.5)
    assert time.monotonic() - start < 3
    if protocol == "grpc":
        wait_until(lambda: client.generate().info["cancelled"] == before + 1)


def test_the_server_is_told_the_timeout(client):
    assert client.generate(timeout_s=7.5).info["timeout_us"] == 7_500_000
    assert client.generate().info["timeout_us"] == 0


def test_the_server_is_told_the_priority(client):
    assert client.generate(priority=-3).info["parameters"] == {"queue_priority": -3}
    assert client.generate().info["parameters"] == {}


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, also where a shell started the tests in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("entry", ["echo", "stream"])
def test_ctrl_c_cancels(connect, entry, ctrl_c):
    client = connect("grpc", entry)
    before = client.generate().info["cancelled"]
    timer = threading.Timer(0.5, ctrl_c)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        client.generate(behave="sleep 10", timeout_s=20)
    timer.join(5)
    wait_until(lambda: client.generate().info["cancelled"] == before + 1)


@pytest.mark.parametrize("entry", ["echo", "stream"])
def test_closing_the_client_cancels(connect, entry):
    client, other = connect("grpc", entry), connect("grpc", entry)
    before = other.generate().info["cancelled"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.generate, behave="sleep 10", timeout_s=20)
        time.sleep(0.5)
        client.close()
        with pytest.raises(Cancelled):
            running.result(5)
    wait_until(lambda: other.generate().info["cancelled"] == before + 1)
    with pytest.raises(ServerUnavailable, match="closed"):
        client.generate()


def test_threads_share_a_client(client):
    def seed_of(seed):
        result = client.generate(seed=seed, behave="sleep 0.05", **BIG)
        return result.seeds, received(result, "seed")["values"], result.images[0].size

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(seed_of, range(24), timeout=60))
    assert answers == [([n], [str(n)], (1200, 1400)) for n in range(24)]


# --- shared memory


def test_shared_memory_changes_nothing(client, regions):
    image = picture(1400, 1200)
    plain = client.generate(image=image, shared_memory=False)
    for _ in range(3):
        result = client.generate(image=image, shared_memory=True)
        assert np.array_equal(result.arrays["images"], plain.arrays["images"])
        assert received(result, "image") == received(plain, "image")
        assert set(result.arrays) == set(plain.arrays)
        assert regions() == []


def test_outputs_of_known_size_come_through_shared_memory(client, regions):
    results = [client.generate(seed=n, **BIG) for n in range(4)]
    first, _, *rest = (result.arrays["images"] for result in results)
    assert not first.flags.writeable
    for array in rest:
        assert array.flags.writeable
        assert np.array_equal(array, first)
    assert regions() == []


def test_the_caller_may_know_the_size(client, regions):
    result = client.generate(shared_memory_bytes=1400 * 1200 * 3, **BIG)
    assert result.arrays["images"].flags.writeable
    assert result.images[0].size == (1200, 1400)
    spare = client.generate(shared_memory_bytes=8_000_000, **BIG)
    assert np.array_equal(spare.arrays["images"], result.arrays["images"])
    assert regions() == []


def test_a_region_that_is_too_small_is_an_error_and_nothing_runs_twice(client, regions):
    before = client.generate().info["calls"]
    with pytest.raises(DiffusersClientError, match=r"shared memory size.*shared_memory=False"):
        client.generate(shared_memory_bytes=1000, **BIG)
    assert client.generate().info["calls"] == before + 2
    assert regions() == []


def test_each_size_is_known_by_its_own_inputs(client, regions):
    for height in (1400, 1500, 1400, 1500, 1400, 1500):
        assert client.generate(height=height, width=1200).images[0].size == (1200, height)
    assert regions() == []


@pytest.mark.parametrize(
    "options",
    [{"timeout_s": 0}, {"timeout_s": -1}, {"shared_memory": "on"}, {"shared_memory_bytes": 0}],
)
def test_options_that_could_only_be_mistakes(client, options):
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        client.generate(prompt="a", **options)


@pytest.mark.parametrize("behave", ["INTERNAL", "INVALID_ARG", "UNAVAILABLE"])
def test_errors_leave_no_region(client, regions, behave):
    with pytest.raises(DiffusersClientError):
        client.generate(image=picture(1400, 1200), shared_memory=True, behave=behave)
    assert regions() == []


def test_a_cancelled_call_gives_its_region_back_when_the_model_lets_go(connect, protocol, regions):
    client = connect(protocol)
    with pytest.raises(Cancelled):
        client.generate(shared_memory_bytes=6_000_000, behave="deaf 1.5", timeout_s=0.5, **BIG)
    assert len(regions()) == 1  # the model will still write there
    client.close()
    assert regions() == []


def test_a_killed_client_leaves_nothing_in_dev_shm(server, regions):
    code = (
        "from triton_diffusers.client import DiffusersClient\n"
        f"c = DiffusersClient('{server.grpc_url}', 'echo')\n"
        "print('started', flush=True)\n"
        "c.generate(shared_memory_bytes=6_000_000, behave='sleep 30')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        wait_until(lambda: len(regions()) == 1)
        time.sleep(0.2)
        process.kill()
    assert list(SHARED_MEMORY_DIR.glob(PREFIX + "*")) == []
    triton = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    wait_until(lambda: give_back(server, triton, regions()))
    triton.close()


def give_back(server, triton, names):
    for name in names:
        try:
            headers = admin(server, "grpc")
            triton.unregister_system_shared_memory(name, headers=headers, client_timeout=10)
        except tritonclient.grpc.InferenceServerException:
            return False
    return True


def test_more_than_dev_shm_holds(client, regions):
    assert client.generate(shared_memory_bytes=1 << 50, height=8, width=8).images
    with pytest.raises(ServerUnavailable, match="no shared memory"):
        client.generate(shared_memory_bytes=1 << 50, shared_memory=True, height=8, width=8)
    assert regions() == []


def test_no_shared_memory_with_a_server_elsewhere(server, protocol):
    url = server.grpc_url if protocol == "grpc" else server.http_url
    elsewhere = url.replace("127.0.0.1", "[::ffff:127.0.0.1]")  # an unusual name of this machine
    with DiffusersClient(elsewhere, "echo", protocol) as client:
        with pytest.raises(ServerUnavailable, match="not on this machine"):
            client.generate(prompt="a", shared_memory=True)
        assert client.generate(prompt="a", shared_memory_bytes=6_000_000, **BIG).images


# --- streams


def test_progress_of_an_entry_that_streams(connect, regions):
    steps = []
    client = connect("grpc", "stream")
    for _ in range(3):
        result = client.generate(
            num_inference_steps=4, on_progress=lambda *step: steps.append(step), **BIG
        )
        assert result.images[0].size == (1200, 1400)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)] * 3
    assert "progress" not in result.arrays
    assert result.arrays["images"].flags.writeable  # the third one came through shared memory
    assert client.generate(num_inference_steps=2, height=8).images
    assert regions() == []


def test_progress_is_not_called_where_nothing_streams(client):
    steps = []
    client.generate(on_progress=lambda *step: steps.append(step))
    assert steps == []


def test_an_error_in_on_progress_cancels(connect):
    client = connect("grpc", "stream")
    before = client.generate().info["cancelled"]

    def stop(step, total):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.generate(behave="sleep 10", on_progress=stop)
    wait_until(lambda: client.generate().info["cancelled"] == before + 1)


def test_a_stream_has_a_timeout(connect):
    with pytest.raises(Cancelled, match=r"0.5 s"):
        connect("grpc", "stream").generate(behave="sleep 10", timeout_s=0.5)


def test_http_cannot_stream(connect):
    with pytest.raises(InvalidRequest, match="protocol='grpc'"):
        connect("http", "stream").generate(prompt="a")


# --- asyncio


def run(server, work, model="echo"):
    async def body():
        async with AsyncDiffusersClient(server.grpc_url, model) as client:
            return await asyncio.wait_for(work(client), 60)

    return asyncio.run(body())


def test_asyncio_does_the_same(server, connect, regions):
    async def work(client):
        assert await client.is_ready()
        assert "prompt" in await client.inputs()
        return [await client.generate(seed=3, image=picture(1400, 1200)) for _ in range(2)]

    plain = connect("grpc").generate(seed=3, image=picture(1400, 1200), shared_memory=False)
    for result in run(server, work):
        assert np.array_equal(result.arrays["images"], plain.arrays["images"])
        assert result.seeds == [3]
    assert regions() == []


def test_asyncio_runs_many_at_once(server):
    async def work(client):
        calls = (client.generate(seed=n, behave="sleep 0.5") for n in range(10))
        return await asyncio.gather(*calls)

    start = time.monotonic()
    assert [result.seeds for result in run(server, work)] == [[n] for n in range(10)]
    assert time.monotonic() - start < 4


@pytest.mark.parametrize("entry", ["echo", "stream"])
def test_cancelling_a_task_cancels_the_request(server, connect, entry):
    counter = connect("grpc", entry)
    before = counter.generate().info["cancelled"]

    async def work(client):
        task = asyncio.create_task(client.generate(behave="sleep 10", shared_memory_bytes=5000000))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(server, work, entry)
    wait_until(lambda: counter.generate().info["cancelled"] == before + 1)


def test_asyncio_errors_and_timeouts(server):
    async def work(client):
        for code, error_class in CODES.items():
            with pytest.raises(error_class, match=f"asked to answer {code}"):
                await client.generate(behave=code)
        with pytest.raises(Cancelled, match=r"0.5 s"):
            await client.generate(behave="sleep 10", timeout_s=0.5)
        with pytest.raises(InvalidRequest, match="'height'"):
            await client.generate(height=2.5)

    run(server, work)
    run(server, work, "stream")


def test_asyncio_progress(server):
    steps = []

    async def work(client):
        return await client.generate(
            num_inference_steps=3, on_progress=lambda *step: steps.append(step)
        )

    assert run(server, work, "stream").images
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_asyncio_without_a_server():
    async def body():
        async with AsyncDiffusersClient(closed_port(), "echo") as client:
            assert not await client.is_ready()
            with pytest.raises(ServerUnavailable, match="Connection refused"):
                await client.generate(prompt="a")

    asyncio.run(asyncio.wait_for(body(), 30))


def test_closing_an_asyncio_client_cancels(server):
    async def work(client):
        task = asyncio.create_task(client.generate(behave="sleep 10"))
        await asyncio.sleep(0.5)
        await client.close()
        with pytest.raises(Cancelled):
            await task
        with pytest.raises(ServerUnavailable):
            await client.generate()

    run(server, work)
