// Prints the state of a run, and again whenever it has changed.
//
//	node dist/state.js RUN
import { Kvm } from "@nats-io/kv";
import { server } from "./server.ts";
import { type Fields, json, read, token } from "./wire.ts";

const run = process.argv[2];
if (run === undefined) {
  console.error("usage: state.js RUN");
  process.exit(2);
}
const bucket = await new Kvm(await server()).open("WAKE_SNAPSHOTS");

// Like every snapshot this is one of a position: what has happened since is in the stream behind it.
for await (const entry of await bucket.watch({ key: token(run) })) {
  if (entry.operation !== "PUT") continue;
  const state = read(entry.revision, entry.value);
  if (!state) continue;
  const blob = state.$blob as Fields | undefined;
  if (blob) {
    console.log(`large: object ${json(blob.sha256)} of WAKE_BLOBS`);
    continue;
  }
  const position = state.position as Fields;
  const usage = state.usage as Fields;
  console.log(`${position.seq} ${json(state.status)} $${Number(usage.costUsd).toFixed(4)} ${json(state.nodeStatus)}`);
}
