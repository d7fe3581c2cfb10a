package claude

import (
	"cmp"
	"fmt"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// readSystem takes a notice of the program about itself.
func (n *Normalizer) readSystem(m wire.Raw) bool {
	switch m.TextAt("subtype") {
	case "init":
		n.systemInit(m)
	case "thinking_tokens":
		n.flushTokens("", nil)
		n.tokens = &thinkingTokens{message: m, delta: integerAt(m, "estimated_tokens_delta")}
	case "api_retry", "api_error":
		n.emitRetry(m)
	case "status":
		return n.readStatus(m)
	case "compact_boundary":
		n.emitCompaction(firstValue(m, "compact_metadata", "compactMetadata"))
	case "hook_response":
		n.emitHookFired(m)
	case "permission_denied":
		return n.permissionDenied(m)
	case "background_tasks_changed", "task_started", "task_updated", "task_notification":
		n.trackTask(m)
		return false
	default:
		return false
	}
	return true
}

// systemInit is repeated at the start of every turn; it is an event when it
// says something new.
func (n *Normalizer) systemInit(m wire.Raw) {
	n.bindSession(m)
	n.inits++
	news := withoutKeys(m, "uuid", "session_id", "type", "subtype")
	hash := digestOf(news)
	if hash == n.init {
		return
	}
	n.init, n.model = hash, m.TextAt("model")
	n.emitForMain(&wire.AgentInit{
		Model: m.TextAt("model"), Cwd: m.TextAt("cwd"), Version: m.TextAt("claude_code_version"),
		PermissionMode: m.TextAt("permissionMode"), Tools: stringsOf(m.Get("tools")),
		Details: withoutKeys(news, "model", "cwd", "claude_code_version", "permissionMode", "tools"),
	})
}

// emitRetry is a call of the API that failed and will be made again.
func (n *Normalizer) emitRetry(m wire.Raw) {
	status := int(integerAt(m, "error_status"))
	status = cmp.Or(status, int(integerAt(m, "error", "status")))
	kind := m.TextAt("error")
	if kind == "" || kind == "unknown" {
		kind = wire.ErrorNetwork
		if status != 0 {
			kind = agent.APIErrorType(status, "")
		}
	}
	attempt, of := integerAt(firstValue(m, "attempt", "retryAttempt")), int(integerAt(firstValue(m, "max_retries", "maxRetries")))
	message := kind
	if status != 0 {
		message += fmt.Sprintf(" (HTTP %d)", status)
	}
	n.emitForMain(&wire.AgentError{
		ErrorType: kind, Message: fmt.Sprintf("%s: retry %d/%d", message, attempt, of), Details: m,
		Severity: wire.SeverityWarning, Phase: "model", Attempt: &attempt, MaxAttempts: of,
		RetryDelayMs: optNumber(firstValue(m, "retry_delay_ms", "retryInMs")), Status: status,
	})
}

// noteLimit notes when a limit of the account is over that has been reached.
func (n *Normalizer) noteLimit(m wire.Raw) {
	if info := m.Get("rate_limit_info"); info.TextAt("status") == "rejected" {
		n.limit = integerAt(info, "resetsAt") * 1000
	}
}

// readStatus tells of each request and of compactions; the end of one that failed
// has no other sign.
func (n *Normalizer) readStatus(m wire.Raw) bool {
	if m.TextAt("compact_result") != "failed" {
		return false
	}
	reason := cmp.Or(m.TextAt("compact_error"), "failed")
	n.emitForMain(&wire.Compaction{Error: reason, Details: withoutKeys(m, "type", "subtype", "uuid", "session_id")})
	return true
}

// emitCompaction tells that the context was summed up. The model's message before is over by that:
// its usage says how full the context was before, so it comes first.
func (n *Normalizer) emitCompaction(meta wire.Raw) {
	n.endMessage(n.threadOf(n.root))
	n.emitForMain(&wire.Compaction{
		Trigger:    meta.TextAt("trigger"),
		PreTokens:  integerAt(firstValue(meta, "pre_tokens", "preTokens")),
		PostTokens: integerAt(firstValue(meta, "post_tokens", "postTokens")),
		DurationMs: integerAt(firstValue(meta, "duration_ms", "durationMs")),
		Details:    meta,
	})
}

func (n *Normalizer) emitHookFired(m wire.Raw) {
	event := cmp.Or(m.TextAt("hook_event"), "unknown")
	output := cmp.Or(m.TextAt("output"), m.TextAt("stdout"))
	p := &wire.HookFired{
		HookEvent: event, HookName: m.TextAt("hook_name"), Decision: m.TextAt("outcome"),
		ExitCode: optInteger(m, "exit_code"), Output: output, Error: m.TextAt("stderr"),
	}
	n.emitForMain(p)
}

// permissionDenied is a refusal by a rule, before the call's result.
func (n *Normalizer) permissionDenied(m wire.Raw) bool {
	id := m.TextAt("tool_use_id")
	if id == "" {
		return false
	}
	n.denied[id] = true
	by := cmp.Or(m.TextAt("decision_reason_type"), "rule")
	n.emitForCall(id, &wire.PermissionDecided{Decision: wire.DecisionDeny, By: by, Note: m.TextAt("message")})
	return true
}

// shellTask is a command in the background. It may be a server that never
// ends: wake doesn't wait for it.
const shellTask = "local_bash"

// trackTask follows work in the background: it goes on after a result, and its end
// causes another turn.
func (n *Normalizer) trackTask(m wire.Raw) {
	id := m.TextAt("task_id")
	c := n.calls[m.TextAt("tool_use_id")]
	switch m.TextAt("subtype") {
	case "task_started":
		if c != nil {
			c.task = true
		}
		n.noteAgent(id, m.TextAt("task_type"), m.TextAt("tool_use_id"))
		if isTrue(m, "is_backgrounded") && m.TextAt("task_type") != shellTask {
			n.background[id] = true
		}
	case "background_tasks_changed":
		clear(n.background)
		for _, t := range m.Get("tasks").Items() {
			if t.TextAt("task_type") != shellTask {
				n.background[t.TextAt("task_id")] = true
			}
		}
	case "task_notification":
		if c != nil && c.done { // it runs in the background
			n.notified++
		}
		if c != nil {
			c.task = false
		}
		delete(n.background, id)
		if sub := n.threads[m.TextAt("tool_use_id")]; sub != nil {
			n.endMessage(sub)
		}
	}
}

// noteAgent notes which call started a sub-agent.
func (n *Normalizer) noteAgent(id, kind, call string) {
	if kind != "local_agent" || id == "" || call == "" {
		return
	}
	t := n.threadOf(call)
	t.Parent, t.Agent = call, id
	n.agents[id] = t
}
