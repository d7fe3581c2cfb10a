// Package export writes a run in the formats of others, and reads the one that
// is wake's own.
//
// A format is a function of the run's events, in the order of the log: it
// writes while it reads and keeps what is open at the moment (a turn of an agent,
// spans, sums), never the run. The same events always give the same bytes.
//
//	JSONL        the wire as JSON with the hash chain; what Import takes
//	OpenHarness  events as the agent observability specification spells them
//	Claude       a session file that the Claude CLI can resume
//	Codex        a session file that Codex can resume
//	HTML         one page for people
//	OTLP         spans, as OTLP/JSON
//
// It reads the log, and Import adds to it; it can't reach an agent.
package export
