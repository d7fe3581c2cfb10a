// Prints the events of a run, each with its position in the stream: those that are stored, then
// each new one. With --live it prints what is published from now on.
//
//	node dist/tail.js [--live] RUN
import { jetstream } from "@nats-io/jetstream";
import { server } from "./server.ts";
import { json, read, token } from "./wire.ts";

const live = process.argv[2] === "--live";
const run = process.argv[live ? 3 : 2];
if (run === undefined) {
  console.error("usage: tail.js [--live] RUN");
  process.exit(2);
}
const filter = `wake.events.${token(run)}.>`;
const nc = await server();

function show(position: number | string, data: Uint8Array) {
  const event = read(position, data);
  if (event) console.log(`${position} ${json(event)}`);
}

if (live) {
  // A core subscription: it also sees what the stream then refuses, and no position.
  for await (const msg of nc.subscribe(filter)) show("-", msg.data);
} else {
  // An ordered consumer: everything, in order, once. The server forgets it when nobody reads by it.
  const consumer = await jetstream(nc).consumers.get("WAKE_EVENTS", { filter_subjects: filter });
  for await (const msg of await consumer.consume()) show(msg.seq, msg.data);
}
