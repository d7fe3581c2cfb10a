"""Prints the events of a run, each with its position in the stream: those that are stored, then each
new one. With --live it prints what is published from now on.

    python3 tail.py [--live] RUN
"""

import sys

import server
from wire import line, read, token


async def main(run: str, live: bool):
    nc = await server.connect()
    subject = f"wake.events.{token(run)}.>"
    if live:  # a core subscription: it also sees what the stream then refuses, and no position
        sub = await nc.subscribe(subject)
    else:  # everything, in order, once; the server forgets the consumer when nobody reads by it
        sub = await nc.jetstream().subscribe(subject, stream="WAKE_EVENTS", ordered_consumer=True)
    while True:
        msg = await sub.next_msg(timeout=None)
        position = "-" if live else msg.metadata.sequence.stream
        if event := read(position, msg.data):
            print(position, line(event), flush=True)


if __name__ == "__main__":
    live = "--live" in sys.argv[1:2]
    if len(sys.argv) != 2 + live:
        sys.exit("usage: tail.py [--live] RUN")
    server.run(main(sys.argv[-1], live))
