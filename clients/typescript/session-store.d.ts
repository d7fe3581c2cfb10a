import type { SDKMessage, SessionKey, SessionStore, SessionStoreEntry, SessionSummaryEntry, foldSessionSummary } from '@anthropic-ai/claude-agent-sdk'

export interface WakeSessionStoreOptions {
  /** What the file `sessions-url` of wake's data directory has. Default: WAKE_SESSIONS_URL, or that file in WAKE_DATA_DIR or .wake. */
  url?: string
  /** For a request. Default 50 000, which is less than the SDK waits. */
  timeoutMs?: number
  /** Default: the SDK's. */
  foldSessionSummary?: typeof foldSessionSummary
}

/** Sessions are kept by `wake up`, told as runs there, and resumed on any machine that reaches it. */
export declare class WakeSessionStore implements SessionStore {
  constructor(options?: WakeSessionStoreOptions)
  append(key: SessionKey, entries: SessionStoreEntry[]): Promise<void>
  load(key: SessionKey): Promise<SessionStoreEntry[] | null>
  listSessions(projectKey: string): Promise<Array<{ sessionId: string; mtime: number }>>
  listSessionSummaries(projectKey: string): Promise<SessionSummaryEntry[]>
  listSubkeys(key: { projectKey: string; sessionId: string }): Promise<string[]>
  delete(key: SessionKey): Promise<void>
  /** Tells the server of a batch that the SDK has dropped, if that is what the message says. It never rejects. */
  note(message: SDKMessage): Promise<void>
}
