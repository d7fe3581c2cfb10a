"""Prints how the nodes of all runs end, and acknowledges each event when it is done with it: started
again it goes on where it was. The server keeps its place under the name of a durable consumer.

    python3 results.py [NAME]
"""

import sys

import nats.errors
import server
from wire import line, read


async def main(name: str):
    nc = await server.connect()
    sub = await nc.jetstream().pull_subscribe("wake.events.*.*.flow", durable=name, stream="WAKE_EVENTS")
    while True:
        try:
            messages = await sub.fetch(100, timeout=30)
        except nats.errors.TimeoutError:
            continue  # nothing new
        for msg in messages:
            await handle(msg)


async def handle(msg):
    """May get an event again: after a crash before its acknowledgement, and after a reset of the
    consumer. What must not be done twice is kept by runId, nodeId and seq."""
    position = msg.metadata.sequence.stream
    event = read(position, msg.data)
    if event is None:
        await msg.term()  # and never comes again
        return
    node = event.get("target") or event.get("nodeId")  # the owner of a run writes for others, too
    if event.get("type") == "node:complete":
        print(position, line(event["runId"]), line(node), "done", flush=True)
    if event.get("type") == "node:error":
        print(position, line(event["runId"]), line(node), "failed:", line(event.get("errorType") or event["error"]), flush=True)
    await msg.ack()


if __name__ == "__main__":
    server.run(main(sys.argv[1] if len(sys.argv) > 1 else "example"))
