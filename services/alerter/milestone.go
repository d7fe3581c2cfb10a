package alerter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// milestones finds what has changed in the lists of agents: items that were
// created, begun or done.
type milestones struct {
	Lists map[string]todoList `json:"lists,omitempty"` // by agent
}

// todoList is the list of an agent as it was told.
type todoList struct {
	Items   map[string]string `json:"items,omitempty"` // status by item
	Done    int               `json:"done"`
	Total   int               `json:"total"`
	Node    string            `json:"node,omitempty"`
	Exec    string            `json:"exec,omitempty"`
	Created []string          `json:"created,omitempty"` // not told yet
	More    int               `json:"more,omitempty"`    // created beyond those
	First   uint64            `json:"first,omitempty"`   // position of the first of Created
	Until   int64             `json:"until,omitempty"`   // when they are told
}

// maxItems bounds the items that are followed, maxCreated the names in a line.
const (
	maxItems   = 200
	maxCreated = 3
)

// The statuses of an item.
const (
	statusDone = "completed"
	statusOpen = "in_progress"
)

// detect is a [timedDetector].
func (s milestones) detect(in input) (milestones, []finding, int64) {
	var found []finding
	if in.Event == nil {
		s, found = s.flushChosen(func(l todoList) bool { return l.Until <= in.At })
	} else {
		switch p := in.Event.Payload.(type) {
		case *wire.TodoChanged:
			s, found = s.noteChange(in, p)
		case *wire.AgentTool: // the end of a call that started a sub-agent is the end of that
			if in.Event.CallID != "" {
				s, found = s.endAgents(in.Event.Node() + "\n" + in.Event.CallID)
			}
		case *wire.NodeComplete, *wire.NodeCancelled: // its next execution begins a list
			node := in.Event.Node() + "\n"
			s, found = s.endAgents(slices.DeleteFunc(sortedKeys(s.Lists), func(of string) bool { return !strings.HasPrefix(of, node) })...)
		case *wire.NodeError, *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted:
			node := in.Event.Node()
			s, found = s.flushChosen(func(l todoList) bool { return l.Node == node })
		case *wire.FlowComplete, *wire.FlowAborted:
			s, found = s.flushChosen(func(todoList) bool { return true })
		}
	}
	return s, found, earliestTime(s.Lists, func(l todoList) int64 { return l.Until })
}

// noteChange compares a list with the one before.
func (s milestones) noteChange(in input, p *wire.TodoChanged) (milestones, []finding) {
	agent := agentOf(in.Event)
	l, before := s.Lists[agent], s.Lists[agent].Items
	done := 0
	for _, item := range p.Items {
		if item.Status == statusDone {
			done++
		}
	}
	l.Node, l.Exec, l.Items = in.Event.Node(), in.Event.ExecID, map[string]string{}
	l.Done, l.Total = done, len(p.Items)
	var finished, begun []finding
	newlyDone := 0
	for i, item := range p.Items[:min(len(p.Items), maxItems)] {
		key := itemKey(l.Items, item)
		was, known := before[key]
		l.Items[key] = item.Status
		if !known {
			l = l.addCreated(in, item)
		}
		switch {
		case item.Status == statusDone && was != statusDone:
			newlyDone++
			finished = append(finished, l.itemFinding(in, item, i, newlyDone))
		case item.Status == statusOpen && was != statusOpen:
			begun = append(begun, l.itemFinding(in, item, i, 0))
		}
	}
	for i := range finished { // the last of them has the number of all that are done
		finished[i] = numberFinding(finished[i], done-newlyDone+i+1, l.Total)
	}
	var found []finding
	if len(finished)+len(begun) > 0 || in.Limits.Milestone.Gather <= 0 {
		l, found = l.tellCreated()
	}
	s.Lists = withKey(s.Lists, agent, l)
	return s, append(append(found, finished...), begun...)
}

// itemKey names an item of a list: by its id, else by its words, and if those
// occur twice by their number.
func itemKey(taken map[string]string, item wire.Todo) string {
	key := timeline.Line(cmp.Or(item.ID, item.Content), maxItem)
	for i, base := 2, key; ; i++ {
		if _, ok := taken[key]; !ok {
			return key
		}
		key = fmt.Sprintf("%s\n%d", base, i)
	}
}

// addCreated notes an item that has to be told. One that is done or begun tells
// itself.
func (l todoList) addCreated(in input, item wire.Todo) todoList {
	if item.Status == statusDone || item.Status == statusOpen {
		return l
	}
	if l.First == 0 {
		l.First, l.Until = in.Pos, in.At+in.Limits.Milestone.Gather.Milliseconds()
	}
	if len(l.Created) < maxCreated {
		l.Created = append(slices.Clip(l.Created), timeline.Line(item.Content, maxItem))
	} else {
		l.More++
	}
	return l
}

func (l todoList) itemFinding(in input, item wire.Todo, index, done int) finding {
	task := timeline.Line(item.Content, maxItem)
	f := finding{
		Kind: kindMilestone, Severity: wire.SeverityInfo, NodeID: l.Node, ExecID: l.Exec, Armed: in.Pos, Level: fmt.Sprintf("begun-%d", index),
		Text: fmt.Sprintf(textTask, min(l.Done+1, l.Total), l.Total, task),
		Data: map[string]any{"task": task, "status": item.Status, "progress": fmt.Sprintf("%d/%d", l.Done, l.Total)},
	}
	if done > 0 {
		f.Level, f.Text = fmt.Sprintf("done-%d", index), task
	}
	return f
}

// numberFinding gives the finding of an item that is done its number.
func numberFinding(f finding, done, total int) finding {
	f.Text = fmt.Sprintf(textTaskDone, done, total, f.Text)
	f.Data["progress"] = fmt.Sprintf("%d/%d", done, total)
	return f
}

// flushChosen tells what was created in the lists that are chosen.
func (s milestones) flushChosen(chosen func(todoList) bool) (milestones, []finding) {
	var found []finding
	for _, agent := range sortedKeys(s.Lists) {
		if l := s.Lists[agent]; l.First > 0 && chosen(l) {
			told, f := l.tellCreated()
			s.Lists, found = withKey(s.Lists, agent, told), append(found, f...)
		}
	}
	return s, found
}

// endAgents tells what was created in the lists of agents that have ended, and forgets
// them.
func (s milestones) endAgents(agents ...string) (milestones, []finding) {
	var found []finding
	for _, agent := range agents {
		_, f := s.Lists[agent].tellCreated()
		s.Lists, found = withoutKey(s.Lists, agent), append(found, f...)
	}
	return s, found
}

// tellCreated returns the list with nothing left to tell.
func (l todoList) tellCreated() (todoList, []finding) {
	n := len(l.Created) + l.More
	if n == 0 {
		return l, nil
	}
	names := strings.Join(l.Created, ", ")
	text := fmt.Sprintf(textTaskCreated, l.Done, l.Total, names)
	if n > 1 {
		if l.More > 0 {
			names += ", …"
		}
		text = fmt.Sprintf(textTasks, l.Done, l.Total, n, timeline.Line(names, maxError))
	}
	f := finding{
		Kind: kindMilestone, Severity: wire.SeverityInfo, NodeID: l.Node, ExecID: l.Exec, Armed: l.First, Level: "created", Text: text,
		Data: map[string]any{
			"task": names, "status": "created", "count": n, "progress": fmt.Sprintf("%d/%d", l.Done, l.Total),
		},
	}
	l.Created, l.More, l.First, l.Until = nil, 0, 0, 0
	return l, []finding{f}
}
