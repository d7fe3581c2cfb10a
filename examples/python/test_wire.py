"""Compares what wire.py makes of every vector of the wire with its JSON, and of ids with docs/subjects.md."""

import json
import pathlib
import re
import unittest

import msgpack

from wire import decode, line, read, token

ROOT = pathlib.Path(__file__).parents[2]


class Wire(unittest.TestCase):
    def test_vectors(self):
        files = sorted((ROOT / "pkg/wire/testdata/v1").glob("*.hex"))
        self.assertGreater(len(files), 100)
        for file in files:
            with self.subTest(file.name):
                data = bytes.fromhex(file.read_text())
                event = decode(data)
                # Compared as text: 1, 1.0 and True are equal in Python.
                self.assertEqual(line(event), line(json.loads(file.with_suffix(".json").read_text())))
                self.assertEqual(msgpack.packb(event), data)

    def test_unknown_survives(self):
        event = {"v": 1, "type": "from:the:future", "runId": "r", "aFuture": [{"deep": 2**64 - 1}]}
        self.assertEqual(decode(msgpack.packb(event)), event)

    def test_hostile_bytes_end_nothing(self):
        for data in (b"", b"\x91\x01", b"\xc1", b"\x81\xa1\xff\x01", b"\x91" * 5000, b"\x81\xa1a\x01\x01", b"\x81\x01\x01"):
            self.assertIsNone(read(1, data), data[:4])
        self.assertEqual(line("\x1b[2J\u202e\x9b\x7f"), '"\\u001b[2J\\u202e\\u009b\\u007f"')

    def test_tokens(self):
        text = (ROOT / "docs/subjects.md").read_text()
        rows = text.split("<!-- generated: escape -->")[1].split("<!-- end -->")[0]
        cases = re.findall(r"^\| `(.+)` \| `(.+)` \|$", rows, re.MULTILINE)
        self.assertGreaterEqual(len(cases), 6)
        for run, want in cases:
            if many := re.fullmatch(r"(\d+) times (.)", run):
                run = many[2] * int(many[1])
            self.assertEqual(token(run), want)


if __name__ == "__main__":
    unittest.main()
