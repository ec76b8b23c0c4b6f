# SPDX-License-Identifier: Apache-2.0
"""Finding and starting tritonserver: what can be told without starting one."""

import json
import socket
import sys
from pathlib import Path

import pytest

from builder import main as builder
from builder.commands.serve import StopSignals
from builder.entries.repository import write_entry
from builder.tritonserver import installation, stubs
from builder.tritonserver.installation import Binary, ServerError
from builder.tritonserver.keep import Kept, pause_s
from builder.tritonserver.options import OWNED_OPTIONS, refuse_owned
from builder.tritonserver.ports import Ports, choose_ports
from builder.tritonserver.server import read_reason

FAILED = "load failed for model 'a': version 1 is at UNAVAILABLE state: "
TRACEBACK = "\n\nAt:\n  model.py(2): initialize\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"error":"plain"}', "plain"),
        ("no json", "no json"),
        ('{"other": 1}', '{"other": 1}'),
        (
            json.dumps({"error": f"{FAILED}Internal: a: 'x'\n is missing{TRACEBACK};\n"}),
            "a: 'x' is missing",
        ),
        (json.dumps({"error": f"{FAILED}Invalid argument: no GPU;\n"}), "Invalid argument: no GPU"),
    ],
)
def test_reasons_are_one_line_without_the_traceback(body, reason):
    assert read_reason(body) == reason


@pytest.mark.parametrize("option", sorted(OWNED_OPTIONS))
@pytest.mark.parametrize("form", ["--{}=1", "--{}"])
def test_options_that_are_ours_are_refused(option, form):
    with pytest.raises(ServerError, match=option):
        refuse_owned(["--log-verbose=1", form.format(option)])


def test_the_names_of_shared_memory_are_ours():
    with pytest.raises(ServerError, match="leave it out"):
        refuse_owned(["--backend-config=python,shm-region-prefix-name=x"])


def test_other_options_pass():
    refuse_owned(["--log-verbose=1", "--id", "5", "--cache-config=local,size=1"])


def test_free_ports_are_distinct_and_chosen_ones_kept():
    ports = choose_ports("127.0.0.1", Ports(0, 0, 0))
    assert len({ports.http, ports.grpc, ports.metrics}) == 3
    assert 0 not in (ports.http, ports.grpc, ports.metrics)


@pytest.mark.parametrize("kind", ["http", "grpc", "metrics"])
def test_a_busy_port_is_named_with_its_option(kind):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        wanted = {"http": 0, "grpc": 0, "metrics": 0} | {kind: taken.getsockname()[1]}
        with pytest.raises(ServerError, match=f"--{kind}-port"):
            choose_ports("127.0.0.1", Ports(**wanted))


def test_two_ports_that_are_the_same_are_refused():
    with pytest.raises(ServerError, match="--http-port and --grpc-port are both 8100"):
        choose_ports("127.0.0.1", Ports(8100, 8100, 0))


def test_a_refused_start_leaves_no_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "logs"))
    (tmp_path / "logs").mkdir()
    write_entry(tmp_path / "repo", "a", "")
    words = ["--repository", str(tmp_path / "repo"), "--http-port", "8100", "--grpc-port", "8100"]
    assert builder.main(["serve", *words]) == 1
    assert "both 8100" in capsys.readouterr().err
    assert not list((tmp_path / "logs").iterdir())


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ServerError, match=r"192\.0\.2\.1"):
        choose_ports("192.0.2.1", Ports(0, 0, 0))


def test_tritonserver_on_path_comes_first(tmp_path, monkeypatch):
    program = tmp_path / "tritonserver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installation.find() == Binary(program)
    assert installation.command(Binary(program), tmp_path) == [str(program)]
    assert "LD_LIBRARY_PATH" not in installation.environment(Binary(program), {"PATH": "/bin"})


