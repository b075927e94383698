"""Regenerates the code for proto/memecourt/v1/court.proto; with --check, says whether what is committed is up to date.

The generated files open with the versions that made them, so a new grpcio-tools shows up as a difference: regenerate
and commit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent.parent / "proto"
SOURCE = "memecourt/v1/court.proto"
GENERATED = ("court_pb2.py", "court_pb2.pyi", "court_pb2_grpc.py", "court_pb2_grpc.pyi")


def generate(into: Path) -> None:
    """Writes the generated files below ``into``."""
    _protoc(f"--python_out={into}", f"--mypy_out={into}", f"--grpc_python_out={into}", f"--mypy_grpc_out={into}")


def described() -> FileDescriptorProto:
    """Returns the contract's descriptor, with the comments that stand in it."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "court.binpb"
        _protoc("--include_source_info", f"--descriptor_set_out={made}")
        (file,) = FileDescriptorSet.FromString(made.read_bytes()).file
    return file


def _protoc(*options: str) -> None:
    # Google's own types, which the contract imports, come with grpcio-tools.
    well_known = Path(protoc.__file__).parent / "_proto"
    if status := protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *options, SOURCE]):
        sys.exit(status)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        generate(PROTO)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = [
            name
            for name in GENERATED
            if (Path(folder, "memecourt/v1", name).read_bytes()) != (PROTO / "memecourt/v1" / name).read_bytes()
        ]
    if stale:
        sys.exit(f"Out of date: {', '.join(stale)}. Run `make proto` and commit the result.")


if __name__ == "__main__":
    main()
