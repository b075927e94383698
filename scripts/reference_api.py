"""The reference pages of the two public interfaces: the wire contract and the Python client.

Both are made of what stands in the code: the comments of ``court.proto``, as protoc hands them on with the descriptor,
and the docstrings of :mod:`memecourt`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from memecourt import client, verify
from memecourt.connection import Tls
from memecourt.errors import CallError, JudgeError
from memecourt.requests import judge_request
from memecourt.retries import Retries
from scripts.generate_proto import contract

_SERVICE, _MESSAGE, _ENUM = 6, 4, 5
"""Numbers of the fields of a FileDescriptorProto: by these, comments say what they stand above."""
_FIELD_OF_MESSAGE, _PART_OF_OTHERS, _PACKAGE = 2, 2, ".memecourt.v1."
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_CODES = re.compile(r"^([A-Z]{4}[A-Z_, ]+):", re.MULTILINE)
"""Statuses of a call, each with what it means: a list."""
_TITLES = ("Args", "Attributes", "Returns", "Raises", "Yields")


def api_pages() -> dict[str, str]:
    """The pages by file name."""
    return {"wire.md": "".join(_wire()), "python-client.md": "".join(_python_client())}


def _wire() -> Iterator[str]:
    file, comments = _contract()
    yield (
        "# The wire contract\n\nServices, messages and enums of "
        "[`memecourt.v1`](../../proto/memecourt/v1/court.proto), with the comments that stand in it. How to call them: "
        "[calling.md](../calling.md).\n"
    )
    # Comments are indexed and not searched for with `get`: a part of the contract without one ends the build.
    for place, service in enumerate(file.service):
        yield f"\n## {service.name}\n\n{comments[_SERVICE, place]}\n"
        for number, method in enumerate(service.method):
            streams = [method.client_streaming, method.server_streaming]
            request, got = (
                f"{'stream of ' if stream else ''}{_link(name)}"
                for stream, name in zip(streams, (method.input_type, method.output_type), strict=True)
            )
            comment = _CODES.sub(r"- `\1`:", comments[_SERVICE, place, _PART_OF_OTHERS, number])
            yield f"\n### {service.name}.{method.name}\n\n{request} → {got}\n\n{comment}\n"
    for place, message in enumerate(file.message_type):
        yield from _message(message, (_MESSAGE, place), comments)
    for place, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_ENUM, place), comments)


def _message(message: DescriptorProto, at: tuple[int, ...], comments: Mapping[tuple[int, ...], str]) -> Iterator[str]:
    yield f"\n## {message.name}\n\n{comments[at]}\n"
    if message.field:
        yield "\n| field | number | type | |\n|---|--:|---|---|\n"
    maps = {f"{_PACKAGE}{message.name}.{one.name}": one for one in message.nested_type if one.options.map_entry}
    for number, field in enumerate(message.field):
        comment = comments[*at, _FIELD_OF_MESSAGE, number]
        yield f"| `{field.name}` | {field.number} | {_type(field, maps)} | {cell(comment)} |\n"


def _enum(enum: EnumDescriptorProto, at: tuple[int, ...], comments: Mapping[tuple[int, ...], str]) -> Iterator[str]:
    yield f"\n## {enum.name}\n\n{comments[at]}\n\n| value | number | |\n|---|--:|---|\n"
    for number, value in enumerate(enum.value):
        yield f"| `{value.name}` | {value.number} | {cell(comments[*at, _PART_OF_OTHERS, number])} |\n"


def _type(field: FieldDescriptorProto, maps: Mapping[str, DescriptorProto]) -> str:
    """The type as the contract writes it, with a link to a message or enum of ours."""
    if field.type_name in maps:
        key, value = (_type(part, maps) for part in maps[field.type_name].field)
        return f"map of {key} to {value}"
    named = _link(field.type_name) if field.type_name else f"`{FieldDescriptorProto.Type.Name(field.type)[5:].lower()}`"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {named}"
    return f"optional {named}" if field.proto3_optional else named


def _link(type_name: str) -> str:
    name = type_name.removeprefix(_PACKAGE)
    return f"[{name}](#{name.lower()})" if type_name.startswith(_PACKAGE) else f"`{name.removeprefix('.')}`"


def _contract() -> tuple[FileDescriptorProto, Mapping[tuple[int, ...], str]]:
    """The contract's descriptor, and its comments by the place that they stand above."""
    file = contract()
    comments = {
        tuple(one.path): "\n".join(line.removeprefix(" ") for line in one.leading_comments.splitlines()).strip()
        for one in file.source_code_info.location
        if one.leading_comments
    }
    return file, comments


