#!/usr/bin/env python3
"""Tests a sweep on a real Slurm, whose controller and one node run on this machine only for this test.

usage: slurm_test.py PATH_OF_SPILLWAY

Needs slurmctld, slurmd, slurm-client and munge (Debian), and ports 16817 and 16818. Without them
the test is skipped with a message.
"""

import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from harness import CommandTest, main

os.environ["PATH"] += os.pathsep + "/usr/sbin"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")

CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge/socket
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A controller and a node that keep their files in one directory."""

    def __init__(self, directory):
        self.directory = directory
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def start(self):
        directory = self.directory
        for name in ("munge", "state", "spool"):
            (directory / name).mkdir(mode=0o700)
        munge = directory / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        subprocess.run(["munged", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                        f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"], check=True)
        path = directory / "slurm.conf"
        path.write_text(CONFIGURATION.format(directory=directory, host=socket.gethostname().split(".")[0],
                                             user=getpass.getuser(), cpus=os.cpu_count()), encoding="utf-8")
        for daemon in ("slurmctld", "slurmd"):
            subprocess.run([daemon, "-f", path], check=True, env=self.environment)
        if not wait_for(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T")):
            raise OSError("slurmd did not come up: " + self.ask("sinfo"))

    def ask(self, *command):
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False).stdout

    def queue(self):
        return self.ask("squeue", "-h", "-o", "%i %t %r")

    def stop(self):
        self.ask("scancel", "-u", getpass.getuser())
        time.sleep(1)
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            try:
                os.kill(int((self.directory / name).read_text("utf-8")), signal.SIGTERM)
            except (OSError, ValueError):
                pass


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


def process_of(store):
    """Returns the process of the spillway whose checkpoint is the given file."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(store).encode() in words and b"sweep" in words:
            return int(path.parent.name)
    return None


class SlurmTest(CommandTest):
    def test_a_killed_task_goes_on_and_the_bytes_are_the_same(self):
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if missing:
            self.skip(f"no {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge)")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            directory = pathlib.Path(name)
            (directory / "slurm").mkdir()
            slurm = Slurm(directory / "slurm")
            try:
                slurm.start()
                self.sweep_on(slurm, directory)
            finally:
                slurm.stop()

    def sweep_on(self, slurm, directory):
        grid = ("alexnet:{1..100}", "resnet152:{1..20}", "--policy", "mxnet,torch,vdnnpp", "--memory", "60%,90%", "--device", "a100")
        here, there = directory / "here.sqlite", directory / "there.sqlite"
        self.ok("sweep", *grid, "-o", here, "--quiet")
        text = self.ok("sweep", "submit", *grid, "-o", there, "--slurm", "--tasks", 3, "--mem", "100M", env=slurm.environment)
        self.assertIn("720 cells in 3 tasks: job ", text)
        shard = directory / "there.sqlite.shards" / "shard-2.sqlite"
        self.assertTrue(wait_for(lambda: process_of(shard)), slurm.queue())
        time.sleep(0.5)
        os.kill(process_of(shard), signal.SIGKILL)
        self.assertTrue(wait_for(lambda: not slurm.queue(), 300), slurm.queue())
        logs = "\n".join(path.read_text("utf-8") for path in shard.parent.glob("*.log"))
        self.assertTrue(there.exists(), logs)
        self.assertIn("Killed", logs)
        self.assertEqual(self.ok("sweep", "export", there, "--format", "csv"),
                         self.ok("sweep", "export", here, "--format", "csv"))


class ScriptTest(CommandTest):
    def test_a_dry_run_prints_scripts_that_a_shell_takes(self):
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            text = self.ok("sweep", "submit", "resnet(3,4,{4..36..4},3):32", "--policy", "torch,mxnet", "--check",
                           "-o", "r.sqlite", "--slurm", "--tasks", "8", "--cpus", "4", "--time", "2:00:00",
                           "--slurm-option=--partition=long", "--dry-run", cwd=directory)
            self.assertEqual(list(directory.iterdir()), [])
            for part in ("#SBATCH --array=1-8\n", "#SBATCH --cpus-per-task=4\n", "#SBATCH --time=2:00:00\n",
                         "#SBATCH --partition=long\n", "'resnet(3,4,{4..36..4},3):32' --check --policy torch,mxnet",
                         f"--checkpoint {directory}/r.sqlite.shards/shard-\"$task\".sqlite"):
                self.assertIn(part, text)
            self.assertEqual(text.count("#!/bin/bash\n"), 2)
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)

    def test_without_slurm(self):
        with tempfile.TemporaryDirectory() as name:
            submit = ("sweep", "submit", "alexnet:1", "-o", f"{name}/r.sqlite", "--slurm", "--tasks")
            self.fails(5, "no sbatch on this machine", *submit, "2", env={**os.environ, "PATH": "/nowhere"})
            self.fails(2, "--tasks", *submit, "0")
            self.fails(2, "did you mean 'alexnet'?", "sweep", "submit", "alxnet:1", "-o", f"{name}/r.sqlite", "--slurm",
                       "--tasks", "2", "--dry-run")

    def test_the_array_script_is_run_without_slurm(self):
        """Runs the script as Slurm does: a task that is stopped writes its checkpoint."""
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            text = self.ok("sweep", "submit", "resnet152:{1..400}", "--device", "a100", "--policy", "vdnn-dyn,vdnnpp",
                           "-o", directory / "r.sqlite", "--slurm", "--tasks", "1", "--dry-run")
            (directory / "r.sqlite.shards").mkdir()
            script = directory / "array.sh"
            script.write_text(text[:text.index("#!/bin/bash\n", 1)], encoding="utf-8")
            shard = directory / "r.sqlite.shards" / "shard-1.sqlite"
            with subprocess.Popen(["bash", script], env={**os.environ, "SLURM_ARRAY_TASK_ID": "1"},
                                  stderr=subprocess.DEVNULL) as process:
                self.assertTrue(wait_for(lambda: process_of(shard)))
                time.sleep(1)
                process.send_signal(signal.SIGTERM)
                self.assertNotEqual(process.wait(timeout=60), 0)
            self.assertGreater(len(self.ok("sweep", "export", shard, "--format", "csv").splitlines()), 1)


if __name__ == "__main__":
    main()
