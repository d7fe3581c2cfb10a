// Run by `make test-clients`, against a server of wake: WAKE_SESSIONS_URL.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { test } from 'node:test'
import { WakeSessionStore } from './session-store.js'

const url = process.env.WAKE_SESSIONS_URL
let projects = 0
const fresh = () => ({ projectKey: `-js-${++projects}`, sessionId: 's' })
// fold stands for the SDK's, which needs the SDK: it lists what it has seen.
const foldSessionSummary = (before, key, entries, { mtime }) => ({ sessionId: key.sessionId, mtime, data: { seen: [...(before?.data.seen ?? []), ...entries.map((e) => e.type)] } })
const newStore = (more) => new WakeSessionStore({ foldSessionSummary, ...more })
const a = { type: 'a', uuid: '1' }
const b = { type: 'b', uuid: '2' }
const mode = { type: 'mode' }

test('what was appended is loaded: order, deep equality, uuids once, others as they come', async () => {
  const store = newStore()
  const key = fresh()
  const odd = { type: 'odd', n: 1.5, big: 1e300, text: 'a\u0000\u2028\ud83d\ude00 <b>&"\n', none: null, deep: { list: [{}, [], '', true] } }
  await store.append(key, [a, odd, mode])
  await Promise.all([store.append(key, [mode, a]), store.append(key, [b])])
  assert.deepEqual(await store.load(key), [a, odd, mode, mode, b])
  assert.equal(await store.load(fresh()), null)
  await store.append(fresh(), [])
  assert.deepEqual(await store.listSessions(`-js-${projects}`), [])
})

test('subpaths, subkeys, projects, deletion', async () => {
  const store = newStore()
  const key = fresh()
  const other = { ...fresh() }
  await store.append(key, [a])
  await store.append({ ...key, subpath: 'subagents/agent-1' }, [b])
  await store.append({ ...key, subpath: 'subagents/agent-2' }, [mode])
  await store.append(other, [mode])
  assert.deepEqual(await store.listSubkeys(key), ['subagents/agent-1', 'subagents/agent-2'])
  const [session, ...more] = await store.listSessions(key.projectKey)
  assert.deepEqual([session.sessionId, Number.isInteger(session.mtime), more], ['s', true, []])
  await store.delete({ ...key, subpath: 'subagents/agent-1' })
  assert.deepEqual(await store.listSubkeys(key), ['subagents/agent-2'])
  await store.delete(key)
  assert.deepEqual([await store.load(key), await store.listSubkeys(key), await store.listSessionSummaries(key.projectKey)], [null, [], []])
  assert.deepEqual(await store.load(other), [mode])
  await assert.rejects(store.append({ ...key, subpath: '' }, [a]), /400/)
})

test('summaries know all entries, whoever appends', async () => {
  const key = fresh()
  const stores = [newStore(), newStore()]
  const seen = []
  for (let i = 0; i < 6; i++) {
    await stores[i % 2].append(key, [{ type: `t${i}` }])
    seen.push(`t${i}`)
  }
  await new WakeSessionStore({ foldSessionSummary: null }).append(key, [mode]) // which folds none
  await stores[0].append(key, [a])
  const [{ mtime }] = await stores[0].listSessions(key.projectKey)
  assert.deepEqual(await stores[1].listSessionSummaries(key.projectKey), [{ sessionId: 's', mtime, data: { seen: [...seen, 'mode', 'a'] } }])
  await Promise.all(stores.map((store) => store.append(key, [mode])))
  const [{ data }] = await stores[1].listSessionSummaries(key.projectKey)
  assert.equal(data.seen.length, 10)
})

// unreliable is a server in between that loses requests, or answers.
async function unreliable(run) {
  const state = { before: 0, after: 0 }
  const target = new URL(url)
  const server = createServer(async (request, response) => {
    if (state.before > 0 && state.before--) return request.socket.destroy()
    const chunks = []
    for await (const chunk of request) chunks.push(chunk)
    const { 'content-type': type, authorization } = request.headers
    const answer = await fetch(target.origin + request.url, { method: 'POST', body: Buffer.concat(chunks), headers: { 'content-type': type, authorization } })
    const text = await answer.text()
    if (state.after > 0 && state.after--) return request.socket.destroy()
    response.writeHead(answer.status, { 'content-type': 'application/json' }).end(text)
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    await run(newStore({ url: `http://127.0.0.1:${server.address().port}/${target.hash}` }), state)
  } finally {
    server.closeAllConnections()
    server.close()
  }
}

test('a batch that is tried again is there once', () =>
  unreliable(async (store, state) => {
    const key = fresh()
    await store.append(key, [mode])
    const large = Array.from({ length: 12_000 }, (_, i) => ({ type: 'mode', n: i })) // three requests
    state.after = 1
    await assert.rejects(store.append(key, large))
    state.before = 1
    await assert.rejects(store.append(key, large))
    await store.append(key, large)
    assert.equal((await store.load(key)).length, 12_001)
  }))

test('what was dropped is told', () =>
  unreliable(async (store, state) => {
    const key = { ...fresh(), sessionId: 'dropped-js' }
    state.before = 1
    await assert.rejects(store.append(key, [a]))
    await store.append(key, [b])
    assert.deepEqual(await store.load(key), [b])
    state.before = 1
    await assert.rejects(store.append(key, [mode]))
    await store.note({ type: 'system', subtype: 'mirror_error', error: 'three times', key, session_id: key.sessionId, uuid: 'x' })
    await store.note({ type: 'result' })
  }))

test('the address is that of the server, and its token is asked for', async () => {
  await assert.rejects(newStore({ url: url.replace(/key=.*/, 'key=x') }).load(fresh()), /401/)
  await assert.rejects(newStore({ url: 'http://127.0.0.1:1/#key=x' }).load(fresh()))
})
