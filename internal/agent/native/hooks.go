package native

import (
	"context"

	"wake/internal/flow"
	"wake/internal/hook"
	"wake/pkg/wire"
)

// stopHook is the stop reason of an agent that a hook has ended.
const stopHook = "hook"

// fire asks the hooks about the agent itself, and does what they say.
func (s *session) fire(ctx context.Context, e hook.Event) error {
	e.Turn = s.turn
	say := func(p wire.Payload) error { return s.emit(&wire.Event{Payload: p}) }
	o, err := s.consult(ctx, e, say)
	if err != nil || e.Name == flow.HookAgentStop {
		return err
	}
	return s.heed(o, say)
}

// consult asks the hooks. Each firing is on record.
func (s *session) consult(ctx context.Context, e hook.Event, say func(wire.Payload) error) (hook.Outcome, error) {
	o, fired := s.request.Hooks.Fire(ctx, e)
	for _, f := range fired {
		if err := say(f); err != nil {
			return hook.Outcome{}, err
		}
	}
	return o, nil
}

// heed does what a hook says.
func (s *session) heed(o hook.Outcome, say func(wire.Payload) error) error {
	switch o.Decision {
	case hook.Stop:
		s.stopped.Store(true)
	case hook.System:
		return say(&wire.UserMessage{Content: "<system>" + valid(o.Message) + "</system>", Source: "synthetic"})
	case hook.Context:
		return say(&wire.UserMessage{Content: valid(o.Message), Source: "synthetic"})
	default:
	}
	return nil
}
