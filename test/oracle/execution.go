package oracle

import (
	"strings"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// execution is what the log tells of one.
type execution struct {
	run, id   string
	scheduled bool
	claims    int
	starts    int
	resumed   int
	end       *eventlog.Entry
	inherited bool // ended before the fork
}

// executions: what was scheduled begins once and ends once, and says nothing behind
// its end.
func (c *check) executions() {
	for _, id := range c.order {
		execs := map[string]*execution{}
		open := map[string]*execution{} // by node
		for _, e := range c.runs[id] {
			if _, ok := e.Event.Payload.(*wire.RunForked); ok {
				c.inherit(id, e, execs, open)
				continue
			}
			c.execution(e, execs, open)
		}
		c.report.Executions += len(execs)
		c.begun(id, execs)
	}
}

// inherit notes the executions that a fork goes on with.
func (c *check) inherit(id string, e *eventlog.Entry, execs, open map[string]*execution) {
	event, err := c.whole(e.Event)
	if err != nil {
		return // forks says so
	}
	s, err := run.Decode(event.Payload.(*wire.RunForked).State)
	if err != nil {
		return
	}
	for node, n := range s.Nodes {
		for i := range n.Execs {
			x := &execution{run: id, id: run.ExecID(node, i+1), scheduled: true, inherited: true}
			if execs[x.id] = x; x.id == n.Exec && n.Open() {
				x.inherited = false
				open[node] = x
				if n.Started >= n.Scheduled {
					x.starts = 1
				}
			}
		}
	}
}

func (c *check) execution(e *eventlog.Entry, execs, open map[string]*execution) {
	id := e.Event.ExecID
	switch p := e.Event.Payload.(type) {
	case *wire.NodeScheduled:
		if execs[id] != nil {
			c.wrong(ExecutedOnce, e, "scheduled again")
			return
		}
		execs[id] = &execution{run: e.RunID, id: id, scheduled: true}
		open[p.Target] = execs[id]
		return
	case *wire.NodeClaimed:
		if x := open[e.NodeID]; x != nil && x.end == nil {
			x.claims++
		}
		return
	case *wire.CommandReceived, *wire.NodeCancelled:
		return
	}
	if id == "" {
		return
	}
	x := execs[id]
	if x == nil {
		c.wrong(ExecutedOnce, e, "nobody scheduled it")
		return
	}
	if x.end != nil || x.inherited {
		c.wrong(ExecutedOnce, e, "comes behind its end")
	}
	switch e.Event.Payload.(type) {
	case *wire.AgentResumed:
		c.report.Resumed++
		x.resumed++
	case *wire.NodeStart:
		if x.starts++; x.starts > 1 {
			c.wrong(ExecutedOnce, e, "begins again")
		}
	case *wire.NodeComplete, *wire.NodeError:
		x.end = e
	}
}

// begun: no agent began more often than its node was claimed and its going on is on record, or once behind that: a
// session that isn't there begins afresh.
func (c *check) begun(id string, execs map[string]*execution) {
	began := map[string]int{}
	for _, b := range c.ledger.began {
		if b.Run == id {
			began[b.Exec]++
		}
	}
	for _, exec := range sorted(began) {
		if x := execs[exec]; x == nil || began[exec] > x.claims+x.resumed+1 {
			c.violation(ExecutedOnce, id, "", 0, "an agent began %s %d times; %+v", exec, began[exec], x)
		}
	}
}

// lateness is how long what a worker has begun may come behind what the log says.
const lateness = 15 * time.Second

// work: a tool call that changes something was intended on record before it was made; each
// was made once, and not behind the end of its execution.
func (c *check) work() {
	calls := map[string]*eventlog.Entry{}
	ends := map[string]*eventlog.Entry{}
	for _, id := range c.order {
		for _, e := range c.runs[id] {
			switch e.Event.Payload.(type) {
			case *wire.ToolIntent:
				calls[id+"\n"+e.Event.CallID] = e
			case *wire.NodeComplete, *wire.NodeError:
				ends[id+"\n"+e.Event.ExecID] = e
			}
		}
	}
	made := map[string]int{}
	for _, w := range c.ledger.worked {
		call := w.Run + "\n" + w.Call
		if made[call]++; made[call] == 2 {
			c.violation(WorkedOnce, w.Run, w.Node, 0, "call %s of %s was made twice", w.Call, w.Exec)
		}
		if intent := calls[call]; intent == nil && !w.Safe {
			c.violation(WorkedOnce, w.Run, w.Node, 0, "call %s of %s was made without an intent on record", w.Call, w.Exec)
		}
		if end := ends[w.Run+"\n"+w.Exec]; end != nil && w.At.After(end.Time.Add(lateness)) {
			c.wrong(WorkedOnce, end, "call %s was made %s later", w.Call, w.At.Sub(end.Time))
		}
	}
}

// commandsRun: a command runs once in an execution, unless it is idempotent.
func (c *check) commandsRun() {
	runs := map[Command]int{}
	for _, r := range c.ledger.ran {
		if runs[r]++; runs[r] == 2 && !r.Idempotent {
			c.violation(WorkedOnce, r.Run, r.Node, 0, "the command of %s was run twice", r.Exec)
		}
	}
}

// alerts: each key is in the stream once, no sink showed more than there is, no alert
// is without its event, and what a human has to know has one.
func (c *check) alerts() {
	keys, texts, raised, failed := map[string]bool{}, map[string]int{}, map[uint64]bool{}, map[string]bool{}
	for _, a := range c.Alerts {
		if keys[a.Key] {
			c.violation(AlertedOnce, a.RunID, a.NodeID, a.Position.Seq, "alert %s is there twice", a.Key)
		}
		keys[a.Key] = true
		texts[a.Text]++
		raised[a.Position.Seq] = true
		if a.Severity == wire.SeverityError {
			failed[a.RunID+"\n"+a.NodeID] = true
		}
		e := c.byPos[a.Position.Seq]
		switch {
		case a.RunID == wire.NoRun: // about wake itself
		case a.Kind == "seq_gap":
			c.violation(AlertedOnce, a.RunID, a.NodeID, a.Position.Seq, "alert %s: there is no gap", a.Key)
		case e == nil || e.RunID != a.RunID:
			c.violation(AlertedOnce, a.RunID, a.NodeID, a.Position.Seq, "alert %s has no event: %s", a.Key, a.Text)
		}
		if want := c.Names.Alert(a.RunID, a.NodeID, a.Kind, a.Key); want != a.Subject {
			c.violation(OwnRun, a.RunID, a.NodeID, a.Position.Seq, "alert %s stands on %s", a.Key, a.Subject)
		}
	}
	for _, sink := range sorted(c.ledger.shown) {
		shown := map[string]int{}
		for _, line := range c.ledger.shown[sink] {
			if shown[line]++; shown[line] > texts[line] {
				c.violation(AlertedOnce, "", "", 0, "%s showed %q %d times; there are %d such alerts", sink, line, shown[line], texts[line])
			}
		}
	}
	for _, id := range c.order {
		for _, e := range c.runs[id] {
			end, ended := e.Event.Payload.(*wire.FlowComplete)
			told := ended && failed[id+"\n"+end.FailedNode] // because of a node, whose failure has its alert
			if deservesAlert(e) && !raised[e.Pos] && !told {
				c.wrong(AlertedOnce, e, "raised no alert")
			}
		}
	}
}

// deservesAlert reports whether an event must have an alert.
func deservesAlert(e *eventlog.Entry) bool {
	switch p := e.Event.Payload.(type) {
	case *wire.FlowComplete, *wire.InputRequested, *wire.PermissionRequired, *wire.CCMessage:
		return true
	case *wire.FlowPaused:
		return p.Reason == wire.PauseRequiresAction || strings.EqualFold(p.Reason, wire.PauseWorkspaceLost)
	}
	return false
}
