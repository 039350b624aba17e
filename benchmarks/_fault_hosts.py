"""The hosts of a scenario: folders, and as root memory, disks and networks of their own, all gone at the end."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import paceline

PREFIX = "paceline-soak-"
MARK = "PACELINE_SOAK"
"""The variable by which a scenario's processes are known, whoever their parents are."""
CODE = str(Path(paceline.__file__).resolve().parents[1])
"""Where the package is imported from here, so that its command is of the same code."""
DISK = 16 << 20
"""Bytes of a disk that will be filled."""
_NUMBERS = count()


@cache
def isolated() -> bool:
    """Whether memory, disks and networks of our own can be made here."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")):
        return False
    trial = ["unshare", "--mount", "--uts", "--net", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


@dataclass
class Launched:
    """One launcher: its process, and what it says."""

    process: "subprocess.Popen[bytes]"
    out: Path

    @property
    def text(self) -> str:
        """Everything that it and its workers printed so far."""
        return self.out.read_text(errors="replace")

    def crew(self) -> dict[int, int]:
        """Its workers and servers, local rank to process."""
        found: dict[int, int] = {}
        for child in _children(self.process.pid):
            if (local := local_rank(child)) is not None:
                found.setdefault(local, child)
        return found


@dataclass
class Host:
    """Where one launcher runs; ``home`` is its working directory, with runs/ and tmp/ in it."""

    number: int
    home: Path
    mark: str
    namespace: str = ""
    shm: Path | None = None
    launches: list[Launched] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        """Where run folders are made."""
        return self.home / "runs"

    @property
    def folders(self) -> list[Path]:
        """The run folders that there are, oldest first."""
        # A folder begins as a draft with a dot before its name, and may be renamed at any moment.
        found = [path for path in self.runs.glob("[!.]*") if path.is_dir()]
        return sorted(found, key=lambda path: path.stat().st_ctime_ns)

    def start(self, words: Sequence[str]) -> Launched:
        """Run ``paceline *words`` here."""
        out = self.home / f"said-{len(self.launches)}.txt"
        command = [sys.executable, "-m", "paceline", *words]
        if self.shm is not None:
            inside = f'mount --bind "{self.shm}" /dev/shm; hostname host-{self.number}; exec "$@"'
            command = ["unshare", "--mount", "--uts", "sh", "-c", inside, "sh", *command]
        if self.namespace:
            command = ["ip", "netns", "exec", self.namespace, *command]
        path = os.pathsep.join([CODE, os.environ.get("PYTHONPATH", "")])
        env = {"NO_COLOR": "1", "OMP_NUM_THREADS": "1", MARK: self.mark, "TMPDIR": str(self.home / "tmp")}
        env["PYTHONPATH"] = path  # the home is another folder, and a relative path would lead to other code
        with out.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.home,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.launches.append(Launched(process, out))
        return self.launches[-1]

    def link(self, state: str) -> None:
        """Cut the cable ("down"), or plug it in again ("up")."""
        _do("ip", "-n", self.namespace, "link", "set", "eth0", state)

    def fill_disk(self, free: int) -> None:
        """Leave so many bytes of the disk free."""
        ballast = self.runs / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(ballast, max(0, ballast.stat().st_size - free))

    def remains(self, *, shm: bool, disk: bool) -> list[Path]:
        """What a launch must not leave: in shared memory; and temporary folders and secrets."""
        left = [*self.shm.iterdir()] if shm and self.shm else []
        if disk:
            left += [*(self.home / "tmp").glob("paceline-*"), *self.runs.glob("*/*secret*")]
        return left

    def clean_up(self, *, shm: bool, disk: bool) -> None:
        """Remove it."""
        for path in self.remains(shm=shm, disk=disk):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def free_disk(self) -> None:
        """Undo it."""
        (self.runs / "ballast").unlink(missing_ok=True)


@dataclass
class Site:
    """All hosts of a scenario."""

    root: Path
    mark: str
    hosts: list[Host]

    def alive(self) -> list[int]:
        """The processes of the scenario, whoever their parents are."""
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
        return [pid for pid in pids if _environment(pid).get(MARK) == self.mark]

    def describe(self) -> str:
        """Who is alive: the local ranks, and whether they stand still."""
        found = []
        for pid in self.alive():
            with suppress(OSError, IndexError):
                state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
                local = local_rank(pid)
                who = "launcher" if local is None else f"local rank {local}"
                found.append(f"{who}{' (stopped)' if state == 'T' else ''}")
        return ", ".join(sorted(found))

    def kill_all(self) -> None:
        """End what is left of the scenario."""
        for _ in range(50):
            left = self.alive()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for host in self.hosts:
                for launched in host.launches:
                    launched.process.poll()
            if not left:
                return
            time.sleep(0.05)


@contextmanager
def site(name: str, hosts: int, small_disk: bool) -> Iterator[Site]:
    """Make so many hosts; whatever happens, their processes, namespaces and mounts go."""
    mark = f"{os.getpid()}-{next(_NUMBERS)}"
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}{mark}-{name}-")))
        made = Site(root, mark, [Host(number, root / f"host-{number}", mark) for number in range(hosts)])
        for host in made.hosts:
            (host.home / "tmp").mkdir(parents=True)
            host.runs.mkdir()
            if isolated():
                host.shm = stack.enter_context(_tmpfs(host.home / "shm", 256 << 20))
            if small_disk:
                stack.enter_context(_tmpfs(host.runs, DISK))
        if hosts > 1:
            stack.enter_context(_network(made.hosts))
        stack.callback(made.kill_all)
        yield made


@contextmanager
def _tmpfs(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    _do("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _do("umount", "--lazy", str(folder))


@contextmanager
def _network(hosts: Sequence[Host]) -> Iterator[None]:
    """Two hosts and a cable: 10.78.0.1 and 10.78.0.2, in namespaces of their own."""
    with ExitStack() as stack:
        for host in hosts:
            host.namespace = f"{PREFIX}{host.mark}-{host.number}"
            _do("ip", "netns", "add", host.namespace)
            stack.callback(_do, "ip", "netns", "del", host.namespace)
        one, other = (host.namespace for host in hosts)
        ends = ["name", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", other]
        _do("ip", "link", "add", *ends)
        for host in hosts:
            _do("ip", "-n", host.namespace, "address", "add", f"10.78.0.{host.number + 1}/24", "dev", "eth0")
            _do("ip", "-n", host.namespace, "link", "set", "lo", "up")
            host.link("up")
        yield


def sweep() -> None:
    """Remove the namespaces, mounts and folders of a soak that was killed."""
    if not isolated():
        return
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX)):
        if _abandoned(name):
            _do("ip", "netns", "del", name)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _abandoned(folder.name):
            for mount in (mount for mount in mounts if mount.startswith(f"{folder}/")):
                _do("umount", "--lazy", mount)
            shutil.rmtree(folder, ignore_errors=True)


def _abandoned(name: str) -> bool:
    owner = name.removeprefix(PREFIX).partition("-")[0]
    return owner.isdecimal() and not Path("/proc", owner).exists()


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


def _children(pid: int) -> list[int]:
    """Those that any thread of a process has started."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path("/proc", str(pid), "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def local_rank(pid: int) -> int | None:
    """Which of its launcher's processes one is, by the command line that it shows; None where it is no such process."""
    with suppress(OSError):
        title = Path("/proc", str(pid), "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
        if title.startswith("paceline: "):
            return int(title.split()[-1])
    return None


def _environment(pid: int) -> dict[str, str]:
    try:
        raw = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:  # it has gone, or is another user's
        return {}
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}