def test_the_package_is_laid_out_with_links(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    binary = installation.find()
    command = installation.command(binary, tmp_path)
    assert command == [str(binary.path), f"--backend-directory={tmp_path}"]
    names = sorted(p.name for p in (tmp_path / "python").iterdir())
    assert names == [
        "libtriton_python.so",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    ]
    assert all(p.resolve().is_file() for p in (tmp_path / "python").iterdir())


def test_stubs_use_the_running_python(monkeypatch):
    binary = Binary(Path("/x/site-packages/pytriton/bin"), Path("/x/site-packages/pytriton/server"))
    env = installation.environment(binary, {"PATH": "/bin", "LD_LIBRARY_PATH": "/mine"})
    assert env["PATH"] == f"{Path(sys.executable).parent}:/bin"
    first, *_, last = env["LD_LIBRARY_PATH"].split(":")
    assert (first, last) == ("/x/site-packages/nvidia_pytriton.libs", "/mine")


def test_numpy_2_is_refused_with_the_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(installation.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(ServerError, match=r"numpy 2\.1\.0 .*pip install 'numpy<2'"):
        installation.find()


def test_no_server_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServerError, match=r"pip install 'triton-diffusers\[server\]'"):
        installation.find()


def test_small_shared_memory_is_warned_of(monkeypatch):
    class Small:
        f_blocks, f_frsize = 64, 2**20

    monkeypatch.setattr(installation.os, "statvfs", lambda path: Small)
    assert "64 MB" in str(installation.shared_memory_warning())
    assert "--shm-size" in str(installation.shared_memory_warning())


def test_large_or_missing_shared_memory(tmp_path):
    assert "missing" in str(installation.shared_memory_warning(str(tmp_path / "none")))


def test_stubs_are_read_from_proc(tmp_path, monkeypatch):
    monkeypatch.setattr(stubs, "PROC", tmp_path)
    stub = "/t/python/triton_python_backend_stub"
    model = "/repo/a model/1/model.py"
    add_process(tmp_path, 5, group=4, arguments=[stub, model, "region_5", "1"])
    add_process(tmp_path, 6, group=9, arguments=[stub, model, "region_6", "1"])
    add_process(tmp_path, 7, group=4, arguments=["/bin/tritonserver", "--x"])
    add_process(tmp_path, 8, group=4, arguments=[])  # a zombie
    assert stubs.find(4) == [stubs.Stub(5, "a model", "region_5")]


def test_only_a_servers_own_regions_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(stubs, "SHARED_MEMORY", tmp_path)
    ours = f"{stubs.REGION}ab_"
    for name in (f"{ours}1", f"{ours}2", f"{stubs.REGION}cd_1", "other"):
        (tmp_path / name).write_text("")
    stubs.remove_regions("")
    stubs.remove_regions("other")
    stubs.remove_regions(ours, keep=[f"{ours}2"])
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["other", f"{ours}2", f"{stubs.REGION}cd_1"]


def test_only_the_first_signal_interrupts():
    signals = StopSignals()
    with pytest.raises(KeyboardInterrupt):
        signals._stop(15, None)
    signals._stop(15, None)


def add_process(proc: Path, pid: int, group: int, arguments: list[str]) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a ) name) S 1 {group} {group} 0")
    (folder / "cmdline").write_text("".join(word + "\0" for word in arguments))


@pytest.mark.parametrize("folder", ["/repo/a model", "/tmp/folderAb3_9x"])
def test_a_model_whose_files_came_with_its_load_call_has_its_name(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(stubs, "PROC", tmp_path)
    words = ["/t/triton_python_backend_stub", f"{folder}/1/model.py", "region", "1", "a model_0_1"]
    add_process(tmp_path, 5, group=4, arguments=words)
    stand_in = [*words[:-1], f"{stubs.STAND_IN}_0"]
    add_process(tmp_path, 6, group=4, arguments=stand_in)
    assert [stub.model for stub in stubs.find(4)] == ["a model"]


@pytest.mark.parametrize(("failures", "pause"), [(0, 0), (1, 1), (2, 2), (3, 4), (9, 30), (99, 30)])
def test_pauses_grow_and_end(failures, pause):
    assert pause_s(failures) == pause


def test_a_process_that_dies_again_and_again_is_loaded_after_growing_pauses() -> None:
    kept = Kept("m")
    pauses = []
    for at in (0.0, 5.0, 10.0, 15.0, 20.0, 100.0):
        kept.note_death(at)
        pauses.append(pause_s(kept.failures))
    assert pauses == [0, 0, 1, 2, 4, 0]
