package native

import (
	"context"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

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

// hookText is what the hooks have for the model.
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
