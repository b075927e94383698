"""Tests that memory used by a server process is returned to the operating system."""

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

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if os.environ["GIVE_BACK"] == "yes":
    give_memory_back()
libc.free(libc.malloc(BYTES * 4))  # from now on glibc keeps smaller blocks, by default
pictures, small = [], []
for _ in range(64):
    pictures.append(libc.malloc(BYTES))
    ctypes.memset(pictures[-1], 1, BYTES)
    small.append(libc.malloc(100_000))  # longer-lived blocks lie between them
full = resident()
for picture in pictures:
    libc.free(picture)
print((full - resident()) // BYTES)
"""


def returned_mib(how):
    """MiB, of 64 MiB of freed pictures, that are returned to the system."""
    environment = {**os.environ, "GIVE_BACK": how}
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_memory_of_pictures_is_returned_to_the_system():
    assert returned_mib("yes") >= 60
    assert returned_mib("no") < 10  # shows that the measurement depends on the setting
