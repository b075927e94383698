"""A guarded worker that misbehaves on request, for tests of how its parent reacts."""

import ctypes
import json
import os
import struct
import sys
import time
from pathlib import Path

from court.backends.sandbox import child as worker_child


def handle(request, payloads):
    return {name: action for name, action in globals().items() if callable(action)}[request["act"]](request, payloads)


def echo(request, payloads):
    return {"pid": os.getpid(), "said": request.get("say")}, payloads


def spin(request, payloads):
    while True:
        pass


def sleep(request, payloads):
    time.sleep(request["seconds"])
    return echo(request, payloads)


def segfault(request, payloads):
    ctypes.string_at(0)


def leave(request, payloads):
    os._exit(7)


def signal_itself(request, payloads):
    os.kill(os.getpid(), request["number"])
    return echo(request, payloads)


def fail(request, payloads):
    raise KeyError("a secret at 0x7f00deadbeef")


def hoard(request, payloads):
    return {"size": len(bytearray(request["bytes"]))}, []


def chatter(request, payloads):
    print("to the Python stream", flush=True)
    os.write(1, b"to the descriptor")
    os.write(2, b"to the error stream" * 100_000)
    return echo(request, [sys.stdin.buffer.read()])


def write_file(request, payloads):
    Path(request["path"]).write_bytes(b"x")
    return {}, []


def surroundings(request, payloads):
    return {"environ": dict(os.environ), "path": sys.path, "cwd": str(Path.cwd()), "sid": os.getsid(0)}, []


def raw(request, payloads):
    """Writes arbitrary bytes instead of a reply."""
    for descriptor in range(3, 8):
        try:
            os.write(descriptor, bytes.fromhex(request["hex"]))
        except OSError:
            continue
    time.sleep(60)


def hang_up(request, payloads):
    """Closes the pipe for replies, and keeps running."""
    os.closerange(3, 8)
    time.sleep(60)


def forged(request, payloads):
    header = json.dumps({"job": request["job"], "sizes": [], "cpu_s": 0.0, "peak_bytes": 0, "body": {}}).encode()
    return raw({"hex": (struct.pack(">I", len(header)) + header).hex()}, payloads)


def many(request, payloads):
    return {}, [b"x" * request["size"]] * request["count"]


if __name__ == "__main__":
    worker_child.serve(handle)
