// Prints how the nodes of all runs end, and acknowledges each event when it is done with it: started
// again it goes on where it was. The server keeps its place under the name of a durable consumer.
//
//	node dist/results.js [NAME]
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { server } from "./server.ts";
import { json, read } from "./wire.ts";

const name = process.argv[2] ?? "example";
const nc = await server();
const manager = await jetstreamManager(nc);
await manager.consumers.add("WAKE_EVENTS", {
  durable_name: name,
  filter_subject: "wake.events.*.*.flow",
  ack_policy: AckPolicy.Explicit,
});
const consumer = await jetstream(nc).consumers.get("WAKE_EVENTS", name);

// An event may come again: after a crash before its acknowledgement, and after a reset of the
// consumer. What must not be done twice is kept by runId, nodeId and seq.
for await (const msg of await consumer.consume()) {
  const event = read(msg.seq, msg.data);
  if (!event) {
    msg.term("can't be read"); // and never comes again
    continue;
  }
  const node = event.target ?? event.nodeId; // the owner of a run writes for others, too
  if (event.type === "node:complete") console.log(`${msg.seq} ${json(event.runId)} ${json(node)} done`);
  if (event.type === "node:error") {
    console.log(`${msg.seq} ${json(event.runId)} ${json(node)} failed: ${json(event.errorType || event.error)}`);
  }
  msg.ack();
}
