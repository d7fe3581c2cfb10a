package native

import (
	"context"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

// permissionMode returns the mode of the options. Those of Claude Code that mean the
// same are taken too.
func permissionMode(o agent.Options) (string, error) {
	if o.PermissionMode == "" {
		return flow.NativeAuto, nil
	}
	if mode := flow.NativeModes[o.PermissionMode]; mode != "" {
		return mode, nil
	}
	return "", fmt.Errorf("native: permissionMode %q is unknown; it is one of auto, approval, readonly", o.PermissionMode)
}

// ruling is what the rules say of a call.
type ruling struct {
	decision wire.Decision // "": a human decides
	note     string
}

// ruleOnCall judges a call: a denied tool is denied, then one that isn't on the list of
// allowed tools, if there is one; then one that requires approval waits for it;
// then the mode decides. A question is always for a human.
func ruleOnCall(o agent.Options, mode string, t *tool) ruling {
	switch {
	case slices.Contains(o.DisallowedTools, t.name):
		return ruling{wire.DecisionDeny, "the tool is disallowed"}
	case len(o.AllowedTools) > 0 && !slices.Contains(o.AllowedTools, t.name):
		return ruling{wire.DecisionDeny, "the tool is not among the allowed ones"}
	case slices.Contains(o.RequireApproval, t.name), t.name == ask.Tool:
		return ruling{}
	case mode == flow.NativeApproval:
		return ruling{}
	case mode == flow.NativeReadonly && !t.reads:
		return ruling{wire.DecisionDeny, "the agent may only read"}
	}
	return ruling{wire.DecisionAllow, ""}
}

// stopHook is the stop reason of an agent that a hook has ended.
const stopHook = "hook"

// consultHooks asks the hooks about the agent itself.
func (s *session) consultHooks(ctx context.Context, e hook.Event) error {
	e.Turn = s.turn
	_, err := s.askHooks(ctx, e, func(p wire.Payload) error { return s.emit(&wire.Event{Payload: p}) })
	return err
}

// askHooks asks the hooks. What they have for the model is on record before their firing
// is: once that is, no session asks them again, and nothing is told twice.
// That they want the agent to end is what the record of their firing says.
func (s *session) askHooks(ctx context.Context, e hook.Event, say func(wire.Payload) error) (hook.Outcome, error) {
	o, fired := s.request.Hooks.Fire(ctx, e)
	if told := hookText(o); told != "" && e.Name != flow.HookAgentStop {
		if err := say(&wire.UserMessage{Content: told, Source: sourceHook}); err != nil {
			return o, err
		}
	}
	for _, f := range fired {
		if err := say(f); err != nil {
			return o, err
		}
	}
	return o, nil
}

func hookText(o hook.Outcome) string {
	switch o.Decision {
	case hook.System:
		return "<system>" + toValidUTF8(o.Message) + "</system>"
	case hook.Context:
		return toValidUTF8(o.Message)
	default:
		return ""
	}
}
