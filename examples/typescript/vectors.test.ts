// Compares what wire.ts makes of every vector of the wire with its JSON, and of ids with docs/subjects.md.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { encode } from "@msgpack/msgpack";
import { decode, json, read, token } from "./wire.ts";

const root = join(import.meta.dirname, "../../.."); // from dist
const vectors = join(root, "pkg/wire/testdata/v1");
const hex = readdirSync(vectors).filter((file) => file.endsWith(".hex"));

test("vectors", () => {
  assert.ok(hex.length > 100, `${hex.length} vectors`);
  for (const file of hex) {
    const event = decode(Buffer.from(readFileSync(join(vectors, file), "utf8").trim(), "hex"));
    const want = readFileSync(join(vectors, file.replace(/hex$/, "json")), "utf8").trim();
    assert.equal(json(event), want.replace(/e([+-])0(?=\d)/g, "e$1"), file); // 1e-07 is 1e-7 here
  }
});

test("what is unknown survives", () => {
  const event = { v: 1, type: "from:the:future", runId: "r", aFuture: [{ deep: 2n ** 64n - 1n }] };
  assert.deepEqual(decode(encode(event, { useBigInt64: true })), event);
});

test("hostile bytes end nothing", () => {
  const proto = Uint8Array.of(0x81, 0xa9, ...Buffer.from("__proto__"), 0x80);
  for (const bytes of [proto, Uint8Array.of(), Uint8Array.of(0x91, 0x01), Uint8Array.of(0xc1)]) {
    assert.equal(read(1, bytes), undefined);
  }
  assert.equal(json("\u001b[2J\u202e\u009b"), '"\\u001b[2J\\u202e\\u009b"');
});

test("tokens", () => {
  const rows = readFileSync(join(root, "docs/subjects.md"), "utf8").split("<!-- generated: escape -->")[1]!.split("<!-- end -->")[0]!;
  const cases = [...rows.matchAll(/^\| `(.+)` \| `(.+)` \|$/gm)];
  assert.ok(cases.length >= 6);
  for (const [, id, want] of cases) {
    const many = /^(\d+) times (.)$/.exec(id!);
    assert.equal(token(many ? many[2]!.repeat(Number(many[1])) : id!), want);
  }
});
