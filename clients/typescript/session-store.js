// The SessionStore of wake for @anthropic-ai/claude-agent-sdk: sessions are kept by `wake up`, told as runs there, and resumed
// on any machine that reaches it.
//
//     const store = new WakeSessionStore()
//     for await (const message of query({ prompt, options: { sessionStore: store } })) await store.note(message)
//
// Whatever the server refuses, and whatever it can't be reached for, rejects: the SDK tries a batch three times and then drops
// it. The next batch that comes through says so to the server, as does note() at once.

import { readFile } from 'node:fs/promises'
import { join } from 'node:path'

const maxBytes = 8 << 20 // of a request
const maxEntries = 5000 // of a request
const maxKnown = 1000 // summaries that are held

export class WakeSessionStore {
  #url // of the server, with its token; undefined: it is in a file
  #timeout
  #fold // undefined: not looked for yet; null: there is none
  #turns = new Map() // by key: the last append, which the next one waits for
  #failed = new Map() // by key: the batch that was rejected last, how many of its requests are stored, and why the next one isn't
  #losses = [] // batches that were dropped, and of which the server doesn't know
  #known = new Map() // by session: its summary, and the mtime up to which it knows all

  /**
   * @param {{ url?: string, timeoutMs?: number, foldSessionSummary?: Function }} [options] url is what the file `sessions-url`
   * of wake's data directory has; default: WAKE_SESSIONS_URL, or that file in WAKE_DATA_DIR or .wake. timeoutMs is for a request;
   * default 50 000, which is less than the SDK waits.
   */
  constructor({ url, timeoutMs = 50_000, foldSessionSummary } = {}) {
    this.#url = url
    this.#timeout = timeoutMs
    this.#fold = foldSessionSummary
  }

