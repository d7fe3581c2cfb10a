package oracle

import (
	"bytes"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// recorded: the recorder has each event where it is, and thinks nothing of it that
// isn't so.
func (c *check) recorded() {
	if c.o.Recorder == "" {
		return
	}
	if len(c.Recorded) != len(c.Events) {
		c.violation(RecordedAll, "", "", c.Index.Position, "%d events are recorded, the log has %d", len(c.Recorded), len(c.Events))
	}
	if c.Index.Void+c.Index.Refused+c.Index.Gaps > 0 {
		c.violation(RecordedAll, "", "", c.Index.Position, "the index counts %+v", c.Index)
	}
	var last uint64
	for _, r := range c.Recorded {
		e := c.byPos[r.Position]
		last = r.Position
		switch {
		case e == nil:
			c.violation(RecordedAll, r.Run, r.Node, r.Position, "the log has no such event")
		case !bytes.Equal(e.Data, r.Data):
			c.violation(RecordedAll, r.Run, r.Node, r.Position, "other bytes are recorded")
		case (e.Err != nil) != (r.Mark == "bad"):
			c.violation(RecordedAll, r.Run, r.Node, r.Position, "recorded with mark %q, though %v", r.Mark, e.Err)
		case e.Err == nil && (r.Run != e.RunID || r.Node != e.NodeID):
			c.wrong(RecordedAll, e, "recorded as of run %s, node %s", r.Run, r.Node)
		}
	}
	if last != c.Index.Position {
		c.violation(RecordedAll, "", "", last, "the recorder says that it is at %d", c.Index.Position)
	}
}

// commands: each is on record once, on its run or on none, and takes effect once.
func (c *check) commands() {
	type record struct {
		run      string
		position uint64
	}
	records := map[uint64][]record{}   // by position of the command
	accepted := map[[2]string]uint64{} // by subject and id
	sent := map[uint64]string{}        // subjects
	for _, m := range c.Commands {
		sent[m.Position] = m.Subject
	}
	for _, id := range c.order {
		for _, e := range c.runs[id] {
			p, ok := e.Event.Payload.(*wire.CommandReceived)
			if !ok {
				continue
			}
			records[p.AtPos] = append(records[p.AtPos], record{id, e.Pos})
			if !p.Accepted {
				continue
			}
			key := [2]string{sent[p.AtPos], p.CommandID}
			if first, twice := accepted[key]; twice {
				c.wrong(CommandOnRecord, e, "command %s was accepted at %d already", p.CommandID, first)
			}
			accepted[key] = e.Pos
		}
	}
	for _, m := range c.Commands {
		all := records[m.Position]
		if len(all) != 1 {
			c.violation(CommandOnRecord, "", "", 0, "command %d on %s is on record %d times: %v", m.Position, m.Subject, len(all), all)
		}
		for _, r := range all {
			if r.run != wire.NoRun && c.Names.Command(r.run) != m.Subject {
				c.violation(CommandOnRecord, r.run, wire.RunNode, r.position, "command %d was sent to %s", m.Position, m.Subject)
			}
		}
	}
	c.told()
	stored := map[uint64]bool{}
	for _, m := range c.Commands {
		stored[m.Position] = true
	}
	for _, x := range c.ledger.commands {
		if !stored[x.position] {
			c.violation(CommandOnRecord, x.run, "", 0, "command %s was acknowledged at %d, and isn't there", x.id, x.position)
		}
	}
}

// told: what a command says, and what a child says, is told to one agent of the run,
// once. The message of a resumption is for all of them.
func (c *check) told() {
	for _, id := range c.order {
		told := map[string]uint64{}
		for _, e := range c.runs[id] {
			p, ok := e.Event.Payload.(*wire.UserMessage)
			if !ok || p.CommandID == "" || strings.HasPrefix(p.CommandID, "resume-") {
				continue
			}
			if first, twice := told[p.CommandID]; twice {
				c.wrong(ToldOnce, e, "what command %s says was told at %d already", p.CommandID, first)
			}
			told[p.CommandID] = e.Pos
			c.report.Told++
			if strings.HasPrefix(p.CommandID, "alert-") {
				c.report.Notices++
			}
		}
	}
}

// poison: what is no event is among the dead letters of its readers.
func (c *check) poison() {
	letters := map[string]bool{}
	for _, p := range c.DeadLetters {
		if p.Stream == c.Names.EventsStream() && p.Position > 0 {
			letters[p.Service+string(p.Data)] = true
		}
	}
	for _, e := range c.Events {
		if e.Err == nil {
			continue
		}
		readers := []string{"recorder", "snapshotter", "alerter"}
		if e.Kind == wire.KindText || e.Kind == wire.KindDelta {
			readers = readers[:1]
		}
		for _, reader := range readers {
			if !letters[reader+string(e.Data)] {
				c.violation(NothingDropped, "", "", e.Pos, "%s has no dead letter of what is no event: %v", reader, e.Err)
			}
		}
	}
}

// letters: what a fenced writer still held isn't in the log as well.
func (c *check) letters() {
	stored := map[string]uint64{}
	for _, e := range c.Events {
		stored[string(e.Data)] = e.Pos
	}
	for _, p := range c.DeadLetters {
		if p.Stream != c.Names.EventsStream() || p.Position > 0 {
			continue
		}
		if pos, ok := stored[string(p.Data)]; ok {
			c.violation(StoredOnce, "", "", pos, "is a dead letter too: %s", p.Reason)
		}
	}
}

// ends: every request for a run has one, every run has ended, and none has an owner any more.
func (c *check) ends() {
	if c.o.Unfinished {
		return
	}
	for _, id := range c.ledger.requested {
		if c.runs[id] == nil {
			c.violation(ComesToAnEnd, id, "", 0, "was asked for, and hasn't begun")
		}
	}
	for _, id := range c.order {
		s := c.states[id]
		if id != wire.NoRun && s.Status != wire.RunComplete && s.Status != wire.RunAborted {
			c.violation(ComesToAnEnd, id, "", s.Position.Seq, "is %s (%s)", s.Status, s.Reason)
		}
	}
	for _, key := range c.Registered {
		c.violation(ComesToAnEnd, "", "", 0, "run %s is registered", key)
	}
}
