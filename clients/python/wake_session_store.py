"""The SessionStore of wake for Anthropic's Agent SDK: sessions are kept by `wake up`, told as runs there, and resumed on any
machine that reaches it. It needs the standard library only.

    store = WakeSessionStore()
    options = ClaudeAgentOptions(session_store=store)
    async for message in query(prompt=..., options=options):
        await store.note(message)

Whatever the server refuses, and whatever it can't be reached for, raises: the SDK tries a batch three times and then drops it.
The next batch that comes through says so to the server, as does note() at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable

MAX_BYTES = 8 << 20  # of a request
MAX_ENTRIES = 5000  # of a request

Key = dict[str, str]  # project_key, session_id and, for what is below a session, subpath


class StoreError(Exception):
    """The server refuses, or can't be reached."""


class _Batch:
    """A batch that was rejected: its requests, how many of them are stored, and why the next one isn't."""

    def __init__(self, key: Key, parts: list[str]) -> None:
        self.key, self.parts, self.done, self.error = key, parts, 0, ""


class WakeSessionStore:
    """Keeps sessions at `wake up`.

    url is what the file `sessions-url` of wake's data directory has; default: WAKE_SESSIONS_URL, or that file in WAKE_DATA_DIR
    or .wake. timeout is for a request, in seconds; default 50, which is less than the SDK waits. fold is the SDK's function
    that folds entries into a summary, (previous, key, entries) -> summary; default: none, and whoever lists sessions reads them.
    """

    def __init__(self, url: str | None = None, timeout: float = 50, fold: Callable[..., dict[str, Any]] | None = None) -> None:
        self._url, self._timeout, self._fold = url, timeout, fold
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # tokens are for the server alone
        self._locks: dict[str, asyncio.Lock] = {}
        self._failed: dict[str, _Batch] = {}
        self._losses: list[dict[str, Any]] = []
        self._known: dict[str, tuple[int, Any]] = {}  # by session: the mtime up to which its summary knows all, and that

    async def append(self, key: Key, entries: list[dict[str, Any]]) -> None:
        if not entries:
            return
        name = _name(key)
        async with self._locks.setdefault(name, asyncio.Lock()):
            batch, failed = _Batch(key, _split(entries)), self._failed.pop(name, None)
            again = failed is not None and failed.parts == batch.parts
            if again and failed is not None:
                batch = failed
            elif failed is not None:
                self._losses.append(_loss(failed, failed.error))
            try:
                await self._tell_losses()
                while batch.done < len(batch.parts):
                    await self._append_part(name, key, batch.parts[batch.done], again)
                    batch.done += 1
            except BaseException as error:
                batch.error = str(error) or type(error).__name__
                self._failed[name] = batch
                raise

    async def load(self, key: Key) -> list[dict[str, Any]] | None:
        return (await self._ask("load", {"key": _wire(key)}))["entries"]

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        found = (await self._ask("list", {"key": {"projectKey": project_key}}))["sessions"]
        return [{"session_id": s["sessionId"], "mtime": s["mtime"]} for s in found]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        found = (await self._ask("summaries", {"key": {"projectKey": project_key}}))["summaries"]
        return [{"session_id": s["sessionId"], "mtime": s["mtime"], "data": s["data"]} for s in found]

    async def list_subkeys(self, key: Key) -> list[str]:
        return (await self._ask("subkeys", {"key": {"projectKey": key["project_key"], "sessionId": key["session_id"]}}))["subkeys"]

    async def delete(self, key: Key) -> None:
        await self._ask("delete", {"key": _wire(key)})
        self._known.pop(_name(key), None)

    async def note(self, message: Any) -> None:
        """Tells the server of a batch that the SDK has dropped, if that is what the message says. It never raises."""
        if getattr(message, "subtype", None) != "mirror_error":
            return
        data = getattr(message, "data", None) or {}
        key, error = getattr(message, "key", None) or data.get("key") or {}, getattr(message, "error", None) or data.get("error")
        key = {"project_key": key.get("project_key") or key.get("projectKey"), "session_id": key.get("session_id") or key.get("sessionId"),
               **({"subpath": key["subpath"]} if key.get("subpath") else {})}
        failed = self._failed.pop(_name(key), None) or _Batch(key, [])
        self._losses.append(_loss(failed, str(error)))
        try:
            await self._tell_losses()
        except Exception:  # the next batch that comes through tells it
            pass

    async def _append_part(self, name: str, key: Key, part: str, again: bool) -> None:
        def body(summary: str) -> str:
            return f'{{"key":{json.dumps(_wire(key))},"again":{json.dumps(again)},{summary}"entries":{part}}}'

        for _ in range(5 if self._fold and "subpath" not in key else 0):
            mtime, data = self._known.get(name, (0, None))
            before = None if data is None else {"session_id": key["session_id"], "mtime": mtime, "data": data}
            data = self._fold(before, key, json.loads(part))["data"]
            status, answer = await self._send("append", body(f'"summary":{json.dumps({"after": mtime, "data": data})},'))
            if status != 409:
                self._known[name] = (answer["mtime"], data)
                return
            if answer["summary"] is None and answer.get("mtime"):
                whole = await self._ask("load", {"key": _wire(key)})
                self._known[name] = (whole["mtime"], self._fold(None, key, whole["entries"])["data"])
            else:
                self._known[name] = (answer.get("mtime", 0), answer["summary"])
        await self._send("append", body(""))

    async def _tell_losses(self) -> None:
        while self._losses:
            await self._ask("lost", self._losses[0])
            self._losses.pop(0)

    async def _ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return (await self._send(verb, json.dumps(body)))[1]

    async def _send(self, verb: str, body: str) -> tuple[int, dict[str, Any]]:
        return await asyncio.to_thread(self._post, verb, body.encode())

    def _post(self, verb: str, body: bytes) -> tuple[int, dict[str, Any]]:
        url, token = self._address()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
        request = urllib.request.Request(f"{url}sessions/{verb}", body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                try:
                    told = json.load(refused)
                except ValueError:
                    told = {"error": "the answer is none"}
            if refused.code == 409:
                return 409, told
            raise StoreError(f"wake: {verb}: {refused.code} {told.get('error')}") from None
        except OSError as error:
            raise StoreError(f"wake: {verb}: {error}") from error

    def _address(self) -> tuple[str, str]:
        """Reads where the server is each time: one that was started again may have another port."""
        text = self._url or os.environ.get("WAKE_SESSIONS_URL")
        if not text:
            file = os.path.join(os.environ.get("WAKE_DATA_DIR", ".wake"), "sessions-url")
            try:
                with open(file, encoding="utf-8") as f:
                    text = f.read()
            except OSError as error:
                raise StoreError(f"wake: there is no {file}: start wake up, or give the url") from error
        url, fragment = urllib.parse.urldefrag(text.strip())
        return url.rstrip("/") + "/", urllib.parse.parse_qs(fragment).get("key", [""])[0]


def _name(key: Key) -> str:
    return json.dumps([key.get("project_key"), key.get("session_id"), key.get("subpath")])


def _wire(key: Key) -> dict[str, str]:
    wire = {"projectKey": key["project_key"], "sessionId": key["session_id"]}
    if "subpath" in key and key["subpath"] is not None:
        wire["subpath"] = key["subpath"]
    return wire


def _loss(batch: _Batch, error: str) -> dict[str, Any]:
    """Says what of a batch isn't stored."""
    entries = [entry for part in batch.parts[batch.done:] for entry in json.loads(part)]
    uuids = [e["uuid"] for e in entries if isinstance(e.get("uuid"), str)]
    return {"key": _wire(batch.key), "error": error, "lost": len(entries), "uuids": uuids[:50]}


def _split(entries: list[dict[str, Any]]) -> list[str]:
    """Makes requests of a batch that aren't too large."""
    parts: list[str] = []
    texts: list[str] = []
    size = 0
    for entry in entries:
        text = json.dumps(entry, allow_nan=False)
        if texts and (size + len(text) > MAX_BYTES or len(texts) >= MAX_ENTRIES):
            parts.append("[" + ",".join(texts) + "]")
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    parts.append("[" + ",".join(texts) + "]")
    return parts
