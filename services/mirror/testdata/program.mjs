// A program of the Agent SDK: SDK, STORE (our adapter), CLI, prompt, session to resume or "".
const [sdk, adapter, cli, prompt, resume] = process.argv.slice(2)
const { query, listSessions, getSessionMessages, foldSessionSummary } = await import(sdk)
const { WakeSessionStore } = await import(adapter)
const store = new WakeSessionStore({ foldSessionSummary })
const options = {
  sessionStore: store, sessionStoreFlush: 'eager', pathToClaudeCodeExecutable: cli, permissionMode: 'bypassPermissions', allowDangerouslySkipPermissions: true,
  ...(resume ? { resume } : {}), stderr: (text) => process.stderr.write(text),
}
for await (const message of query({ prompt, options })) {
  await store.note(message)
  console.log(JSON.stringify({ type: message.type, subtype: message.subtype, session: message.session_id, result: message.result }))
}
const [session] = await listSessions({ dir: process.cwd(), sessionStore: store })
const messages = await getSessionMessages(session.sessionId, { dir: process.cwd(), sessionStore: store })
console.log(JSON.stringify({ type: 'listed', session: session.sessionId, summary: session.summary, messages: messages.length }))
