//go:build claudecli

package claude_test

import (
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// TestCLIResumedModel has a session go on with the model that it had, be it the node's or the program's choice.
func TestCLIResumedModel(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		for name, choose := range map[string]func(*agent.Options){
			"by the flow":        func(o *agent.Options) { o.Model = "opus[1m]" },
			"by the environment": func(o *agent.Options) { o.Env["ANTHROPIC_MODEL"] = "opus[1m]" },
			"by nobody":          func(*agent.Options) {},
		} {
			t.Run(name, func(t *testing.T) {
				r := l.request(t, "plain")
				choose(&r.Options)
				events := l.run(t, r, nil)
				had := model(events)
				r.Resume, r.Prompt = true, wire.RawString("Lab run [[scn:plain]]")
				r.History = func(yield func(*wire.Event, error) bool) {
					for _, e := range events {
						if !yield(e, nil) {
							return
						}
					}
				}
				if got := model(l.run(t, r, nil)); got != had || had == "" {
					t.Errorf("the session had %q and goes on with %q", had, got)
				}
				r.Options.Model = "" // as if the flow had named none
				delete(r.Options.Env, "ANTHROPIC_MODEL")
				if got := model(l.run(t, r, nil)); got != had {
					t.Errorf("the session had %q and goes on with %q, which nobody names", had, got)
				}
			})
		}
	})
}

// model is the model that the agent says it has.
func model(events []*wire.Event) string {
	for _, e := range events {
		if p, ok := e.Payload.(*wire.AgentInit); ok {
			return p.Model
		}
	}
	return ""
}

// TestCLISessionAfterUnknown begins a session by the id that the program has just said it doesn't
// know.
func TestCLISessionAfterUnknown(t *testing.T) {
	versions(t, func(t *testing.T, l lab) {
		r := l.request(t, "plain")
		r.Resume = true
		l.run(t, r, nil)
		r.Resume = false
		events := l.run(t, r, nil)
		if p, ok := events[len(events)-1].Payload.(*wire.AgentComplete); !ok || events[len(events)-1].SessionID != r.SessionID {
			t.Errorf("last event %+v of session %q, want session %q", p, events[len(events)-1].SessionID, r.SessionID)
		}
	})
}
