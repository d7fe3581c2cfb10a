// Package claude drives the Claude Code CLI and reads what it writes.
//
// [Normalizer] turns its lines into events: those of
// `claude --output-format stream-json`, and those of its session files. It is
// pure; [Provider] runs the program around it.
//
// # What becomes of a line
//
// Every line is represented by typed events or passed on as a raw event named
// type/subtype. Nothing else happens to a line, but that a line without
// text is skipped and one that repeats an earlier line byte for byte counts once.
//
//	line                                    events
//	system/init                             the first: agent:start (unless written), agent:init;
//	                                        later ones: agent:init if anything changed
//	system/status                           raw; compaction if it tells of one that failed
//	system/thinking_tokens                  tokenCount of the next agent:thinking:delta, else raw
//	system/api_retry, api_error             agent:error, severity warning
//	system/compact_boundary                 compaction
//	system/hook_response                    hook:fired
//	system/permission_denied                permission:decided (deny)
//	system/*                                raw
//	stream_event/message_start              turn:start with the first content
//	stream_event/content_block_start        –
//	stream_event/content_block_delta        agent:text:delta, agent:thinking:delta;
//	                                        input_json_delta is assembled; raw for signatures and others
//	stream_event/content_block_stop         tool:intent if its assistant line hasn't come
//	stream_event/message_delta              usage
//	stream_event/message_stop               –
//	assistant, block text, thinking         agent:text, agent:thinking, as Blocks says
//	assistant, block *tool_use              tool:intent
//	assistant, block *tool_result           agent:tool
//	assistant, other blocks                 raw assistant/<type>
//	assistant with an error                 agent:error
//	user, block tool_result                 agent:tool; file_changed, todo:changed
//	user, text                              user:message, unless it is the prompt of agent:start
//	user, other blocks                      raw user/<type>
//	result                                  turn:end; agent:error if it failed
//	control_request/can_use_tool            permission:required
//	control_request/hook_callback           tool:intent if it isn't known, for PreToolUse; tool:state
//	                                        (EXECUTING) in permission mode bypassPermissions;
//	                                        hook:fired and permission:decided as wake's hooks say
//	control_request/mcp_message             cc_message for a valid notify_parent, else raw
//	attachment/queued_command               user:message
//	no JSON, too long                       raw malformed, with the text and the reason
//	anything else                           raw
//
// Not kept of a line that has typed events: uuid (save as the Point of a user's
// message or a result on the main thread), request_id, its own timestamp in streams, and what repeats (the start-of-message usage, the
// unchanged part of an init).
//
// # Rules
//
// Turn: the number of the model call on the main thread. It begins with the first
// content of a message, so that a stream which breaks before is no turn; a message that is
// fetched again after its stream broke goes on in the same turn. Events of
// sub-agents have no turn; Parent names the call that started them.
//
// Tools are tied together by tool_use_id and nothing else. A result without its
// call in the input is that of the tool "unknown". Calls without a result are closed
// as "interrupted" by [Normalizer.Finish].
//
// Usage is emitted once per message id: from message_delta, which has the final
// numbers, from a line of a session file that says why the message stopped, or else from the last of the message's lines (their output is final
// in session files and after a broken stream only; the last message of a turn gets
// what the result counts beyond that; sub-agents' output is a lower bound in
// streams). turn:end has in modelUsage what its result adds,
// sub-agents, compaction and other models included: totals of the program are
// cumulative, over the process and since 2.1.329 over the session.
// agent:complete has the usage of the main thread and modelUsage of everything.
//
// A block that was streamed is an event of its own only if Blocks is always, if
// its pieces don't add up to it, or if it replaces pieces of a stream that broke; then
// Supersedes names the block with the void pieces.
//
// A result that holds only the beginning of the last message's text is rebuilt
// from its blocks.
//
// A session file has no results: agent:complete is drawn from the last message,
// its duration from the times in the file.
//
// What is between wake and the program alone doesn't reach the normalizer:
// answers to wake's requests and echoes of wake's answers, the handshake of the
// parent's MCP server. A recorded stream keeps them, as raw events.
//
// # Running the program
//
// A session writes agent:start, and starts the program when that has been
// stored. It answers the hook that precedes each tool call when the call's
// tool:intent has been stored, and a question for permission when the decision
// has; where that lets the tool begin, a tool:state that says so is stored first. (A
// call that the program's own rules allow in other modes stays PENDING: wake isn't
// told.) A question that the program takes back, as it does when it is interrupted,
// is denied by "agent". It closes the program's input after a result when no message is on its way,
// no sub-agent works in the background and none has reported without an
// answer, and nothing that the agent has asked its parent waits for one; the program then exits, and everything it started is ended.
//
// # Session files
//
// The program keeps a session as lines in projects/<working folder>/<session>.jsonl
// and finds it again by its working folder. Before a session goes on, or is
// forked, the version that goes furthest is put in place: the one that is there, that
// of another working folder, or the one that [agent.Transcript] has. While
// the program runs, what the file has grown by is saved after each result, each
// message and each turn, at most once a second, and again when the program is gone.
// The program writes its file a moment after it tells of a line, so that
// what is kept of a machine that went down may lack the last second.
//
// A Point is the id of a line of that file. --resume-session-at goes back to it
// exactly in 2.1.197 and 2.1.329, with these exceptions. A message that was sent while
// the agent worked has another id in the file: it is looked up there. Results
// of calls that were made together are kept together: a fork at one of them has
// those that came after it too, and agent:error fork_inexact, a warning, says how many. A
// point that the file lacks (the machine went down before it was written, or the message
// waited together with others, which the program joins under the id of the last) keeps
// the whole file, with the same warning. A point that was rolled back or compacted away since is refused
// by the program: agent:error fork_point_not_found.
package claude
