// Package hook asks others what they think of what an agent is about to do or has
// done: commands, HTTP endpoints and NATS subjects, which a flow or a node names.
//
// The hooks that match an event are asked one after the other, those of the flow
// first, each within its time limit; the strongest answer counts. A hook that fails,
// or can't be asked at all, is logged, is on record, and counts for nothing: hooks
// never end a run by being broken.
//
//	before a tool is used   deny > modify (the first) > allow > continue
//	elsewhere               stop > system > context > continue
//
// Texts of the same strength for the model are joined.
package hook

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// Event is what happens to an agent. Its fields are there if the event has them.
type Event struct {
	Name      string // one of [flow.HookEvents]
	Turn      int
	Resumed   bool   // AgentStart: of a session that goes on
	Task      string // AgentStart: the prompt, if it is a text
	AgentID   string // of a sub-agent
	Tool      string
	ToolUseID string
	Input     wire.Raw // of the tool
	Result    wire.Raw // PostToolUse: of the tool; AgentStop: the agent's answer
	Error     string   // PostToolUseFailure
}

// Decision is what a hook wants.
type Decision string

// The decisions. The first three belong to PreToolUse, the next three to all other events.
const (
	Deny     Decision = "deny"    // the call isn't made; the model is told the reason
	Modify   Decision = "modify"  // it is made with another input
	Allow    Decision = "allow"   // no further permission is needed
	Stop     Decision = "stop"    // the agent comes to its end
	System   Decision = "system"  // the model is told something by its system
	Context  Decision = "context" // the model is told something
	Continue Decision = ""        // nothing; "continue" on the wire
)

// decisionsOf lists those that an event has, strongest first.
func decisionsOf(event string) []Decision {
	if event == flow.HookPreToolUse {
		return []Decision{Deny, Modify, Allow, Continue}
	}
	return []Decision{Stop, System, Context, Continue}
}

// Outcome is what the hooks want all in all. The zero value goes on.
type Outcome struct {
	Decision Decision
	Reason   string   // Deny and Stop; may be empty
	Message  string   // System and Context
	Input    wire.Raw // Modify: an object
	Hook     string   // the name of the hook that decided
}

// Config is what a [Set] is made of.
type Config struct {
	Hooks                 []flow.Hook
	RunID, NodeID, ExecID string
	Host                  process.Host // of commands; default: [process.Direct]
	Dir                   string       // in which they run
	Env                   []string     // their whole environment
	Client                *http.Client // default: [http.DefaultClient]; redirections aren't followed
	// Ask asks a NATS subject; nil: such hooks fail.
	Ask    func(ctx context.Context, subject string, question []byte) ([]byte, error)
	Logger *slog.Logger // default: none
}

// Set is the hooks of an execution. Nil is an empty one. It may be used by several
// goroutines at once.
type Set struct {
	cfg   Config
	hooks []hook
}

// hook is a hook that can be asked.
type hook struct {
	flow.Hook

	name  string
	match *regexp.Regexp
}

// New returns the hooks that can be asked. The others are logged.
func New(c Config) *Set {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Host == nil {
		c.Host = process.Direct{}
	}
	s := &Set{cfg: c}
	s.cfg.Client = directClient(c.Client)
	for _, h := range c.Hooks {
		one := hook{Hook: h, name: nameOf(h)}
		if err := one.prepareMatch(); err != nil {
			c.Logger.Warn("hook is never asked", "run_id", c.RunID, "node_id", c.NodeID, "hook", one.name, "error", err)
			continue
		}
		s.hooks = append(s.hooks, one)
	}
	return s
}

func (h *hook) prepareMatch() (err error) {
	count := 0
	for _, there := range []bool{len(h.Command) > 0, h.URL != "", h.Subject != ""} {
		if there {
			count++
		}
	}
	switch {
	case !slices.Contains(flow.HookEvents(), h.Event):
		return fmt.Errorf("event %q is unknown; it is one of %s", h.Event, strings.Join(flow.HookEvents(), ", "))
	case count != 1:
		return fmt.Errorf("it has %d of command, url and subject, not one", count)
	}
	h.match, err = flow.MatcherPattern(h.Matcher)
	return err
}

