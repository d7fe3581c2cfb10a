package alerter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

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

// detector is a pure function. It changes no state it was given, so what it
// returns can be thrown away and computed again. Its state is stored by
// [wire.Marshal]. The deadline is when it wants to be told that time has passed,
// in Unix ms; 0: never.
type detector[S any] func(s S, in input) (next S, found []finding, deadline int64)

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
	Event    string // name of the supervisor event (seeds/004 §1)
	Data     map[string]any
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
	fields := map[string]any{"type": "event", "event": f.Event, "agentId": label}
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

// earliest is the first of the times of values, 0 left out; 0 if there is none.
func earliest[V any](values map[string]V, at func(V) int64) (first int64) {
	for _, v := range values {
		if t := at(v); t > 0 && (first == 0 || t < first) {
			first = t
		}
	}
	return first
}
