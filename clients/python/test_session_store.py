"""Run by `make test-clients`, against a server of wake: WAKE_SESSIONS_URL."""

import itertools
import types
import unittest
from unittest import mock

from wake_session_store import StoreError, WakeSessionStore

numbers = itertools.count(1)
A, B, MODE = {"type": "a", "uuid": "1"}, {"type": "b", "uuid": "2"}, {"type": "mode"}


def fresh(session="s"):
    return {"project_key": f"-py-{next(numbers)}", "session_id": session}


def fold(before, key, entries):
    """Stands for the SDK's: it lists what it has seen."""
    return {"session_id": key["session_id"], "mtime": 0, "data": {"seen": (before["data"]["seen"] if before else []) + [e["type"] for e in entries]}}


class Contract(unittest.IsolatedAsyncioTestCase):
    async def test_entries(self):
        store, key = WakeSessionStore(), fresh()
        odd = {"type": "odd", "n": 1.5, "big": 10**30, "text": "a\0\u2028😀 <b>&\"\n\ud800", "none": None, "deep": {"list": [{}, [], "", True]}}
        await store.append(key, [A, odd, MODE])
        await store.append(key, [MODE, A])
        await store.append(key, [B])
        self.assertEqual([A, odd, MODE, MODE, B], await store.load(key))
        self.assertIsNone(await store.load(fresh()))
        await store.append(fresh(), [])

    async def test_subpaths(self):
        store, key = WakeSessionStore(), fresh()
        one, two = {**key, "subpath": "subagents/agent-1"}, {**key, "subpath": "subagents/agent-2"}
        for k, e in ((key, A), (one, B), (two, MODE)):
            await store.append(k, [e])
        self.assertEqual(["subagents/agent-1", "subagents/agent-2"], await store.list_subkeys(key))
        (session,) = await store.list_sessions(key["project_key"])
        self.assertEqual(("s", int), (session["session_id"], type(session["mtime"])))
        await store.delete(one)
        self.assertEqual(["subagents/agent-2"], await store.list_subkeys(key))
        await store.delete(key)
        self.assertEqual((None, [], []), (await store.load(key), await store.list_subkeys(key), await store.list_sessions(key["project_key"])))
        with self.assertRaisesRegex(StoreError, "400"):
            await store.append({**key, "subpath": ""}, [A])

    async def test_summaries(self):
        key, stores = fresh(), [WakeSessionStore(fold=fold), WakeSessionStore(fold=fold), WakeSessionStore()]
        for n in range(6):
            await stores[n % 3].append(key, [{"type": f"t{n}"}])
        await stores[0].append(key, [A])
        (summary,) = await stores[1].list_session_summaries(key["project_key"])
        self.assertEqual(["t0", "t1", "t2", "t3", "t4", "t5", "a"], summary["data"]["seen"])
        self.assertEqual((await stores[1].list_sessions(key["project_key"]))[0]["mtime"], summary["mtime"])

    async def test_tried_again(self):
        store, key = WakeSessionStore(), fresh()
        await store.append(key, [MODE])
        post, batch = store._post, [{"type": "mode", "n": n} for n in range(12_000)]

        def lose(verb, body):
            post(verb, body)
            raise StoreError("the answer is lost")

        with mock.patch.object(store, "_post", lose), self.assertRaises(StoreError):
            await store.append(key, batch)
        await store.append(key, batch)
        self.assertEqual([MODE, *batch], await store.load(key))

    async def test_dropped(self):
        store, key = WakeSessionStore(), fresh("dropped-py")

        def refuse(verb, body):
            raise StoreError("no room")

        with mock.patch.object(store, "_post", refuse), self.assertRaises(StoreError):
            await store.append(key, [A])
        await store.append(key, [B])
        self.assertEqual([B], await store.load(key))
        with mock.patch.object(store, "_post", refuse), self.assertRaises(StoreError):
            await store.append(key, [MODE])
        where = {"project_key": key["project_key"], "session_id": key["session_id"]}
        await store.note(types.SimpleNamespace(subtype="mirror_error", error="three times", key=where))
        await store.note(types.SimpleNamespace(subtype="init"))

    async def test_address(self):
        with self.assertRaises(StoreError):
            await WakeSessionStore("http://127.0.0.1:1/#key=x").load(fresh())


if __name__ == "__main__":
    unittest.main()
