"""Checks of a machine and of a run: by status, names and numbers, on real folders and processes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from palimpsest import provenance
from palimpsest.app import doctor
from palimpsest.app.doctor import DoctorCheck, examine
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.errors import RunError
from palimpsest.files import hashes
from palimpsest.runs.folder_guard import FolderLock
from palimpsest.runs.jsonl_rows import append_row, read_rows
from palimpsest.runs.signals import GracefulStop
from palimpsest.viewer.records.alarms import THRESHOLDS
from support.command import Run
from support.disks import no_file_over
from support.fakes import NumberedSource, small_config
from support.listening import listening
from support.training import train

SOURCE = Path(__file__).parents[2] / "src"
MACHINE = (
    "packages", "working_folder", "shared_memory", "loopback", "ray_token", "gpu", "collectives", "threads",
)  # fmt: skip
OF_A_RUN = ("run", "health", "disk", "resume")


def of_run(run: Path, config: RunConfig | None = None) -> dict[str, DoctorCheck]:
    return {check.name: check for check in doctor._of_run(run, config or small_config())}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps, which tests only read."""
    folder = tmp_path_factory.mktemp("doctor") / "run"
    train(folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def test_the_json_contains_all_checks_and_the_run_stays_unchanged(run: Path, tmp_path: Path, palimpsest: Run) -> None:
    before = hashes(run)
    done = palimpsest("doctor", str(run), "--json")
    result = json.loads(done.stdout)
    assert set(result) == {"passed", "checks"}
    assert [check["name"] for check in result["checks"]] == [*MACHINE, *OF_A_RUN]
    assert all(set(check) == {"name", "status", "reason", "fix"} for check in result["checks"])
    status = {check["name"]: check["status"] for check in result["checks"]}
    assert status["collectives"] == status["working_folder"] == "ok"
    assert result["passed"] == (done.returncode == 0) == ("fail" not in status.values())
    assert hashes(run) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_failed_check_exits_with_one_and_one_line_per_check(palimpsest: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setattr(doctor, "_collectives", lambda _: ("ok", "", ""))
    done = palimpsest("doctor")
    assert done.returncode == 1
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert [name.rstrip(":") for _, name in lines] == list(MACHINE)
    assert ["fail", "ray_token:"] in lines
    assert "fix: export RAY_AUTH_MODE=token" in done.stdout


def test_it_loads_no_torch(trained: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from palimpsest.app import doctor\n"
        "doctor._collectives = lambda _: ('ok', '', '')\n"
        f"list(doctor.examine(Path({str(trained)!r}))); print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"config\.yaml"):
        next(examine(tmp_path))


def test_wrong_or_missing_packages_fail_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are those of the installed package's own metadata, here of a package before it on the path."""
    metadata = tmp_path / "palimpsest_rl-9.dist-info" / "METADATA"
    needed = ["pyyaml>=99", "absent-package>=1", "numpy>=1", 'ray>=2; extra == "ray"', 'orjson>=99; extra == "dev"']
    needed += ['another-absent>=1; extra == "x"']
    metadata.parent.mkdir()
    metadata.write_text("Name: palimpsest-rl\nVersion: 9\n" + "".join(f"Requires-Dist: {line}\n" for line in needed))
    monkeypatch.syspath_prepend(str(tmp_path))
    status, _, fix = doctor._packages()
    assert (status, fix) == ("fail", "pip install 'pyyaml>=99' 'absent-package>=1'")


def test_the_working_folder_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_file_over(0):
        assert doctor._working_folder(tmp_path)[0] == "fail"
    assert list(tmp_path.iterdir()) == []
    part = namedtuple("part", "mountpoint fstype")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [part("/", "ext4"), part(str(tmp_path), "nfs4")])
    assert doctor._working_folder(tmp_path)[0] == "warn"


@pytest.mark.parametrize(("free", "shared", "expected"), [(5e9, 64e6, ("warn", "warn")), (5e12, 64e9, ("ok", "ok"))])
def test_little_room_is_a_warning(
    free: float, shared: float, expected: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(shared, 0, free))
    assert (doctor._working_folder(tmp_path)[0], doctor._shared_memory()[0]) == expected


def test_ports_in_use_are_named() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 9527))
        except OSError:
            pytest.skip("another program has this port")
        taken.listen()
        assert "9527" in doctor._loopback()[1]


