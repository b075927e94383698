"""A guarded worker that does whatever it is told to, for tests of what its parent makes of that."""

import ctypes
import json
import os
import struct
import sys
import time
from pathlib import Path

from court.backends.sandbox import child as worker_child


def handle(asked, payloads):
    return {name: act for name, act in globals().items() if callable(act)}[asked["act"]](asked, payloads)


def echo(asked, payloads):
    return {"pid": os.getpid(), "said": asked.get("say")}, payloads


def spin(asked, payloads):
    while True:
        pass


def sleep(asked, payloads):
    time.sleep(asked["seconds"])
    return echo(asked, payloads)


def segfault(asked, payloads):
    ctypes.string_at(0)


def leave(asked, payloads):
    os._exit(7)


def signal_itself(asked, payloads):
    os.kill(os.getpid(), asked["number"])
    return echo(asked, payloads)


def fail(asked, payloads):
    raise KeyError("a secret at 0x7f00deadbeef")


def hoard(asked, payloads):
    return {"size": len(bytearray(asked["bytes"]))}, []


def chatter(asked, payloads):
    print("to the Python stream", flush=True)
    os.write(1, b"to the descriptor")
    os.write(2, b"to the error stream" * 100_000)
    return echo(asked, [sys.stdin.buffer.read()])


def write_file(asked, payloads):
    Path(asked["path"]).write_bytes(b"x")
    return {}, []


def surroundings(asked, payloads):
    return {"environ": dict(os.environ), "path": sys.path, "cwd": str(Path.cwd()), "sid": os.getsid(0)}, []


def raw(asked, payloads):
    """Bytes of its choice in the place of a reply."""
    for descriptor in range(3, 8):
        try:
            os.write(descriptor, bytes.fromhex(asked["hex"]))
        except OSError:
            continue
    time.sleep(60)


def forged(asked, payloads):
    header = json.dumps({"job": asked["job"], "sizes": [], "cpu_s": 0.0, "peak_bytes": 0, "body": {}}).encode()
    return raw({"hex": (struct.pack(">I", len(header)) + header).hex()}, payloads)


def many(asked, payloads):
    return {}, [b"x" * asked["size"]] * asked["count"]


if __name__ == "__main__":
    worker_child.serve(handle)
