"""Helpers of tests of wire."""

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor

PACKAGE = "memecourt.v1."


def kind(pool, name):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(PACKAGE + name))


def fill(message, chance, *, depth=0):
    """Gives every field a random value other than its default."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof and len(field.containing_oneof.fields) > 1 and chance.random() < 0.5:
            continue  # fields of a oneof: the last one set stays
        count = chance.randint(1, 3) if field.is_repeated else 1
        if field.message_type and field.message_type.GetOptions().map_entry:
            values = getattr(message, field.name)
            for number in range(count):
                values[f"k{number}{chance.random()}"] = f"v{chance.random()}"
        elif field.message_type:
            if depth > 4:
                continue
            for _ in range(count):
                part = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
                part.SetInParent()
                fill(part, chance, depth=depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(value(field, chance) for _ in range(count))
        else:
            setattr(message, field.name, value(field, chance))
    return message


def value(field, chance):
    if field.enum_type:
        return chance.choice([v.number for v in field.enum_type.values if v.number])
    whole = chance.randint(1, 999_999_999)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return f"{whole}".encode() + b"\xff\x00"
    values = {
        FieldDescriptor.CPPTYPE_STRING: f"a string, {whole}: ü",
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_DOUBLE: whole / 7,
    }
    return values.get(field.cpp_type, whole)
