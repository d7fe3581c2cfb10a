// Package acp drives any agent that speaks the Agent Client Protocol, version 1: JSON-RPC over the
// pipes of a program, such as gemini --acp or opencode acp.
//
// # What becomes of a line
//
// [fold] turns what the program says into events, and knows what was said so far. It is pure, and
// all it knows can be stored: a session goes on with a program that its runner has left by reading
// the program's journal from a resting point on.
//
//	line                                  events
//	session/new, load, resume, fork       session:bound if the agent chose the id; agent:init
//	agent_message_chunk                   agent:text:delta; at the end of the block agent:text, as Blocks says
//	agent_thought_chunk                   agent:thinking:delta, agent:thinking
//	tool_call, tool_call_update           tool:intent once the input is known, tool:state when it begins,
//	                                      agent:tool at its end, and file_changed for its diffs
//	plan                                  todo:changed
//	usage_update                          kept for the turn's end
//	session/prompt                        usage, turn:end
//	session/request_permission            permission:required, permission:decided, tool:state
//	fs/…, terminal/…                      raw, before they are served; file_changed
//	no JSON-RPC, unknown                  raw, with the reason
//
// The first update after a prompt begins the turn: user:message if a command sent it, turn:start.
// What an agent repeats while it loads a session is in the log already and passed over.
//
// # What the protocol doesn't have
//
// Calls are told when they begin or have begun: nothing holds them before their intent is on record
// (see [agent.Capabilities]), hooks can't be asked, and tools can't be taken away. A message waits for
// the end of the turn, or cuts it short. A session has no points to go back to. Tokens and cost that the
// agent doesn't tell are unknown.
package acp
