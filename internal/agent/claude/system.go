package claude

import (
	"bytes"
	"fmt"

	"wake/internal/agent"
	"wake/pkg/wire"
)

// system takes a notice of the program about itself.
func (n *Normalizer) system(m wire.Raw) bool {
	switch str(m, "subtype") {
	case "init":
		n.systemInit(m)
	case "thinking_tokens":
		n.flushTokens("", nil)
		n.tokens = &thinkingTokens{message: m, delta: integer(m, "estimated_tokens_delta")}
	case "api_retry", "api_error":
		n.retry(m)
	case "status":
		return n.status(m)
	case "compact_boundary":
		n.compacted(either(m, "compact_metadata", "compactMetadata"))
	case "hook_response":
		n.hook(m)
	case "permission_denied":
		return n.permissionDenied(m)
	case "background_tasks_changed", "task_started", "task_updated", "task_notification":
		n.task(m)
		return false
	default:
		return false
	}
	return true
}

// systemInit is repeated at the start of every turn; it is an event when it
// says something new.
func (n *Normalizer) systemInit(m wire.Raw) {
	n.bind(m)
	n.inits++
	news := without(m, "uuid", "session_id", "type", "subtype")
	if bytes.Equal(news, n.init) {
		return
	}
	n.init = news
	n.main(&wire.AgentInit{
		Model: str(m, "model"), Cwd: str(m, "cwd"), Version: str(m, "claude_code_version"),
		PermissionMode: str(m, "permissionMode"), Tools: strs(m.Get("tools")),
		Details: without(news, "model", "cwd", "claude_code_version", "permissionMode", "tools"),
	})
}

// retry is a call of the API that failed and will be made again.
func (n *Normalizer) retry(m wire.Raw) {
	status := int(integer(m, "error_status"))
	if status == 0 {
		status = int(integer(m, "error", "status"))
	}
	kind := str(m, "error")
	if kind == "" || kind == "unknown" {
		kind = wire.ErrorNetwork
		if status != 0 {
			kind = agent.APIErrorType(status, "")
		}
	}
	attempt, of := integer(either(m, "attempt", "retryAttempt")), int(integer(either(m, "max_retries", "maxRetries")))
	message := kind
	if status != 0 {
		message += fmt.Sprintf(" (HTTP %d)", status)
	}
	n.main(&wire.AgentError{
		ErrorType: kind, Message: fmt.Sprintf("%s: retry %d/%d", message, attempt, of), Details: m,
		Severity: wire.SeverityWarning, Phase: "model", Attempt: &attempt, MaxAttempts: of,
		RetryDelayMs: optNumber(either(m, "retry_delay_ms", "retryInMs")), Status: status,
	})
}

// status tells of each request and of compactions; the end of one that failed
// has no other sign.
func (n *Normalizer) status(m wire.Raw) bool {
	if str(m, "compact_result") != "failed" {
		return false
	}
	reason := str(m, "compact_error")
	if reason == "" {
		reason = "failed"
	}
	n.main(&wire.Compaction{Error: reason, Details: without(m, "type", "subtype", "uuid", "session_id")})
	return true
}

func (n *Normalizer) compacted(meta wire.Raw) {
	n.main(&wire.Compaction{
		Trigger:    str(meta, "trigger"),
		PreTokens:  integer(either(meta, "pre_tokens", "preTokens")),
		PostTokens: integer(either(meta, "post_tokens", "postTokens")),
		DurationMs: integer(either(meta, "duration_ms", "durationMs")),
		Details:    meta,
	})
}

func (n *Normalizer) hook(m wire.Raw) {
	event := str(m, "hook_event")
	if event == "" {
		event = "unknown"
	}
	output := str(m, "output")
	if output == "" {
		output = str(m, "stdout")
	}
	p := &wire.HookFired{
		HookEvent: event, HookName: str(m, "hook_name"), Decision: str(m, "outcome"),
		ExitCode: optInteger(m, "exit_code"), Output: output, Error: str(m, "stderr"),
	}
	n.main(p)
}

// permissionDenied is a refusal by a rule, before the call's result.
func (n *Normalizer) permissionDenied(m wire.Raw) bool {
	id := str(m, "tool_use_id")
	if id == "" {
		return false
	}
	n.denied[id] = true
	by := str(m, "decision_reason_type")
	if by == "" {
		by = "rule"
	}
	n.about(id, &wire.PermissionDecided{Decision: wire.DecisionDeny, By: by, Note: str(m, "message")})
	return true
}

// shellTask is a command in the background. It may be a server that never
// ends: nobody waits for it.
const shellTask = "local_bash"

// task follows work in the background: it goes on after a result, and its end
// causes another turn.
func (n *Normalizer) task(m wire.Raw) {
	id := str(m, "task_id")
	switch str(m, "subtype") {
	case "task_started":
		n.agent(id, str(m, "task_type"), str(m, "tool_use_id"))
		if truth(m, "is_backgrounded") && str(m, "task_type") != shellTask {
			n.background[id] = true
		}
	case "background_tasks_changed":
		clear(n.background)
		for _, t := range list(m.Get("tasks")) {
			if str(t, "task_type") != shellTask {
				n.background[str(t, "task_id")] = true
			}
		}
	case "task_notification":
		if n.detached(str(m, "tool_use_id")) {
			n.notified++
		}
		delete(n.background, id)
		if sub := n.threads[str(m, "tool_use_id")]; sub != nil {
			n.endMessage(sub)
		}
	}
}

// agent notes which call started a sub-agent.
func (n *Normalizer) agent(id, kind, call string) {
	if kind != "local_agent" || id == "" || call == "" {
		return
	}
	t := n.threadOf(call)
	t.parent, t.agent = call, id
	n.agents[id] = t
}

// detached reports whether a call has its result already although its task goes
// on: it runs in the background.
func (n *Normalizer) detached(call string) bool {
	c := n.calls[call]
	return c != nil && c.done
}