def _python_client() -> Iterator[str]:
    yield (
        "# The Python client\n\n`pip install memecourt` brings it, with gRPC and protobuf and nothing else. What to do "
        "with it: [calling.md](../calling.md#from-python).\n"
    )
    for kind in (client.Client, client.AsyncClient, Tls, Retries, CallError, JudgeError):
        yield f"\n## {kind.__name__}\n\n`from {_public_module(kind)} import {kind.__name__}`\n\n{_docs(kind)}\n"
        own = kind.__dict__.get("__init__")
        if own is not None and own.__doc__ and "Args:" in own.__doc__:
            yield f"\n```python\n{kind.__name__}{_signature(own)}\n```\n\n{_docs(own)}\n"
        for name, method in vars(kind).items():
            if not name.startswith("_") and inspect.isfunction(method):
                yield f"\n### {kind.__name__}.{name}\n\n```python\n{_signature(method, name)}\n```\n\n{_docs(method)}\n"
    written = _signature(judge_request, "judge_request")
    yield f"\n## judge_request\n\n```python\n{written}\n```\n\n{_docs(judge_request)}\n"
    yield f"\n## python -m memecourt.verify\n\n{prose(verify.__doc__ or '')}\n"


def _public_module(kind: type) -> str:
    return client.__name__ if kind.__name__ in client.__all__ else kind.__module__


def _signature(function: Any, name: str = "") -> str:
    """The signature as it is written, without ``self``; an argument a line where it is long."""
    signature = inspect.signature(function)
    # Annotations are texts there: without the quotes they are as they are written.
    taken = [re.sub(r": '([^']*)'", r": \1", str(one)) for one in signature.parameters.values() if one.name != "self"]
    gives = (
        "" if signature.return_annotation in (inspect.Signature.empty, "None") else f" -> {signature.return_annotation}"
    )
    opens = "async def " if inspect.iscoroutinefunction(function) else "def " if name else ""
    keyword = next((n for n, one in enumerate(signature.parameters.values()) if one.kind is one.KEYWORD_ONLY), None)
    # The bare asterisk is none of the parameters that `inspect` lists.
    if keyword is not None:
        taken.insert(keyword - ("self" in signature.parameters), "*")
    short = f"{opens}{name}({', '.join(taken)}){gives}"
    if len(short) <= 100:
        return short
    lines = "".join(f"    {one},\n" for one in taken)
    return f"{opens}{name}(\n{lines}){gives}"


def _docs(thing: Any) -> str:
    return prose(inspect.cleandoc(thing.__doc__ or ""))


def prose(docstring: str) -> str:
    """A docstring as Markdown: its sections as lists, what it names as code."""
    lines, section = [], ""
    for line in _marked(docstring).splitlines():
        if line.removesuffix(":") in _TITLES and line.endswith(":"):
            section = line.removesuffix(":")
            lines.append(f"**{section}**\n")
        elif section and re.match(r"    \w[\w., ]*: ", line):
            name, _, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}")
        elif section and line.startswith("    "):
            lines.append(f"{'  ' if line.startswith('        ') else ''}{line.strip()}")
        else:
            lines.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def cell(text: str) -> str:
    """A text within a row of a table, with what a docstring names as code."""
    return " ".join(_marked(text).replace("|", "\\|").split())


def _marked(text: str) -> str:
    """Marks names in a docstring as code in Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")
