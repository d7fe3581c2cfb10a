package alerter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// The kinds of alerts.
const (
	kindCompletion  = "completion"
	kindError       = "error"
	kindDied        = "process_died"
	kindBlocked     = "permission_blocked"
	kindStuck       = "stuck"
	kindBudget      = "budget"
	kindMilestone   = "task_milestone"
	kindBuild       = "build_result"
	kindCommit      = "git_commit"
	kindContext     = "context_pressure"
	kindSpawn       = "subagent_spawn"
	kindFailureLoop = "failure_loop"
	kindProgress    = "no_progress"
	kindMessage     = "cc_message"
	kindWaiting     = "waiting"
	kindMirror      = "mirror_error"
	kindLimit       = "model_limit"

	// Of wake itself; their run is [wire.NoRun], save for a gap.
	kindStorage = "storage_pressure"
	kindLag     = "recorder_lag"
	kindLetter  = "dead_letter"
	kindTrouble = "service_trouble"
	kindGap     = "seq_gap"
)

// kinds are all of them.
var kinds = []string{
	kindCompletion, kindError, kindDied, kindBlocked, kindStuck, kindBudget, kindMilestone, kindBuild, kindCommit, kindContext, kindSpawn,
	kindFailureLoop, kindProgress, kindMessage, kindWaiting, kindMirror, kindLimit, kindStorage, kindLag, kindLetter, kindTrouble, kindGap,
}

// detector is a pure function. It changes no state it was given, so what it
// returns can be thrown away and computed again. Its state is stored by
// [wire.Marshal]. It sees events only.
type detector[S any] func(s S, in input) (next S, found []finding)

// timedDetector is a [detector] that sees ticks, too. The deadline is when it wants to be
// told that time has passed, in Unix ms; 0: never.
type timedDetector[S any] func(s S, in input) (next S, found []finding, deadline int64)

// input is an event, or a tick: the news that a deadline has come.
type input struct {
	At    int64       // Unix ms; of an event, see [record.timeOf]
	Pos   uint64      // of the event; of a tick, of the run's last event
	Event *wire.Event // nil: a tick
	Run   run
	Spent wire.Spent // by the run until then

	Limits *limits
}

// finding is what deserves attention.
type finding struct {
	Kind     string
	Severity wire.Severity
	NodeID   string
	ExecID   string
	Armed    uint64 // position of the event that began it: the same for each alerter that finds it
	Level    string // tells apart what the same event began
	Text     string // without the prefix
	Event    string // name of the supervisor event (seeds/004 §1); "": the kind's
	Data     map[string]any
}

// finding is what the event says of its node.
func (in input) finding(kind string, severity wire.Severity, text string, data map[string]any) finding {
	return finding{Kind: kind, Severity: severity, NodeID: in.Event.Node(), ExecID: in.Event.ExecID, Armed: in.Pos, Text: text, Data: data}
}

// key names the occurrence.
func (f finding) key() string {
	key := f.Kind + "-" + strconv.FormatUint(f.Armed, 10)
	if f.Level != "" {
		key += "-" + f.Level
	}
	return key
}

// toAlert is the finding as it is stored.
func (f finding) toAlert(in input, incarnation string) (wire.Alert, error) {
	label := in.Run.alertLabel(f.NodeID)
	fields := map[string]any{"type": "event", "event": cmp.Or(f.Event, f.Kind), "agentId": label}
	maps.Copy(fields, f.Data)
	data, err := wire.Marshal(fields)
	if err != nil {
		return wire.Alert{}, err
	}
	a := wire.Alert{
		V: wire.Version, Key: f.key(), Kind: f.Kind, Severity: f.Severity,
		RunID: in.Run.ID, NodeID: f.NodeID, ExecID: f.ExecID, Label: label,
		Position: wire.Position{Incarnation: incarnation, Seq: in.Pos}, Timestamp: in.At,
		Flow: nameLine(in.Run.Flow), Labels: in.Run.Labels, ParentRun: in.Run.Parent, ParentCall: in.Run.Call,
		Text: clipText(fmt.Sprintf(textPrefix, label, f.Text), maxLine), Data: data,
	}
	if in.Event != nil {
		a.Timestamp = in.Event.Timestamp
	}
	return a, nil
}

// run is what detectors know of the run itself.
type run struct {
	ID       string                `json:"id"`
	Name     string                `json:"name,omitempty"` // the label "name"
	Flow     string                `json:"flow,omitempty"`
	Only     string                `json:"only,omitempty"` // its node, if there is one alone
	Parent   string                `json:"parent,omitempty"`
	Call     string                `json:"call,omitempty"`     // of the parent's agent, that waits for the run
	Labels   map[string]string     `json:"labels,omitempty"`   // see [wire.Alert]
	Policies map[string]nodePolicy `json:"policies,omitempty"` // of nodes that have one
	Copy     bool                  `json:"copy,omitempty"`     // imported: what happened was told where it happened
}

// alertLabel names what an alert is about: the run if it has a name, else the node. An
// alert about a run of several nodes has the flow's name.
func (r run) alertLabel(node string) string {
	if node == wire.RunNode {
		node = r.Only
	}
	return timeline.Line(cmp.Or(r.Name, node, r.Flow, r.ID), maxLabel)
}