@pytest.mark.parametrize(
    ("address", "mode", "token", "status"),
    [
        (None, None, None, "ok"),
        ("10.0.0.1:6379", "token", "s3cret", "ok"),
        ("10.0.0.1:6379", "token", None, "fail"),
        ("10.0.0.1:6379", None, "s3cret", "fail"),
    ],
)
def test_a_cluster_needs_a_token(
    address: str | None, mode: str | None, token: str | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RAY_AUTH_MODE", mode), ("RAY_AUTH_TOKEN", token)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    matches = doctor._ray_token(address)
    assert matches[0] == status
    assert "s3cret" not in "".join(matches)


@pytest.mark.parametrize(
    ("gpus", "cuda", "driver", "status"),
    [
        (0, "None", None, "ok"),
        (2, "None", "550.54.15", "fail"),
        (2, "'12.8'", "550.54.15", "ok"),
        (2, "'12.8'", "470.82.01", "fail"),
        (2, "'13.0'", "570.26", "fail"),
        (2, "'13.0'", None, "ok"),
    ],
)
def test_torchs_build_is_compared_with_the_driver(
    gpus: int, cuda: str, driver: str | None, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the files of torch and of the driver."""
    (tmp_path / "version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {cuda}\n")
    for number in range(gpus):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
        (tmp_path / "gpus" / str(number) / "information").write_text("Model: \t NVIDIA H100\n")
    if driver:
        (tmp_path / "driver").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu Mar\n")
    torch = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: torch)
    monkeypatch.setattr(provenance, "_GPUS", tmp_path / "gpus")
    monkeypatch.setattr(doctor, "environment", provenance.environment.__wrapped__)
    monkeypatch.setattr(doctor, "_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(doctor, "_collectives", lambda backend: ("ok", backend, ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    checks = {check.name: check for check in examine()}
    assert (checks["gpu"].status, checks["collectives"].reason) == (status, "nccl" if gpus > 1 else "gloo")


def test_a_failed_sum_of_two_processes_fails_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SUM", "raise SystemExit('no interface')")
    assert doctor._collectives("gloo")[:2] == ("fail", "gloo: no interface")


@pytest.mark.parametrize(
    ("threads", "status"), [("1", "ok"), ("0", "warn"), ("100000", "warn"), ("x", "warn"), (None, "warn")]
)
def test_too_many_threads_are_a_warning(threads: str | None, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert doctor._threads()[0] == status


def killed(run: Path) -> None:
    """A process that takes the folder and is killed."""
    code = (
        "import os, signal; from pathlib import Path; from palimpsest.runs.folder_guard import FolderLock\n"
        f"FolderLock(Path({str(run)!r})); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert done.returncode == -signal.SIGKILL


def test_a_finished_run_is_ok_and_has_nothing_to_resume(run: Path) -> None:
    checks = of_run(run)
    assert [checks[name].status for name in OF_A_RUN] == ["ok"] * 4
    assert "step 6 of 6" in checks["run"].reason
    assert "train.max_steps=12" in checks["resume"].reason


def test_an_error_is_recorded_with_its_text_and_resumes(tmp_path: Path) -> None:
    class Broken(NumberedSource):
        def problems(self, *, step: int, count: int, **more: Any) -> Any:
            if step >= 4:
                raise RunError("the disk\nis gone")
            return super().problems(step=step, count=count, **more)

    with pytest.raises(RunError):
        train(tmp_path / "run", source=Broken())
    last = read_rows(tmp_path / "run" / "events.jsonl")[-1]
    assert (last["kind"], last["error"]) == ("failed", "the disk is gone")
    checks = of_run(tmp_path / "run")
    assert checks["run"].status == "fail"
    assert "the disk is gone" in checks["run"].reason
    assert checks["run"].fix == f"palimpsest train --resume {tmp_path / 'run'}"
    assert checks["resume"].status == "ok"
    train(tmp_path / "run", resume=True)
    assert of_run(tmp_path / "run")["run"].status == "ok"


def test_an_interrupted_run_is_a_warning_and_a_killed_one_fails(tmp_path: Path) -> None:
    stop = GracefulStop()

    async def measure(step: int) -> dict[str, float]:
        stop.requested = step == 3
        return {"accuracy": 0.5}

    config = small_config(eval_steps=1)
    train(tmp_path / "run", config, stop=stop, evaluate=measure)
    checks = of_run(tmp_path / "run", config)
    assert (checks["run"].status, "step 3 of 6" in checks["run"].reason) == ("warn", True)
    killed(tmp_path / "run")
    append_row(tmp_path / "run" / "events.jsonl", {"kind": "resumed", "step": 3}, checksum=False)
    assert of_run(tmp_path / "run", config)["run"].status == "fail"


def test_a_running_run_is_ok_and_is_not_resumed(tmp_path: Path) -> None:
    train(tmp_path / "run", small_config(max_steps=2))
    held = FolderLock(tmp_path / "run")
    checks = of_run(tmp_path / "run")
    held.release()
    assert (checks["run"].status, checks["resume"].status) == ("ok", "ok")
    assert "running" in checks["run"].reason


def test_alarms_are_checks_under_their_names(run: Path) -> None:
    for step in range(7, 17):
        row = {"step": step, "outcome/answered": 4.0, "reward/ungraded": 2.0, "sampler/logprob_gap_mean": 0.2}
        append_row(run / "metrics.jsonl", row | {"optim/grad_skipped": 0.1})
    checks = of_run(run, small_config(max_steps=20))
    matches = {name: check.status for name, check in checks.items() if name not in OF_A_RUN}
    assert matches == {"ungraded": "fail", "logprob_gap": "fail", "grad_skipped": "warn"}
    assert matches.keys() <= {key for key, _, _ in THRESHOLDS}
    assert "health" not in checks
    assert all(checks[name].fix for name in matches)


def test_too_little_room_for_the_next_checkpoint_fails(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    newest = trained / "checkpoints" / "step-000006"
    size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    for free, status in ((2 * size, "ok"), (1, "fail")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(10**9, 0, free))
        assert of_run(trained)["disk"].status == status


def damage(run: Path, pattern: str) -> None:
    """The matching checkpoints lose a byte of their weights."""
    for weights in run.glob(f"checkpoints/{pattern}/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (lambda run: None, "ok", "after step 4"),
        (lambda run: append_row(run / "metrics.jsonl", {"step": 5}), "ok", "after step 4; steps 5 run again"),
        (lambda run: damage(run, "step-000004"), "warn", "after step 2; steps 3-4 run again; step-000004 damaged"),
        (lambda run: damage(run, "step-*"), "fail", "damaged: step-000002, step-000004"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "fail", "lacks the checkpoint saved after step 4"),
    ],
)
def test_a_resume_starts_after_the_newest_intact_checkpoint_or_is_rejected(
    change: Callable[[Path], object], status: str, message: str, tmp_path: Path
) -> None:
    train(tmp_path / "run", small_config(max_steps=4))
    change(tmp_path / "run")
    resume = of_run(tmp_path / "run")["resume"]
    assert (resume.status, message in resume.reason) == (status, True), resume.reason
    again = f"palimpsest train {tmp_path}/run/config.yaml --out {tmp_path}/run --force"
    assert resume.fix == (again if status == "fail" else "")


def test_a_run_killed_in_its_cold_start_continues_it(run: Path, trained: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    (started,) = [row for row in read_rows(run / "events.jsonl") if row["kind"] == "started"]
    (run / "events.jsonl").write_text(f"{json.dumps(started)}\n")
    assert "starts over" in of_run(run)["resume"].reason
    shutil.copytree(trained, run / "cold-start")
    assert "cold start" in of_run(run)["resume"].reason


def test_a_resume_without_its_data_would_be_rejected(trained: Path, tmp_path: Path) -> None:
    data = {"train_files": str(tmp_path / "gone.jsonl")}
    config = RunConfig.model_validate(small_config(max_steps=12).model_dump() | {"data": data})
    resume = of_run(trained, config)["resume"]
    assert (resume.status, "gone.jsonl" in resume.reason) == ("fail", True)


MEMACT = ["reward.judge.url=http://127.0.0.1:{0}/v1", "policy.options.tools.search.source=http://127.0.0.1:{0}"]
VLLM = ["sampler.name=vllm", "sampler.urls=[http://127.0.0.1:{0}]", "loss.importance_sampling_cap=null"]


def services(port: int, *overrides: str) -> dict[str, DoctorCheck]:
    config = load_recipe("memact-7b", [override.format(port) for override in (*MEMACT, *overrides)])
    return {check.name: check for check in doctor._services(config)}


def test_services_that_do_not_answer_fail_with_the_command_that_starts_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
    checks = services(number, *VLLM)
    assert {name: check.status for name, check in checks.items()} == dict.fromkeys(
        ("judge", "search", "sampler"), "fail"
    )
    port = ["--port", str(number)]
    judge, search, sampler = (shlex.split(check.fix) for check in checks.values())
    assert judge[:3] == ["vllm", "serve", "openai/gpt-oss-120b"]
    assert judge[judge.index("--served-model-name") + 1] == "gpt-oss"
    assert search[:4] == ["palimpsest", "retrieval", "serve", "CORPUS"]
    assert sampler[:2] == ["palimpsest", "export"]
    assert judge[-2:] == search[-2:] == sampler[-2:] == port
    assert not list(doctor._services(load_recipe("memagent-7b")))
    (reader,) = doctor._services(load_recipe("parser-4b", [f"roles.reader.url=http://127.0.0.1:{number}/v1"]))
    assert (reader.name, reader.status) == ("reader", "fail")
    assert shlex.split(reader.fix)[:3] == ["vllm", "serve", "Qwen/Qwen3-4B"]
    assert shlex.split(reader.fix)[-2:] == port


@pytest.mark.parametrize(
    ("reply", "matches"),
    [
        (b'HTTP/1.0 200 OK\r\n\r\n{"data": [], "max_waiting": 1}', "ok"),
        (b"HTTP/1.0 401 Unauthorized\r\n\r\n", "ok"),  # it requires a key
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "fail"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", "fail"),
        (b"SSH-2.0-OpenSSH_9\r\n", "fail"),
    ],
)
def test_another_program_on_the_port_is_not_the_service(reply: bytes, matches: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(reply)

    with listening(Handler) as port:
        assert {check.status for check in services(port).values()} == {matches}


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:abc", "[::1", "127.0.0.1:0"])
def test_an_address_that_no_service_can_have_fails_with_its_key(address: str) -> None:
    config = load_recipe("memact-7b", [f"policy.options.tools.search.source=http://{address}"])
    search = list(doctor._services(config))[1]
    assert search.status == "fail"
    assert search.fix == "set policy.options.tools.search.source=http://127.0.0.1:PORT"
    listed = config.policy.model_copy(update={"options": {"tools": ["search"]}})  # of a custom policy
    assert [one.name for one in doctor._services(config.model_copy(update={"policy": listed}))] == ["judge"]


def test_services_of_a_recipe_are_checked_last(palimpsest: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_collectives", lambda _: ("ok", "", ""))
    done = palimpsest("doctor", "memact-7b", "--json")
    assert [check["name"] for check in json.loads(done.stdout)["checks"]] == [*MACHINE, "judge", "search"]
    assert palimpsest("doctor", "no-such-recipe").returncode == 2
