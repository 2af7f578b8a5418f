"""Where the processes of a training run, and running those of this machine: none outlives another's failure."""

import atexit
import contextlib
import ctypes
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Dict, List, Mapping, Optional, Sequence

from powernorm_fairseq import console
from powernorm_fairseq.console import UserError

LOG = "train.log"
TAIL = 20  # lines shown of a process that failed
PATIENCE = 300.0  # seconds after the first process ended well in which the others have to
STOPPED = 75  # EX_TEMPFAIL: stopped as asked, the same command goes on
say = functools.partial(console.say, "train")
GPU_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


@dataclass(frozen=True)
class Place:
    """This command's part of a training."""

    world: int  # processes of the training, over all machines
    first: int  # rank of the first one here
    local: int  # processes here
    gpus: int  # GPUs that can be seen here
    device: int  # GPU of the first process here
    address: Optional[str]  # where the processes meet; None if there is only one

    def rank_flags(self, index: int) -> List[str]:
        """The flags of fairseq-train for one of the processes here."""
        flags = ["--distributed-world-size", str(self.world)]
        if self.gpus == 0:
            flags.append("--cpu")
        if self.world > 1:
            flags += ["--distributed-no-spawn", "--distributed-init-method", "tcp://" + str(self.address)]
            flags += ["--distributed-rank", str(self.first + index), "--device-id", str(self.device + index)]
            flags += ["--distributed-backend", "nccl" if self.gpus else "gloo"]
        return flags


def count_gpus() -> int:
    """GPUs that torch can use; torch is only imported, which takes seconds, where there may be one."""
    if not any(os.path.exists(device) for device in GPU_DEVICES):
        return 0
    import torch

    return torch.cuda.device_count()


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_place(nproc: Optional[int], gpus: int, env: Mapping[str, str], name: str = "") -> Place:
    """Reads from the environment which part of a training this command is.

    ============================================  ================================================================
    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT    one process of a training that torchrun or a cluster starts
    a Slurm step (srun)                           one process for each task; with one task on a machine, one for
                                                  each GPU there (or ``nproc``)
    NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT   one machine of several, the same command given on each of them
    otherwise                                     the whole training: a process for each GPU, or ``nproc``
    ============================================  ================================================================

    Args:
        nproc: processes here, if the user says so.
        gpus: GPUs here.
        env: the environment.
        name: of the training; two at a time on one machine have different ones.
    """
    local, address, device, rank = nproc or max(gpus, 1), None, 0, 0  # type: int, Optional[str], int, int
    if all(name in env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        if nproc is not None:
            raise UserError(
                "--nproc {} does not go with RANK={} and WORLD_SIZE={}, which make this command one process of a "
                "larger training; leave it out, or unset them".format(nproc, env["RANK"], env["WORLD_SIZE"])
            )
        rank, commands, local = int(env["RANK"]), int(env["WORLD_SIZE"]), 1
        device, address = int(env.get("LOCAL_RANK", "0")) % max(gpus, 1), "{MASTER_ADDR}:{MASTER_PORT}".format_map(env)
    elif "SLURM_STEP_NUM_TASKS" in env:
        commands, machines = int(env["SLURM_STEP_NUM_TASKS"]), int(env.get("SLURM_STEP_NUM_NODES", "1"))
        rank, local = int(env["SLURM_PROCID"]), nproc or (max(gpus, 1) if commands == machines else 1)
        device = int(env.get("SLURM_LOCALID", "0")) * local % max(gpus, 1)
        if commands * local > 1:
            port = _slurm_port(env, name) if commands > 1 else _free_port()
            address = f"{_slurm_host(env, machines)}:{port}"
    elif int(env.get("NNODES", "1")) > 1:
        lacking = [name for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]
        if lacking:
            raise UserError("NNODES={} also needs {}".format(env["NNODES"], ", ".join(lacking)))
        rank, commands = int(env["NODE_RANK"]), int(env["NNODES"])
        address = "{MASTER_ADDR}:{MASTER_PORT}".format_map(env)
    elif "RANK" in env and env.get("WORLD_SIZE", "1") != "1":
        lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]
        raise UserError(
            "RANK={} and WORLD_SIZE={} make this command one process of a larger training, which also needs {}; set "
            "that, or unset them".format(env["RANK"], env["WORLD_SIZE"], " and ".join(lacking))
        )
    else:
        commands, address = 1, f"127.0.0.1:{_free_port()}"
    if gpus and device + local > gpus:
        raise UserError(f"--nproc {local} is more than the {gpus} GPUs here")
    world = commands * local
    return Place(world, rank * local, local, gpus, device, address if world > 1 else None)


def _slurm_host(env: Mapping[str, str], machines: int) -> str:
    """The first machine of a step."""
    if machines == 1:
        return "127.0.0.1"
    command = ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split()[0]


