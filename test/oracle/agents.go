package oracle

import (
	"regexp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// agents: no two programs act for a node at the same time; one that has been followed by another does
// nothing any more. None is left when all runs have ended.
func (c *check) agents() {
	type node struct{ run, id string }
	last, over := map[node]int{}, map[int]bool{}
	for _, a := range c.ledger.acted {
		n := node{a.run, a.node}
		switch before := last[n]; {
		case over[a.agent]:
			c.violation(OneAgent, a.run, a.node, 0, "agent %d acts although agent %d has followed it", a.agent, before)
			delete(over, a.agent) // said
		case before != a.agent:
			over[before] = before != 0
			c.report.Agents++
			last[n] = a.agent
		}
	}
	if c.o.Unfinished {
		return
	}
	for _, k := range c.ledger.left {
		c.violation(ComesToAnEnd, "", "", 0, "keeper %s is there", k)
	}
}

// runners: a runner speaks to a program until another one does, and then no more.
func (c *check) runners() {
	type speaker struct {
		agent int
		from  string
	}
	last, over := map[int]string{}, map[speaker]bool{}
	for _, h := range c.ledger.heard {
		before := last[h.agent]
		if over[speaker(h)] {
			c.violation(OneRunner, "", "", 0, "%s speaks to agent %d although %s does", h.from, h.agent, before)
		}
		if before != h.from {
			if before != "" {
				c.report.Attached++
				over[speaker{h.agent, before}] = true
			}
			last[h.agent] = h.from
		}
	}
}

// textMarks finds what a program has said in texts.
var textMarks = regexp.MustCompile(`§\d+-\d+§`)

// marks returns by what an event shows what a program has said.
func (c *check) marks(e *eventlog.Entry) []string {
	switch p := e.Event.Payload.(type) {
	case *wire.ToolIntent:
		return []string{"intent " + e.Event.CallID}
	case *wire.PermissionRequired:
		return []string{"ask " + e.Event.CallID}
	case *wire.AgentTool:
		return []string{"result " + e.Event.CallID}
	case *wire.Usage:
		return []string{"usage " + p.MessageID}
	case *wire.AgentText, *wire.AgentTextDelta, *wire.ExecOutput:
		event, err := c.whole(e.Event)
		if err != nil {
			return nil
		}
		switch p := event.Payload.(type) {
		case *wire.AgentText:
			return textMarks.FindAllString(p.Content, -1)
		case *wire.AgentTextDelta:
			return textMarks.FindAllString(p.Content, -1)
		case *wire.ExecOutput:
			return textMarks.FindAllString(p.Content, -1)
		}
	}
	return nil
}

// sayings: of what a program has said the log has the beginning, each thing once and in its order. The rest may be
// lost with the program's keeper.
func (c *check) sayings() {
	type thing struct{ run, mark string }
	found, times := map[thing][]*eventlog.Entry{}, map[thing]int{}
	for _, id := range c.order {
		for _, e := range c.runs[id] {
			for _, mark := range c.marks(e) {
				found[thing{id, mark}] = append(found[thing{id, mark}], e)
			}
		}
	}
	for _, s := range c.ledger.said {
		times[thing{s.Run, s.Mark}]++
	}
	last, lost := map[int]*eventlog.Entry{}, map[int]string{}
	for _, s := range c.ledger.said {
		all := found[thing{s.Run, s.Mark}]
		switch {
		case times[thing{s.Run, s.Mark}] > 1: // in a session that was rolled back
			continue
		case len(all) == 0:
			lost[s.Agent] = s.Mark
			continue
		}
		c.report.Said++
		e := all[0]
		switch before := last[s.Agent]; {
		case len(all) > 1:
			c.wrong(SaidOnce, all[1], "what agent %d said as %s is at %d already", s.Agent, s.Mark, e.Pos)
		case lost[s.Agent] != "":
			c.wrong(SaidOnce, e, "the log has what agent %d said as %s, and lacks %s before it", s.Agent, s.Mark, lost[s.Agent])
		case before != nil && before.Pos > e.Pos:
			c.wrong(SaidOnce, e, "what agent %d said as %s stands before what it said first", s.Agent, s.Mark)
		}
		delete(lost, s.Agent)
		last[s.Agent] = e
	}
}