// applyFork takes what the parent's state says. No run waits for a fork.
func (r run) applyFork(p *wire.RunForked) run {
	var s wire.State
	if wire.Unmarshal(p.State, &s) == nil {
		r.Name, r.Flow, r.Labels, r.Copy = s.Labels["name"], s.FlowName, fittingLabels(s.Labels), s.Imported == wire.ImportedCopy
		r.Policies, r.Only = nodePolicies(s.Definition)
	}
	return r
}

// applyStart takes what flow:start says.
func (r run) applyStart(p *wire.FlowStart) run {
	r.Name, r.Flow, r.Parent, r.Call = p.Labels["name"], p.FlowName, p.ParentRun, p.ParentCall
	r.Labels, r.Copy = fittingLabels(p.Labels), p.Imported == wire.ImportedCopy
	r.Policies, r.Only = nodePolicies(p.Definition)
	return r
}

// maxLabels is the size of the labels that each alert of a run carries, in bytes.
const maxLabels = 4 << 10

// fittingLabels returns the labels that fit into alerts, the first by name.
func fittingLabels(labels map[string]string) map[string]string {
	var fit map[string]string
	size := 0
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if size += len(name) + len(labels[name]); size > maxLabels {
			break
		}
		if fit == nil {
			fit = map[string]string{}
		}
		fit[name] = labels[name]
	}
	return fit
}

// earliestTime is the first of the times of values, 0 left out; 0 if there is none.
func earliestTime[V any](values map[string]V, at func(V) int64) (first int64) {
	for _, v := range values {
		if t := at(v); t > 0 {
			first = min(cmp.Or(first, t), t)
		}
	}
	return first
}

// agentOf names the agent that an event is about: the node's agent, or one of its
// sub-agents.
func agentOf(e *wire.Event) string { return e.Node() + "\n" + e.Parent }

// withoutNode returns the entries of other nodes than the given one, of a map with
// keys that begin with a node.
func withoutNode[V any](m map[string]V, node string) map[string]V {
	for key := range m {
		if strings.HasPrefix(key, node+"\n") {
			others := maps.Clone(m)
			maps.DeleteFunc(others, func(key string, _ V) bool { return strings.HasPrefix(key, node+"\n") })
			return others
		}
	}
	return m
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Bounds of what a detector remembers, since that is copied for each event that changes it: of agents, and what they call
// things, and of calls while they are open. Of more than that, the later ones aren't remembered.
const (
	maxKeys  = 10_000
	maxCalls = 1000
)

// withKey returns a copy of m in which key has a value, or m if it is full and has no such key.
func withKey[V any](m map[string]V, key string, v V) map[string]V {
	return withBound(m, key, v, maxKeys)
}

// withCall is [withKey] of an open call.
func withCall[V any](m map[string]V, call string, v V) map[string]V {
	return withBound(m, call, v, maxCalls)
}

func withBound[V any](m map[string]V, key string, v V, most int) map[string]V {
	if _, known := m[key]; !known && len(m) >= most {
		return m
	}
	c := maps.Clone(m)
	if c == nil {
		c = map[string]V{}
	}
	c[key] = v
	return c
}

// withoutKey returns m, or a copy of it that lacks key.
func withoutKey[V any](m map[string]V, key string) map[string]V {
	if _, ok := m[key]; !ok {
		return m
	}
	c := maps.Clone(m)
	delete(c, key)
	return c
}

// highestReached returns the highest of ascending thresholds that x has come up to.
func highestReached[N int | float64](thresholds []N, x N) (highest N, ok bool) {
	for _, t := range thresholds {
		if x >= t {
			highest, ok = t, true
		}
	}
	return highest, ok
}

// formatNumber is a number as it is written in a key.
func formatNumber(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// rounding is what sums of costs may lack.
const rounding = 1e-9

const dayMs = 24 * int64(time.Hour/time.Millisecond)

// nodePolicy is what a flow says about errors of a node.
type nodePolicy struct {
	Continue    bool `json:"continue,omitempty"` // an error is one of its outcomes
	MaxAttempts int  `json:"maxAttempts,omitempty"`
}

// nodePolicies returns the policies of a flow's nodes, and its node if that is the only
// one. A definition that can't be read has none: then every error counts.
func nodePolicies(definition wire.Raw) (all map[string]nodePolicy, only string) {
	var d struct {
		Nodes []struct {
			ID     string `json:"id"`
			Policy struct {
				ContinueOnError bool `json:"continueOnError"`
				Retry           struct {
					MaxAttempts int `json:"maxAttempts"`
				} `json:"retry"`
			} `json:"policy"`
		} `json:"nodes"`
	}
	if wire.Unmarshal(definition, &d) != nil {
		return nil, ""
	}
	if len(d.Nodes) == 1 {
		only = d.Nodes[0].ID
	}
	for _, n := range d.Nodes {
		p := nodePolicy{Continue: n.Policy.ContinueOnError, MaxAttempts: n.Policy.Retry.MaxAttempts}
		if p == (nodePolicy{}) {
			continue
		}
		if all == nil {
			all = map[string]nodePolicy{}
		}
		all[n.ID] = p
	}
	return all, only
}

// nodePolicy returns the policy of a node. Items of a forEach have that of their
// node.
func (r run) nodePolicy(node string) nodePolicy {
	if p, ok := r.Policies[node]; ok {
		return p
	}
	if i := strings.LastIndexByte(node, '/'); i > 0 {
		return r.Policies[node[:i]]
	}
	return nodePolicy{}
}