def _slurm_port(env: Mapping[str, str], name: str) -> int:
    """A port that all tasks of a step agree on, that other trainings do not use, and that is in no one's way."""
    words = [env["SLURM_JOB_ID"], env.get("SLURM_STEP_ID", "0"), env.get("SLURM_RESTART_COUNT", "0"), name]
    return 10000 + zlib.crc32(" ".join(words).encode("utf-8")) % 22000


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def note_signals() -> List[int]:
    """From now on, the signals that ask for an end do no more than append their number to the list that is returned."""
    noted: List[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: a lost connection is none
            signal.signal(number, lambda received, frame: noted.append(received))
            # Python takes its handlers back before it has ended, and run.sh warns again and again.
            atexit.register(signal.signal, number, signal.SIG_IGN)
    return noted


class Ranks:
    """The processes of a training on this machine.

    A signal asks for a checkpoint and an end, by a file that the plugin looks for in each process
    (``powernorm_fairseq/fairseq_fixes/stop.py``); a second SIGINT ends them at once.

    Args:
        folder: of the training.
        first: rank of the first process here.
        signals: those that came, from :func:`note_signals`.
        patience: seconds without progress after which the processes are ended; 0 for never.
    """

    def __init__(self, folder: Path, first: int, signals: List[int], patience: float = 0) -> None:
        self.folder = folder
        self.first = first
        self.stop_file = folder / f"stop-{first}"
        self.heeded = folder / f"stop-{first}.heeded"
        self.signals = signals
        self.patience = patience
        self.processes: List["subprocess.Popen[bytes]"] = []
        self.copier: Optional[threading.Thread] = None

    def log(self, index: int) -> Path:
        """Where a process's output goes."""
        rank = self.first + index
        return self.folder / (LOG if rank == 0 else f"rank-{rank}.log")

    def heartbeat(self, index: int) -> Path:
        """The file that a process touches with every batch (``powernorm_fairseq/fairseq_fixes/heartbeat.py``)."""
        return self.folder / f"heartbeat-{self.first + index}"

    def run(self, commands: Sequence[Sequence[str]], env: Dict[str, str]) -> int:
        """Runs one process for each command; returns 0 or STOPPED, and raises if a process fails."""
        self._forget(len(commands))
        try:
            for index, command in enumerate(commands):
                files = {"POWERNORM_STOP_FILE": self.stop_file, "POWERNORM_HEARTBEAT": self.heartbeat(index)}
                self._start(index, command, {**env, **{name: str(file) for name, file in files.items()}})
            self._watch()
            return STOPPED if self.heeded.exists() else 0
        finally:
            self._kill()
            self._forget(len(commands))

    def _start(self, index: int, command: Sequence[str], env: Dict[str, str]) -> None:
        log = open(str(self.log(index)), "ab")
        shown = self.first + index == 0
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if shown else log,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # Ctrl-C is for this process, which then asks
            preexec_fn=_protect,
        )
        self.processes.append(process)
        if shown:
            self.copier = threading.Thread(target=_copy, args=(process.stdout, log), daemon=True)
            self.copier.start()
        else:
            log.close()

    def _watch(self) -> None:
        """Waits for all processes; hands on signals."""
        asked, first_end = False, None
        while any(process.poll() is None for process in self.processes):
            time.sleep(0.1)
            if self.signals and not asked:
                asked = True
                self.stop_file.touch()
                say(f"{signal.Signals(self.signals[0]).name}: stopping after this update, with a checkpoint")
            if self.signals.count(signal.SIGINT) > 1:
                raise UserError("stopped at once; the same command goes on from the last checkpoint")
            self._check()
            self._check_progress()
            if first_end is None and any(process.poll() == 0 for process in self.processes):
                first_end = time.monotonic()
            if first_end is not None and time.monotonic() - first_end > PATIENCE:
                raise UserError(f"a process did not end within {PATIENCE:.0f} s after another had")
        self._check()

    def _check(self) -> None:
        """Raises if a process failed; if several did, names one that was killed, which the others suffered from."""
        failed = [(process.poll(), index) for index, process in enumerate(self.processes) if process.poll()]
        if not failed:
            return
        status, index = min(failed)
        self._kill()
        rank = self.first + index
        if rank != 0:
            with open(str(self.log(index)), encoding="utf-8", errors="replace") as file:
                sys.stderr.write("".join(file.readlines()[-TAIL:]))
        killed = status < 0
        how = "was ended by " + signal.Signals(-status).name if killed else f"failed with status {status}"
        others = "; the other processes were stopped" if len(self.processes) > 1 else ""
        raise UserError(f"rank {rank} {how}{others}; its output is in {self.log(index)}")

    def _check_progress(self) -> None:
        """Raises if all processes have stood still for too long; before the first batch there is no telling."""
        if self.patience <= 0 or not all(self.heartbeat(index).exists() for index in range(len(self.processes))):
            return
        beats = [self.heartbeat(index).stat().st_mtime for index in range(len(self.processes))]
        if time.time() - max(beats) < self.patience:
            return
        stopped = [self.first + index for index, process in enumerate(self.processes) if _is_stopped(process.pid)]
        which = f"rank {stopped[0]} is stopped, and " if stopped else ""
        raise UserError(
            f"{which}no process has made progress for {self.patience:.0f} s; all were ended, and the same command "
            "goes on from the last checkpoint"
        )

    def _kill(self) -> None:
        """Ends what still runs, with all children."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self.copier is not None:
            self.copier.join(timeout=5)

    def _forget(self, count: int) -> None:
        for file in (self.stop_file, self.heeded, *map(self.heartbeat, range(count))):
            with contextlib.suppress(FileNotFoundError):
                file.unlink()


def peak_memory() -> int:
    """The most memory, in bytes, that one of the processes that ended here had at a time; GPU memory is not in it."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped (SIGSTOP), where /proc tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _protect() -> None:
    """In a new process: what is sent to a whole job must not end it, but the end of its starter must."""
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)


def end_with_parent(number: int) -> None:
    """In a new process: it gets this signal when its starter ends, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def _copy(source: IO[bytes], log: IO[bytes]) -> None:
    """Writes a process's output to the terminal and to its log, line by line."""
    terminal: Optional[IO[bytes]] = sys.stderr.buffer
    with source, log:
        for line in iter(source.readline, b""):
            log.write(line)
            log.flush()
            try:
                if terminal is not None:
                    terminal.write(line)
                    terminal.flush()
            except OSError:  # nobody looks any more; training goes on
                terminal = None
