package alerter

import (
	"cmp"
	"strings"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// runRecord is what the alerter knows of a run, as it is stored. It is never
// changed in place: an event makes a new one of it.
type runRecord struct {
	V        int               `json:"v"`
	Position wire.Position     `json:"position"` // of the last event that went in
	Run      run               `json:"run"`
	Epochs   map[string]uint64 `json:"epochs"` // of the last claims, by node
	Deadline int64             `json:"deadline,omitempty"`
	Clock    int64             `json:"clock,omitempty"` // of a run that was over when it was ingested: the time of its last event, Unix ms; 0: time is the log's

	Completions completions `json:"completions"`
	Failures    failures    `json:"failures"`
	Denials     denials     `json:"denials"`
	Loops       loops       `json:"loops"`
	Circles     circles     `json:"circles"`
	Silences    silences    `json:"silences"`
	Spending    spending    `json:"spending"`
	Milestones  milestones  `json:"milestones"`
	Builds      builds      `json:"builds"`
	Commits     commits     `json:"commits"`
	Pressures   pressures   `json:"pressures"`
	Spawns      spawns      `json:"spawns"`
	Messages    messages    `json:"messages"`
}

func newRecord(runID string) runRecord { return runRecord{V: wire.Version, Run: run{ID: runID}} }

// pastBy is how much older than its storing the beginning of an ingested run is, at least,
// for its times to be its own.
const pastBy = time.Minute

// timeOf returns when something happened: of a run that was over when it was ingested, by
// its own times, which never go back; of any other one, when the log stored it.
func (r runRecord) timeOf(e eventlog.Entry) int64 {
	stored := e.Time.UnixMilli()
	switch p, begins := e.Event.Payload.(*wire.FlowStart); {
	case begins && p.Imported == wire.ImportedIngest && e.Event.Timestamp > 0 && stored-e.Event.Timestamp > pastBy.Milliseconds():
		return e.Event.Timestamp
	case r.Clock == 0:
		return stored
	case e.Event.Claims():
		return r.Clock // which is ours, not the run's
	}
	return min(max(r.Clock, e.Event.Timestamp), stored)
}

// moveClock notes when an entry happened, if the run's times are its own.
func (r runRecord) moveClock(e eventlog.Entry, at int64) runRecord {
	if _, begins := e.Event.Payload.(*wire.FlowStart); r.Clock > 0 || begins && at < e.Time.UnixMilli()-pastBy.Milliseconds() {
		r.Clock = at
	}
	return r
}

// applyInput accounts for an event or a tick.
func (r runRecord) applyInput(in input) (runRecord, []finding) {
	if e := in.Event; e != nil {
		if e.Epoch < r.Epochs[e.NodeID] {
			return r, nil // of a writer that had lost the node
		}
		switch p := e.Payload.(type) {
		case *wire.RunClaimed, *wire.NodeClaimed:
			if r.Epochs == nil {
				r.Epochs = map[string]uint64{}
			}
			r.Epochs[e.NodeID] = e.Epoch // in place, since a run may have any number of nodes: what is applied again says the same
		case *wire.FlowStart:
			r.Run = r.Run.applyStart(p)
		case *wire.RunForked:
			r.Run = r.Run.applyFork(p)
		}
	}
	in.Run = r.Run
	var o outcome
	r.Spawns = runTimed(spawns.detect, r.Spawns, in, &o)
	r.Milestones = runTimed(milestones.detect, r.Milestones, in, &o)
	r.Builds = runDetector(builds.detect, r.Builds, in, &o)
	r.Commits = runTimed(commits.detect, r.Commits, in, &o)
	r.Pressures = runDetector(pressures.detect, r.Pressures, in, &o)
	r.Spending = runDetector(spending.detect, r.Spending, in, &o)
	in.Spent = r.Spending.sum()
	r.Silences = runTimed(silences.detect, r.Silences, in, &o)
	r.Messages = runDetector(messages.detect, r.Messages, in, &o)
	r.Denials = runDetector(denials.detect, r.Denials, in, &o)
	r.Failures = runDetector(failures.detect, r.Failures, in, &o)
	r.Loops = runDetector(loops.detect, r.Loops, in, &o)
	r.Circles = runDetector(circles.detect, r.Circles, in, &o)
	r.Completions = runDetector(completions.detect, r.Completions, in, &o)
	r.Deadline = o.deadline
	if in.Event != nil {
		o.found = append(append(o.found, waitingFindings(in)...), mirrorFindings(in)...)
	}
	return r, o.found
}

// outcome is what all detectors return.
type outcome struct {
	found    []finding
	deadline int64 // the earliest; 0: none
}

// runTimed lets a detector see the input and returns its next state.
func runTimed[S any](d timedDetector[S], s S, in input, o *outcome) S {
	next, found, deadline := d(s, in)
	o.found = append(o.found, found...)
	if deadline > 0 {
		o.deadline = min(cmp.Or(o.deadline, deadline), deadline)
	}
	return next
}

// runDetector lets a detector see an event and returns its next state.
func runDetector[S any](detect detector[S], s S, in input, o *outcome) S {
	if in.Event == nil {
		return s
	}
	next, found := detect(s, in)
	o.found = append(o.found, found...)
	return next
}

// isRelevant reports whether an event may change a record, or be found worth an
// alert.
func isRelevant(e *wire.Event) bool {
	switch p := e.Payload.(type) {
	case *wire.RawMessage:
		return p.Name == wire.MirrorError || strings.HasSuffix(p.Name, vcsNotice)
	case *wire.RunClaimed, *wire.NodeClaimed, *wire.FlowStart, *wire.RunForked, *wire.FlowComplete,
		*wire.NodeScheduled, *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled,
		*wire.AgentStart, *wire.AgentComplete, *wire.AgentError, *wire.AgentTool,
		*wire.AgentPaused, *wire.AgentAborted, *wire.AgentInit, *wire.AgentResumed, *wire.UserMessage, *wire.CCMessage,
		*wire.ToolIntent, *wire.ToolState, *wire.ToolSealed, *wire.TurnStart, *wire.TurnEnd, *wire.Usage, *wire.AgentMessage,
		*wire.AgentText, *wire.AgentTextDelta, *wire.AgentThinking, *wire.AgentThinkingDelta,
		*wire.TodoChanged, *wire.Compaction, *wire.ExecStart, *wire.ExecOutput, *wire.ExecExit,
		*wire.FlowPaused, *wire.FlowResumed, *wire.FlowAborted, *wire.InputRequested, *wire.PermissionRequired, *wire.PermissionDecided:
		return true
	default:
		return false
	}
}
