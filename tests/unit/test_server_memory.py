"""What a server's process takes from the system is given back."""

import os
import platform
import subprocess
import sys

import pytest

PROBE = """
import ctypes, os
from serving.app import give_memory_back

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)
BYTES = 1 << 20

def held():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if os.environ["GIVE_BACK"] == "yes":
    give_memory_back()
libc.free(libc.malloc(BYTES * 4))  # after this the C library, left to itself, keeps what is smaller
pictures, small = [], []
for _ in range(64):
    pictures.append(libc.malloc(BYTES))
    ctypes.memset(pictures[-1], 1, BYTES)
    small.append(libc.malloc(100_000))  # what lives longer lies between them
full = held()
for picture in pictures:
    libc.free(picture)
print((full - held()) // BYTES)
"""


def given_back(how: str) -> int:
    """How many of 64 MiB of pictures the system has again."""
    environment = {**os.environ, "GIVE_BACK": how}
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_what_pictures_took_is_the_systems_again() -> None:
    assert given_back("yes") >= 60
    assert given_back("no") < 10  # or this would say nothing
