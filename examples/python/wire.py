"""The bytes and names of wake, as far as a reader needs them: docs/wire.md, docs/subjects.md."""

import base64
import hashlib
import json
import re

import msgpack


def decode(data: bytes) -> dict:
    """Reads an event or a state. Types and fields are added to the wire at any time, so whatever is
    there is here, known or not. Raises ValueError on what can't be read: go on with the next."""
    try:
        value = msgpack.unpackb(data)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"not msgpack: {error!r}") from error
    if not isinstance(value, dict):
        raise ValueError("not a map")
    return value


def line(value) -> str:
    """The JSON form: integers in full, and nothing that a terminal would take for a command."""
    text = json.dumps(value, separators=(",", ":"), default=lambda b: base64.b64encode(b).decode())
    return text.replace("\x7f", "\\u007f")


def token(run: str) -> str:
    """The token of an id in subjects and keys."""
    if not run:
        return "="
    escaped = [chr(b) if re.match(rb"[A-Za-z0-9_-]", bytes([b])) else f"={b:02X}" for b in run.encode()]
    if len("".join(escaped)) <= 128:
        return "".join(escaped)
    head = ""
    for piece in escaped:
        if len(head) + len(piece) > 62:
            break
        head += piece
    return f"{head}=={hashlib.sha256(run.encode()).hexdigest()}"


def read(position, data: bytes):
    """What decode makes of a message; None, and a line that says so, for what can't be read."""
    try:
        return decode(data)
    except ValueError as error:
        print(position, "can't be read:", line(str(error)), flush=True)
        return None