  async append(key, entries) {
    const name = nameOf(key)
    const before = this.#turns.get(name)
    const turn = (async () => {
      await before?.catch(() => {})
      await this.#appendBatch(name, key, entries)
    })()
    this.#turns.set(name, turn)
    try {
      await turn
    } finally {
      if (this.#turns.get(name) === turn) this.#turns.delete(name)
    }
  }

  async load(key) {
    return (await this.#ask('load', { key })).entries
  }

  async listSessions(projectKey) {
    return (await this.#ask('list', { key: { projectKey } })).sessions
  }

  async listSessionSummaries(projectKey) {
    return (await this.#ask('summaries', { key: { projectKey } })).summaries
  }

  async listSubkeys({ projectKey, sessionId }) {
    return (await this.#ask('subkeys', { key: { projectKey, sessionId } })).subkeys
  }

  async delete(key) {
    await this.#ask('delete', { key })
    this.#known.delete(nameOf(key))
  }

  /**
   * Tells the server of a batch that the SDK has dropped, if that is what the message says. It never rejects.
   * @param {unknown} message any message of a query
   */
  async note(message) {
    if (message?.type !== 'system' || message.subtype !== 'mirror_error') return
    const name = nameOf(message.key)
    const failed = this.#failed.get(name) ?? { key: message.key, parts: [], done: 0 }
    this.#failed.delete(name)
    this.#losses.push(lossOf(failed, message.error))
    await this.#tellLosses().catch(() => {})
  }

  async #appendBatch(name, key, entries) {
    if (entries.length === 0) return
    const failed = this.#failed.get(name)
    this.#failed.delete(name)
    let batch = { key, parts: split(entries), done: 0, error: '' }
    const again = failed !== undefined && failed.parts.length === batch.parts.length && failed.parts.every((part, i) => part.text === batch.parts[i].text)
    if (again) batch = failed
    else if (failed !== undefined) this.#losses.push(lossOf(failed, failed.error))
    try {
      await this.#tellLosses()
      for (; batch.done < batch.parts.length; batch.done++) await this.#appendPart(name, key, batch.parts[batch.done], again)
    } catch (error) {
      batch.error = String(error?.message ?? error)
      this.#failed.set(name, batch)
      throw error
    }
  }

  // appendPart sends a part of a batch, with the session's summary where that can be folded.
  async #appendPart(name, key, part, again) {
    const fold = key.subpath === undefined ? await this.#folder() : null
    const send = (summary) => this.#send('append', `{"key":${JSON.stringify(key)},"again":${again},${summary}"entries":${part.text}}`)
    for (let tries = 0; fold && tries < 5; tries++) {
      const known = this.#known.get(name) ?? { mtime: 0 }
      const before = known.data && { sessionId: key.sessionId, mtime: known.mtime, data: known.data }
      const { data } = fold(before, key, part.entries, { mtime: known.mtime })
      const { status, body } = await send(`"summary":${JSON.stringify({ after: known.mtime, data })},`)
      if (status !== 409) {
        this.#know(name, { mtime: body.mtime, data })
        return
      }
      if (body.summary) this.#know(name, { mtime: body.mtime, data: body.summary })
      else if (body.mtime > 0) {
        const all = await this.#ask('load', { key })
        this.#know(name, { mtime: all.mtime, data: fold(undefined, key, all.entries, { mtime: all.mtime }).data })
      } else this.#known.delete(name)
    }
    await send('')
  }

  #know(name, summary) {
    this.#known.delete(name)
    this.#known.set(name, summary)
    if (this.#known.size > maxKnown) this.#known.delete(this.#known.keys().next().value)
  }

  async #tellLosses() {
    while (this.#losses.length > 0) {
      await this.#ask('lost', this.#losses[0])
      this.#losses.shift()
    }
  }

  async #folder() {
    if (this.#fold === undefined) {
      const sdk = await import('@anthropic-ai/claude-agent-sdk').catch(() => null)
      this.#fold = sdk?.foldSessionSummary ?? null
    }
    return this.#fold
  }

  async #ask(verb, body) {
    return (await this.#send(verb, JSON.stringify(body))).body
  }

  async #send(verb, text) {
    const { url, token } = await this.#address()
    const answer = await fetch(url + 'sessions/' + verb, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: 'Bearer ' + token },
      body: text,
      signal: AbortSignal.timeout(this.#timeout),
    })
    const body = await answer.json().catch(() => ({ error: 'the answer is none' }))
    if (!answer.ok && answer.status !== 409) throw new Error(`wake: ${verb}: ${answer.status} ${body.error}`)
    return { status: answer.status, body }
  }

  // address reads where the server is each time: one that was started again may have another port.
  async #address() {
    const file = join(process.env.WAKE_DATA_DIR ?? '.wake', 'sessions-url')
    const text = this.#url ?? process.env.WAKE_SESSIONS_URL ?? (await readFile(file, 'utf8').catch((cause) => {
      throw new Error(`wake: there is no ${file}: start wake up, or give the url`, { cause })
    }))
    const url = new URL(text.trim())
    const token = new URLSearchParams(url.hash.slice(1)).get('key') ?? ''
    url.hash = ''
    return { url: url.href, token }
  }
}

function nameOf({ projectKey, sessionId, subpath }) {
  return JSON.stringify([projectKey, sessionId, subpath])
}

// lossOf says what of a batch isn't stored.
function lossOf({ key, parts, done }, error) {
  const entries = parts.slice(done).flatMap((part) => part.entries)
  const uuids = entries.map((entry) => entry.uuid).filter((uuid) => typeof uuid === 'string')
  return { key, error: String(error), lost: entries.length, uuids: uuids.slice(0, 50) }
}

// split makes requests of a batch that aren't too large.
function split(entries) {
  const parts = []
  let texts = []
  let from = 0
  let bytes = 0
  const close = (to) => {
    parts.push({ entries: entries.slice(from, to), text: `[${texts.join(',')}]` })
    texts = []
    from = to
    bytes = 0
  }
  entries.forEach((entry, i) => {
    const text = JSON.stringify(entry)
    if (texts.length > 0 && (bytes + text.length > maxBytes || texts.length >= maxEntries)) close(i)
    texts.push(text)
    bytes += text.length
  })
  close(entries.length)
  return parts
}
