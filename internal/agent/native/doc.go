// Package native is wake's own agent: a loop of model calls and tool calls, without
// another program.
//
// What the agent and its model have said is the fold of the execution's events and
// nothing else: the loop itself reads it from the events that it emits. An agent that
// goes on after a crash folds the same events from the log and so sends the model the
// bytes that it would have sent without the crash.
//
//	events ──fold──▶ conversation ──▶ model ──▶ agent:message ──▶ tools ──▶ agent:tool
//	  ▲                                                │                       │
//	  └────────────────────────────────────────────────┴───────────────────────┘
//
// A turn is a model call and the tool calls that it asks for. A message of the model
// counts once it is whole; what was streamed of one that isn't is rolled back. A tool
// that has a result isn't run again; one that was running when its agent died isn't
// either, unless it only reads.
package native