// nameOf is the name of a hook on record: without what may be secret in an address.
func nameOf(h flow.Hook) string {
	if h.Name != "" {
		return cutText(h.Name, maxName)
	}
	name := cmp.Or(strings.Join(h.Command, " "), h.Subject, "unnamed")
	if len(h.Command) == 3 && h.Command[1] == "-c" {
		name = h.Command[2]
	}
	if u, err := url.Parse(h.URL); h.URL != "" && err == nil {
		name = u.Scheme + "://" + u.Host + u.Path
	}
	line, _, _ := strings.Cut(strings.TrimSpace(name), "\n")
	return cutText(line, maxDefaultName)
}

// Has reports whether a hook may be asked about an event.
func (s *Set) Has(event string) bool { return s.Limit(event) > 0 }

// Limit is how long Fire takes at most, whichever tool the event is about.
func (s *Set) Limit(event string) time.Duration {
	var sum time.Duration
	if s == nil {
		return sum
	}
	for _, h := range s.hooks {
		if h.Event == event {
			sum += h.timeLimit() + grace
		}
	}
	return sum
}

// defaultLimit bounds the answer of a hook that names no limit, grace the end of a
// command that keeps none.
const (
	defaultLimit = 10 * time.Second
	grace        = time.Second
)

func (h *hook) timeLimit() time.Duration {
	if h.TimeoutMs > 0 {
		return time.Duration(h.TimeoutMs) * time.Millisecond
	}
	return defaultLimit
}

// matchesEvent reports whether the hook is asked. Where there is no tool, the matcher counts
// for nothing.
func (h *hook) matchesEvent(e Event) bool {
	return h.Event == e.Name && (e.Tool == "" || h.Matcher == "" || h.match.MatchString(e.Tool))
}

// Fire asks the hooks that match, and returns the outcome and what is to be recorded of
// each. If ctx ends, so do they: nothing comes of those that haven't answered.
func (s *Set) Fire(ctx context.Context, e Event) (Outcome, []*wire.HookFired) {
	if s == nil {
		return Outcome{}, nil
	}
	var answers []Outcome
	var fired []*wire.HookFired
	for i := range s.hooks {
		h := &s.hooks[i]
		if !h.matchesEvent(e) || ctx.Err() != nil {
			continue
		}
		begin := time.Now()
		a, exit, err := s.askHook(ctx, i, e)
		f := &wire.HookFired{
			HookEvent: e.Name, HookName: h.name, Decision: cmp.Or(string(a.Decision), "continue"),
			Output: cutText(cmp.Or(a.Reason, a.Message), maxOutput), DurationMs: new(time.Since(begin).Milliseconds()), ExitCode: exit,
		}
		if err != nil {
			s.cfg.Logger.Warn("hook failed", "run_id", s.cfg.RunID, "node_id", s.cfg.NodeID, "event", e.Name, "hook", h.name, "error", err)
			f.Decision, f.Error = "", cutText(err.Error(), maxOutput)
		} else {
			a.Hook = h.name
			answers = append(answers, a)
		}
		fired = append(fired, f)
	}
	return strongestOutcome(e.Name, answers), fired
}

// strongestOutcome returns what counts of several answers: the first of the strongest. What
// several of them have for the model is joined.
func strongestOutcome(event string, answers []Outcome) Outcome {
	for _, d := range decisionsOf(event) {
		i := slices.IndexFunc(answers, func(a Outcome) bool { return a.Decision == d })
		if i < 0 {
			continue
		}
		out := answers[i]
		for _, a := range answers[i+1:] {
			if a.Decision == d && a.Message != "" {
				out.Message += "\n" + a.Message
			}
		}
		out.Message = cutText(out.Message, 2*maxMessage)
		return out
	}
	return Outcome{}
}

// How much of a hook's name, and of its words and errors, is on record, in bytes.
const (
	maxName        = 200
	maxDefaultName = 60
	maxOutput      = 4 << 10
)

// cutText returns at most limit bytes of a text, as valid UTF-8.
func cutText(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
