package subjects

import (
	"errors"
	"fmt"
	"strings"
)

// ErrSubject is returned for a subject or a key of another form.
var ErrSubject = errors.New("subjects: unexpected form")

// Event returns the subject of an event, wake.events.<run>.<node>.<kind>.
func (n Names) Event(run, node, kind string) string {
	return n.joinTokens("events", Escape(run), Escape(node), Escape(kind))
}

// NodeEvents returns the filter of a node's events of all kinds. It is the one
// spelling of the expectation with which events are published: the server
// compares expectations that are in flight as strings, so a second spelling
// would let two writers pass.
func (n Names) NodeEvents(run, node string) string {
	return n.joinTokens("events", Escape(run), Escape(node), "*")
}

// RunEvents returns the filter of a run's events.
func (n Names) RunEvents(run string) string { return n.joinTokens("events", Escape(run), ">") }

// RunKindEvents returns the filter of a run's events of a kind.
func (n Names) RunKindEvents(run, kind string) string {
	return n.joinTokens("events", Escape(run), "*", Escape(kind))
}

// KindEvents returns the filter of all events of a kind.
func (n Names) KindEvents(kind string) string { return n.joinTokens("events", "*", "*", Escape(kind)) }

// AllEvents returns the filter of all events. It is what WAKE_EVENTS stores.
func (n Names) AllEvents() string { return n.joinTokens("events", "*", "*", "*") }

// ParseEvent is the reverse of [Names.Event]. An id that was hashed is returned
// as its token, with [ErrHashed]; otherwise it fails with [ErrSubject].
func (n Names) ParseEvent(subject string) (run, node, kind string, err error) {
	t, err := n.parseSubject(subject, "events", 3)
	if t == nil {
		return "", "", "", err
	}
	return t[0], t[1], t[2], err
}

// Command returns the subject of commands to a run, wake.cmd.<run>.
func (n Names) Command(run string) string { return n.joinTokens("cmd", Escape(run)) }

// AllCommands returns the filter of commands to all runs.
func (n Names) AllCommands() string { return n.joinTokens("cmd", "*") }

// ParseCommand is the reverse of [Names.Command]; see [Names.ParseEvent].
func (n Names) ParseCommand(subject string) (run string, err error) {
	return firstID(n.parseSubject(subject, "cmd", 1))
}

// QueueRun returns the subject of runs that want an owner, wake.queue.run.
func (n Names) QueueRun() string { return n.joinTokens("queue", "run") }

// QueueNode returns the subject of node executions that want a worker of a
// pool, wake.queue.node.<pool>.
func (n Names) QueueNode(pool string) string { return n.joinTokens("queue", "node", Escape(pool)) }

// ParseQueueNode is the reverse of [Names.QueueNode]; see [Names.ParseEvent].
func (n Names) ParseQueueNode(subject string) (pool string, err error) {
	t, err := n.parseSubject(subject, "queue", 2)
	if t == nil {
		return "", err
	}
	return t[1], err
}

// AllQueueNodes returns the filter of node executions of all pools.
func (n Names) AllQueueNodes() string { return n.joinTokens("queue", "node", "*") }

// Alert returns the subject of an alert, wake.alerts.<run>.<node>.<kind>.<key>.
// It ends in the alert's key, so that each alert has its own subject.
func (n Names) Alert(run, node, kind, key string) string {
	return n.joinTokens("alerts", Escape(run), Escape(node), Escape(kind), Escape(key))
}

// RunAlerts returns the filter of a run's alerts.
func (n Names) RunAlerts(run string) string { return n.joinTokens("alerts", Escape(run), ">") }

// AllAlerts returns the filter of all alerts. It is what WAKE_ALERTS stores.
func (n Names) AllAlerts() string { return n.joinTokens("alerts", "*", "*", "*", "*") }

// ParseAlert is the reverse of [Names.Alert]; see [Names.ParseEvent].
func (n Names) ParseAlert(subject string) (run, node, kind, key string, err error) {
	t, err := n.parseSubject(subject, "alerts", 4)
	if t == nil {
		return "", "", "", "", err
	}
	return t[0], t[1], t[2], t[3], err
}

// DeadLetter returns the subject of what a service couldn't use,
// wake.deadletter.<service>.
func (n Names) DeadLetter(service string) string { return n.joinTokens("deadletter", Escape(service)) }

// AllDeadLetters returns the filter of what no service could use.
func (n Names) AllDeadLetters() string { return n.joinTokens("deadletter", "*") }

// ParseDeadLetter is the reverse of [Names.DeadLetter]; see [Names.ParseEvent].
func (n Names) ParseDeadLetter(subject string) (service string, err error) {
	return firstID(n.parseSubject(subject, "deadletter", 1))
}

// API returns the subject of a request, wake.api.<verb>.
func (n Names) API(verb string) string { return n.joinTokens("api", Escape(verb)) }

// Ingest returns the subject of the pieces of inputs that a process takes,
// wake.ingest.<process>.
func (n Names) Ingest(process string) string { return n.joinTokens("ingest", Escape(process)) }

// AllIngest returns the filter of the pieces that all processes take.
func (n Names) AllIngest() string { return n.joinTokens("ingest", "*") }

// Matches reports whether a filter of tokens, * and > selects a subject.
func Matches(filter, subject string) bool {
	for {
		token, rest, more := strings.Cut(filter, ".")
		its, itsRest, itsMore := strings.Cut(subject, ".")
		switch {
		case token == ">":
			return true
		case token != "*" && token != its, more != itsMore:
			return false
		case !more:
			return true
		}
		filter, subject = rest, itsRest
	}
}

func (n Names) joinTokens(tokens ...string) string {
	return n.Prefix() + "." + strings.Join(tokens, ".")
}

// parseSubject returns the ids of a subject that has count tokens after the prefix and
// room. If some are hashed, it returns them as they are, with [ErrHashed].
func (n Names) parseSubject(subject, room string, count int) ([]string, error) {
	rest, ok := strings.CutPrefix(subject, n.joinTokens(room, ""))
	if !ok {
		return nil, fmt.Errorf("%w: subject %q, want %s", ErrSubject, subject, n.joinTokens(room, ">"))
	}
	return parseTokens(rest, count)
}

func parseTokens(s string, count int) ([]string, error) {
	if strings.Count(s, ".") != count-1 {
		return nil, fmt.Errorf("%w: %q, want %d tokens", ErrSubject, s, count)
	}
	ids := strings.Split(s, ".")
	var err error
	for i, token := range ids {
		id, e := Unescape(token)
		switch {
		case errors.Is(e, ErrHashed):
			err = e
		case e != nil:
			return nil, fmt.Errorf("%w: %w", ErrSubject, e)
		case id == "":
			return nil, fmt.Errorf("%w: %q has an empty id", ErrSubject, s)
		default:
			ids[i] = id
		}
	}
	return ids, err
}

func firstID(ids []string, err error) (string, error) {
	if ids == nil {
		return "", err
	}
	return ids[0], err
}
