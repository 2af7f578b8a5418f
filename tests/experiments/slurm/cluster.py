"""A Slurm cluster on this machine, private to a test run: own configuration, ports, key and folders."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Dict, List, Optional

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
SYSTEM_PATH = "/usr/sbin:/sbin"

CONFIGURATION = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{machines}
PartitionName=normal Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def why_not() -> Optional[str]:
    """Why no cluster can be started here; None if one can."""
    path = os.environ["PATH"] + ":" + SYSTEM_PATH
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} not found); make slurm-deps installs it"
    return None if os.geteuid() == 0 else "slurmd has to be started by root"


def _free_ports(count: int) -> List[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Cluster:
    """munged, slurmctld and slurmd, started by hand in a folder.

    It has two processors: two machines with one each, both of them this one by another name, or, where this one has no
    other name, one machine with two. The names can be looked up, as those of a real cluster can.

    Args:
        folder: everything they write is in it; its path must be short, because it holds a socket.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: List["subprocess.Popen[bytes]"] = []
        host = socket.gethostname().split(".")[0]
        self.machines = sorted({host, "localhost"})
        controller_port, *ports = _free_ports(1 + len(self.machines))
        machines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={2 // len(self.machines)} "
            "RealMemory=1000 State=UNKNOWN"
            for name, port in sorted(zip(self.machines, ports), key=lambda pair: pair[0] != host)  # its own name first
        ]
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=host, controller_port=controller_port, machines="\n".join(machines), folder=folder
            )
        )
        (folder / "state").mkdir()
        for name in self.machines:
            (folder / f"spool-{name}").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.env: Dict[str, str] = {
            **outside,
            "PATH": os.environ["PATH"] + ":" + SYSTEM_PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def start(self) -> None:
        """Starts the programs and waits until the machines take jobs."""
        munge = ["--foreground", "--force", "--num-threads", "2", "--key-file", str(self.folder / "munge.key")]
        for name in ("socket", "pid-file", "log-file", "seed-file"):
            munge += ["--" + name, str(self.folder / ("munge." + name))]
        self._start("munged", *munge)
        self._wait("munged", lambda: (self.folder / "munge.socket").exists())
        self._start("slurmctld", "-D")
        for name in self.machines:
            self._start("slurmd", "-D", "-N", name)
        idle = ["sinfo", "--noheader", "--partition=normal", "--states=idle", "--format", "%D"]
        self._wait("a machine", lambda: self.call(*idle) == str(len(self.machines)))

    def _start(self, *command: str) -> None:
        with open(str(self.folder / f"{command[0]}.out"), "ab") as out:
            self.processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=self.env))

    def _wait(self, what: str, ready) -> None:
        for _ in range(300):
            if ready():
                return
            ended = [process.args[0] for process in self.processes if process.poll() is not None]
            if ended:
                raise RuntimeError(f"{ended[0]} ended: {(self.folder / (ended[0] + '.out')).read_text()[-2000:]}")
            time.sleep(0.2)
        raise RuntimeError(f"{what} did not get ready")

    def call(self, *command: str) -> str:
        """The output of one of Slurm's programs; empty if it fails."""
        done = subprocess.run(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return done.stdout.decode().strip() if done.returncode == 0 else ""

    def states(self) -> Dict[str, str]:
        """Job (``7`` or ``7_0``) -> state, of all that Slurm still knows."""
        lines = self.call("squeue", "--noheader", "--array", "--states=all", "--format", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def stop(self) -> None:
        """Ends the jobs and the programs."""
        if len(self.processes) > 1 and all(process.poll() is None for process in self.processes):
            self.call("scancel", "--full", "--signal=KILL", "--state=RUNNING")
            self.call("scancel", "--user=root")
            for _ in range(100):
                if not self.call("squeue", "--noheader", "--states=RUNNING,COMPLETING", "--format", "%i"):
                    break
                time.sleep(0.2)
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
