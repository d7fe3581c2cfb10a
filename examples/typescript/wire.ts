// The bytes and names of wake, as far as a reader needs them: docs/wire.md, docs/subjects.md.
import { createHash } from "node:crypto";
import { decode as msgpack } from "@msgpack/msgpack";

export type Value = null | boolean | number | bigint | string | Uint8Array | Value[] | Fields;
export type Fields = { [name: string]: Value };

/**
 * Reads an event or a state. Types and fields are added to the wire at any time, so whatever is
 * there is here, known or not. An integer that a number can't hold exactly is a bigint. It throws
 * on what isn't msgpack, and on a key "__proto__", which a tool's input may have: go on with the next.
 */
export function decode(bytes: Uint8Array): Fields {
  const value = exact(msgpack(bytes, { useBigInt64: true }) as Value);
  if (value === null || typeof value !== "object" || Array.isArray(value) || value instanceof Uint8Array) {
    throw new TypeError("not a map");
  }
  return value;
}

function exact(v: Value): Value {
  if (typeof v === "bigint") return Number.isSafeInteger(Number(v)) ? Number(v) : v;
  if (v === null || typeof v !== "object" || v instanceof Uint8Array) return v;
  if (Array.isArray(v)) return v.map(exact);
  return Object.fromEntries(Object.entries(v).map(([name, item]) => [name, exact(item)]));
}

/** The JSON form: integers in full, and nothing that a terminal would take for a command. */
export function json(v: Value | undefined): string {
  if (v === undefined || v === null) return "null";
  if (typeof v === "string") return JSON.stringify(v).replace(unsafe, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  if (v instanceof Uint8Array) return JSON.stringify(Buffer.from(v).toString("base64"));
  if (Array.isArray(v)) return `[${v.map(json).join(",")}]`;
  if (typeof v === "object") return `{${Object.entries(v).map(([name, item]) => `${json(name)}:${json(item)}`).join(",")}}`;
  return String(v);
}
const unsafe = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** The token of an id in subjects and keys. */
export function token(id: string): string {
  if (id === "") return "=";
  const bytes = [...Buffer.from(id)].map((b) => {
    const c = String.fromCharCode(b);
    return /[A-Za-z0-9_-]/.test(c) ? c : `=${b.toString(16).toUpperCase().padStart(2, "0")}`;
  });
  const whole = bytes.join("");
  if (whole.length <= 128) return whole;
  let head = "";
  for (const b of bytes) {
    if (head.length + b.length > 62) break;
    head += b;
  }
  return `${head}==${createHash("sha256").update(id).digest("hex")}`;
}

/** What decode makes of a message; undefined, and a line that says so, for what can't be read. */
export function read(position: number | string, bytes: Uint8Array): Fields | undefined {
  try {
    return decode(bytes);
  } catch (error) {
    console.log(`${position} can't be read: ${json(String(error))}`);
    return undefined;
  }
}
