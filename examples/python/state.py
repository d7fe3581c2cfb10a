"""Prints the state of a run, and again whenever it has changed.

    python3 state.py RUN
"""

import sys

import server
from wire import line, read, token


async def main(run: str):
    nc = await server.connect()
    bucket = await nc.jetstream().key_value("WAKE_SNAPSHOTS")
    watcher = await bucket.watch(token(run))
    while True:
        entry = await watcher.updates(timeout=None)
        if entry is not None and entry.operation is None:  # None: what follows is new
            show(entry)


def show(entry):
    """Prints a state. Like every snapshot it is one of a position: what has happened since is in the
    stream behind it."""
    state = read(entry.revision, entry.value)
    if state is None:
        return
    if blob := state.get("$blob"):
        print(f"large: object {line(blob['sha256'])} of WAKE_BLOBS", flush=True)
        return
    print(state["position"]["seq"], line(state["status"]), f"${state['usage']['costUsd']:.4f}", line(state["nodeStatus"]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: state.py RUN")
    server.run(main(sys.argv[1]))
