"""Writes serving/rest/openapi.json, the description of the HTTP API, out of the contract and the table of addresses.

With --check, says whether what is committed is up to date. Nothing in it is written by hand but what HTTP has and the
contract has not: headers, errors, forms, health, and the shape of OpenAI's moderations.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from generate_proto import contract
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from court.verdict import Decision
from memecourt.v1 import court_pb2 as wire
from serving.rest.api import TIMEOUT, USUAL_TIMEOUT_S
from serving.rest.app import OPENAPI, WEBHOOK_KEYS
from serving.rest.bodies import BODY_BYTES
from serving.rest.events import LINES
from serving.rest.moderations import CATEGORIES, MODEL
from serving.rest.moderations import PATH as MODERATIONS
from serving.rest.operations import JUDGE, OPERATIONS, PICTURE, Operation, Source

F = FieldDescriptor
INTEGERS = {F.TYPE_INT32: "int32", F.TYPE_UINT32: "int32"}
# Strings in the JSON of protobuf, because a double can not carry 64 bits.
LONG = {F.TYPE_INT64: "int64", F.TYPE_UINT64: "uint64"}
WELL_KNOWN = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "description": 'Seconds, as "1.5s".'},
}
PROBLEM = {
    "type": "object",
    "description": 'An error (RFC 9457). No error means "not harmful".',
    "required": ["type", "title", "status", "detail", "reason", "code"],
    "properties": {
        "type": {"type": "string", "description": "Names the kind of problem: the reason, as a URI."},
        "title": {"type": "string", "description": "The status in words."},
        "status": {"type": "integer", "description": "That of the response."},
        "detail": {"type": "string", "description": "What is wrong and what to do, for people."},
        "reason": {"type": "string", "description": "For machines; stable over versions."},
        "code": {"type": "string", "description": "The name of the google.rpc.Code that a caller over gRPC gets."},
        "field": {"type": "string", "description": "The part of the request that is at fault."},
        "trial_id": {"type": "string", "description": "The trial that failed, where one was begun."},
        "retry_after_s": {
            "type": "number",
            "description": "Seconds to wait before asking again; absent where that is of no use.",
        },
    },
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "Judge": {"text": "when the alarm rings", "content": {"namespace": "forum", "id": "post-17"}},
    "ReviewVerdict": {
        "outcome": "overruled", "label": "not_harmful", "reason": "It quotes it to answer it.", "reviewer": "ada",
    },
    "OpenAppeal": {"trial_id": "71f7f6c4-7e17-4c8f-9a8a-d9bd4a1f19a6", "statement": "It is satire.", "by": "forum"},
    "SearchPrecedents": {"text": "when the alarm rings", "k": 3},
    "AddPrecedent": {"text": "when the alarm rings", "label": "not_harmful", "who": "ada", "why": "as was decided"},
}  # fmt: skip
MODERATION = {
    "type": "object",
    "required": ["id", "model", "results"],
    "properties": {
        "id": {"type": "string"},
        "model": {"type": "string", "description": f"Always {MODEL}."},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["flagged", "categories", "category_scores", "category_applied_input_types", "memecourt"],
                "properties": {
                    "flagged": {"type": "boolean", "description": "True unless the decision is allow."},
                    "categories": {"type": "object", "additionalProperties": {"type": "boolean"}},
                    "category_scores": {"type": "object", "additionalProperties": {"type": "number"}},
                    "category_applied_input_types": {
                        "type": "object",
                        "additionalProperties": {"type": "array", "items": {"type": "string"}},
                    },
                    "memecourt": {"$ref": "#/components/schemas/JudgeResponse"},
                },
            },
        },
    },
    "description": f"OpenAI's shape. Categories: {', '.join(CATEGORIES)}.",
}
MODERATION_REQUEST = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "model": {"type": "string", "description": "Any."},
        "input": {
            "description": "A text, several texts, or parts that are one meme: of type text, or image_url with an "
            "address that holds the picture (data:) or that this server fetches from.",
            "oneOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "object"}},
            ],
        },
        "content": {"$ref": "#/components/schemas/Content"},
    },
}


def comments() -> dict[str, str]:
    """The comment on each part of the contract, by full name."""
    file = contract()
    found = {}
    for location in file.source_code_info.location:
        if location.leading_comments and len(location.path) % 2 == 0:  # of a part, and not of the file
            name, place = file.package, file
            path = list(location.path)
            while path:
                # A path is pairs: the number of a field, and the place in the list that this field is.
                number, index, *path = path
                fields = type(place).DESCRIPTOR.fields_by_number
                place = getattr(place, fields[number].name)[index]
                name += f".{place.name}"
            found[name] = " ".join(location.leading_comments.split())
    return found


class Description:
    """The description as it grows."""

    def __init__(self) -> None:
        self.comments = comments()
        self.schemas: dict[str, Any] = {"Problem": PROBLEM}
        self.names: set[str] = set()
        inputs = {operation.descriptor.input_type for operation in OPERATIONS}
        self.in_requests = set().union(*map(reachable, inputs))

    def comment(self, name: str) -> dict[str, str]:
        """The description of a part of the contract, where it has one."""
        return {"description": self.comments[name]} if name in self.comments else {}

    def reference(self, message: Descriptor) -> dict[str, Any]:
        """A schema that refers to a message's, which is added where it is not there yet."""
        if message.full_name in WELL_KNOWN:
            return dict(WELL_KNOWN[message.full_name])
        if message.name not in self.schemas:
            self.schemas[message.name] = {}  # messages may hold each other
            schema: dict[str, Any] = {"type": "object", **self.comment(message.full_name)}
            schema["properties"] = {field.name: self.field(field) for field in message.fields}
            if message not in self.in_requests:
                # What has no presence stands in every response.
                schema["required"] = [field.name for field in message.fields if not field.has_presence]
            if message.full_name == wire.JudgeResponse.DESCRIPTOR.full_name:
                schema["properties"]["decision"]["enum"] = list(Decision)
            if message is JUDGE.descriptor.input_type:
                # gRPC can't tell the two apart.
                schema["properties"][PICTURE]["description"] += (
                    " Over HTTP one that is sent and has no bytes is refused: leave it out for a text alone."
                )
                schema["properties"]["image_url"] = {
                    "type": "string",
                    "description": "In place of image: an address that holds the picture (data:), or https at a host "
                    "that this server fetches pictures from (http_fetch_hosts; none by itself).",
                }
            self.schemas[message.name] = schema
        return {"$ref": f"#/components/schemas/{message.name}"}

    def field(self, field: FieldDescriptor) -> dict[str, Any]:
        """The schema of a field."""
        comment = self.comment(field.full_name)
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            return {"type": "object", "additionalProperties": self.value(message.fields_by_name["value"]), **comment}
        if field.is_repeated:
            return {"type": "array", "items": self.value(field), **comment}
        return {**self.value(field), **comment}

    def value(self, field: FieldDescriptor) -> dict[str, Any]:
        """The schema of a value of a field."""
        if field.message_type is not None:
            return self.reference(field.message_type)
        if field.enum_type is not None:
            name = field.enum_type.name
            if name not in self.schemas:
                meanings = [
                    f"{value.name}: {self.comments.get(f'{wire.DESCRIPTOR.package}.{name}.{value.name}', '')}"
                    for value in field.enum_type.values
                ]
                self.schemas[name] = {
                    "type": "string",
                    "enum": [value.name for value in field.enum_type.values],
                    "description": " ".join((self.comments.get(field.enum_type.full_name, ""), *meanings)),
                }
            return {"$ref": f"#/components/schemas/{name}"}
        if field.type in LONG:
            return {"type": "string", "format": LONG[field.type]}
        if field.type in INTEGERS:
            return {"type": "integer", "format": INTEGERS[field.type]}
        simple = {F.TYPE_BOOL: "boolean", F.TYPE_DOUBLE: "number", F.TYPE_STRING: "string"}
        if field.type == F.TYPE_BYTES:
            return {"type": "string", "format": "byte", "contentEncoding": "base64"}
        return {"type": simple[field.type]}

    def parameters(self, message: Descriptor, leaving_out: set[str], before: str = "") -> list[dict[str, Any]]:
        """The parameters of a query that a message is made of."""
        found = []
        for field in message.fields:
            name = f"{before}{field.name}"
            inner = field.message_type
            if name in leaving_out or field.type == F.TYPE_BYTES:
                continue
            if inner is None or inner.full_name in WELL_KNOWN:
                found.append({"name": name, "in": "query", "schema": self.field(field)})
            elif not field.is_repeated:
                found += self.parameters(inner, leaving_out, f"{name}.")
        return found

    def operation(self, operation: Operation) -> dict[str, Any]:
        """The description of one address."""
        method: MethodDescriptor = operation.descriptor
        parameters: list[dict[str, Any]] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in operation.fields
        ]
        header = lambda name, kind, words: {  # noqa: E731
            "name": name, "in": "header", "schema": {"type": kind}, "description": words,
        }  # fmt: skip
        if operation.source is Source.QUERY:
            roots = {name.partition(".")[0] for name in operation.fields.values()}
            # Where the path chooses one member of a oneof, a query that names another one would contradict it.
            members = {field.name for each in method.input_type.oneofs if len(each.fields) > 1 for field in each.fields}
            leaving_out = {*operation.fields.values(), operation.continued_by, *(members - roots)}
            parameters += self.parameters(method.input_type, leaving_out)
        if operation.continued_by:
            parameters.append(header("Last-Event-ID", "string", "The stream goes on behind the event of this id."))
        if not method.server_streaming:
            parameters.append(
                header(TIMEOUT, "number", f"Seconds that the caller waits; {USUAL_TIMEOUT_S:g} if absent.")
            )
        if operation is JUDGE:
            parameters += [
                header("Idempotency-Key", "string", "The request_id: the same again gets the same verdict."),
                header("Prefer", "string", "respond-async, wait=5: where there is no verdict in so many seconds, 202."),
            ]
        name = method.name
        # An operationId is unique in OpenAPI, and a method may have several addresses.
        if name in self.names:
            name += "Of" + "".join(part.capitalize() for part in "_".join(operation.fields).split("_"))
        self.names.add(name)
        found: dict[str, Any] = {
            "operationId": name,
            "tags": [operation.service],
            "summary": operation.summary,
            **self.comment(method.full_name),
            "parameters": parameters,
            "responses": self.responses(operation),
        }
        if operation.source is Source.BODY:
            found["requestBody"] = {"required": True, "content": self.bodies(operation)}
        return found

    def bodies(self, operation: Operation) -> dict[str, Any]:
        """The forms of a body that an address takes."""
        message = operation.descriptor.input_type
        schema = self.reference(message)
        found: dict[str, Any] = {"application/json": {"schema": schema}}
        if operation.method in EXAMPLES:
            found["application/json"]["example"] = EXAMPLES[operation.method]
        if operation.takes_picture:
            binary = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
            form = {PICTURE: {**binary, "description": "The picture file."}, "text": {"type": "string"}}
            words = f"A JSON object: {message.name} without what stands in the other parts."
            found["multipart/form-data"] = {
                "schema": {
                    "type": "object",
                    "properties": {**form, "request": {"type": "string", "description": words}},
                }
            }
            fields = ", ".join(each["name"] for each in self.parameters(message, {PICTURE}))
            found["image/*"] = {
                "schema": {**binary, "description": f"The picture file; the rest in the query: {fields}."}
            }
        return found

    def responses(self, operation: Operation) -> dict[str, Any]:
        """The answers of an address."""
        schema = self.reference(operation.descriptor.output_type)
        if operation.lines:
            line = operation.descriptor.output_type.name
            words = (
                f"Lines, each the JSON of a {line}, as they come; an empty one now and then. The last is "
                '{"end": {}}, or {"problem": …}, a Problem, where it broke off.'
            )
            found = {"200": {"description": words, "content": {LINES: {"schema": {"type": "string"}}}}}
        elif operation.descriptor.server_streaming:
            words = (
                'Server-sent events: data of each is JSON; "end" when there are no more, "problem" where it broke off.'
            )
            found = {"200": {"description": words, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
        else:
            found = {"200": {"description": "The response.", "content": {"application/json": {"schema": schema}}}}
        if operation is JUDGE:
            later = self.reference(wire.GetVerdictResponse.DESCRIPTOR)
            found["202"] = {
                "description": "The trial has begun; ask where Location says.",
                "headers": {"Location": {"schema": {"type": "string"}}},
                "content": {"application/json": {"schema": later}},
            }
        return {**found, "default": problem()}


def problem() -> dict[str, Any]:
    """The description of an error."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": "A problem.", "content": {"application/problem+json": {"schema": schema}}}


def reachable(message: Descriptor) -> set[Descriptor]:
    """A message and all that it holds."""
    found, left = set(), [message]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += [field.message_type for field in each.fields if field.message_type is not None]
    return found


def description() -> dict[str, Any]:
    """The whole description."""
    made = Description()
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.verb.lower()] = made.operation(operation)
    paths[MODERATIONS] = {
        "post": {
            "operationId": "CreateModeration",
            "tags": ["OpenAI"],
            "summary": "Judges memes, in the shape of OpenAI's moderations.",
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": MODERATION_REQUEST, "example": {"input": "when the alarm rings"}}
                },
            },
            "responses": {
                "200": {
                    "description": "The response.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Moderation"}}},
                },
                "default": {
                    "description": "An error, in OpenAI's shape.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
            },
        }
    }
    made.schemas["Moderation"] = MODERATION
    for path, words in (("/v1/healthz", "Whether the process lives."), ("/v1/readyz", "Whether trials can be held.")):
        status = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
        content = {"application/json": {"schema": status}}
        paths[path] = {
            "get": {
                "operationId": "GetLiveness" if path.endswith("healthz") else "GetReadiness",
                "tags": ["Health"],
                "summary": words,
                "security": [],
                "responses": {
                    "200": {"description": "SERVING", "content": content},
                    "503": {"description": "NOT_SERVING", "content": content},
                },
            }
        }
    keys = {"type": "array", "items": {"type": "string"}, "description": "Each whpk_ and base64: Ed25519, v1a."}
    schema = {"type": "object", "required": ["keys"], "properties": {"keys": keys}}
    paths[WEBHOOK_KEYS] = {
        "get": {
            "operationId": "GetWebhookKeys",
            "tags": ["Webhooks"],
            "summary": "Public keys that receivers verify webhooks with.",
            "security": [],
            "responses": {"200": {"description": "The keys.", "content": {"application/json": {"schema": schema}}}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MemeCourt",
            "version": "v1",
            "description": "The contract memecourt.v1 over HTTP: messages are its own in JSON, with its names; what it "
            "does not know is refused. Only the label LABEL_NOT_HARMFUL is an acquittal: an error, another label, or "
            f"one that a client does not know is none. A body has at most {BODY_BYTES:,} bytes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The address that this description came from."}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(made.schemas.items())),
        },
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    written = json.dumps(description(), indent=1, ensure_ascii=False) + "\n"
    if not parser.parse_args().check:
        OPENAPI.write_text(written, "utf-8")
    elif OPENAPI.read_text("utf-8") != written:
        sys.exit(f"Out of date: {OPENAPI.name}. Run `make proto` and commit the result.")


if __name__ == "__main__":
    main()
