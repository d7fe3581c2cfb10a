package oracle

import (
	"bytes"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// folds: nothing in a history is refused, and a fold that stops half-way, is
// written down and read again comes to the same bytes.
func (c *check) folds() {
	for _, id := range c.order {
		s, parts := run.New(id), run.New(id)
		events := c.runs[id]
		for i, e := range events {
			if err := c.apply(s, *e); err != nil {
				c.wrong(FoldAccepts, e, "%v", err)
			}
			_ = c.apply(parts, *e) // said above
			if i == len(events)/2 {
				parts = c.reread(e, parts)
			}
		}
		c.states[id] = s
		if !bytes.Equal(c.encode(s), c.encode(parts)) {
			c.violation(FoldInParts, id, "", s.Position.Seq, "%s, at once %s", show(c.encode(parts)), show(c.encode(s)))
		}
	}
}

// reread is what becomes of a state that is written down.
func (c *check) reread(e *eventlog.Entry, s *wire.State) *wire.State {
	again, err := run.Decode(c.encode(s))
	if err != nil {
		c.wrong(FoldInParts, e, "the state can't be read: %v", err)
		return s
	}
	return again
}

func (c *check) encode(s *wire.State) []byte {
	b, err := wire.Marshal(s)
	if err != nil {
		c.violation(FoldInParts, s.RunID, "", s.Position.Seq, "the state can't be written: %v", err)
	}
	return b
}

// snapshots: what is stored is the fold up to its position.
func (c *check) snapshots() {
	for _, id := range sorted(c.Snapshots) {
		c.compare(id, "the snapshot", c.Snapshots[id])
	}
}

func (c *check) bookmarks() {
	for _, b := range c.Bookmarks {
		c.compare(b.Run, "bookmark "+b.Label, b.State)
	}
}

func (c *check) compare(id, what string, stored []byte) {
	s, err := run.Decode(stored)
	if err != nil {
		c.violation(SnapshotIsFold, id, "", 0, "%s can't be read: %v", what, err)
		return
	}
	want := run.New(id)
	c.fold(want, s.Position.Seq)
	if encoded := c.encode(want); !bytes.Equal(encoded, stored) {
		c.violation(SnapshotIsFold, id, "", s.Position.Seq, "%s is %s, the fold %s", what, show(stored), show(encoded))
	}
}

// maxShown bounds what is shown of a state.
const maxShown = 4000

func show(b []byte) string {
	out, err := wire.AppendJSON(nil, wire.Raw(b))
	if err != nil {
		return err.Error()
	}
	return string(out[:min(len(out), maxShown)])
}

// replays: a replay shows each event of a run, as it is stored and in order.
func (c *check) replays() {
	replayed := map[string][]eventlog.Entry{}
	for _, e := range c.Replayed {
		replayed[e.RunID] = append(replayed[e.RunID], e)
	}
	for _, id := range c.order {
		got, want := replayed[id], c.runs[id]
		got = slices.DeleteFunc(slices.Clone(got), func(e eventlog.Entry) bool { return e.Err != nil })
		if len(got) != len(want) {
			c.violation(ReplayIsLog, id, "", 0, "a replay has %d events, the log %d", len(got), len(want))
			continue
		}
		for i := range got {
			if got[i].Pos != want[i].Pos || !bytes.Equal(got[i].Data, want[i].Data) {
				c.wrong(ReplayIsLog, want[i], "a replay shows another event, of position %d", got[i].Pos)
				break
			}
		}
	}
}

// forks: a fork begins with the fold of its parent, and with nothing of what the
// parent did later.
func (c *check) forks() {
	for _, id := range c.order {
		for _, e := range c.runs[id] {
			if _, ok := e.Event.Payload.(*wire.RunForked); !ok {
				continue
			}
			c.report.Forks++
			event, err := c.whole(e.Event)
			if err != nil {
				c.wrong(ForkIsParent, e, "%v", err)
				continue
			}
			c.fork(e, event.Payload.(*wire.RunForked))
		}
	}
}

// isSnapshot reports whether a run's log has a snapshot of its folder behind a position.
func (c *check) isSnapshot(id string, behind uint64, s *wire.FolderSnapshot) bool {
	return s != nil && s.Position > behind && slices.ContainsFunc(c.runs[id], func(e *eventlog.Entry) bool {
		if e.Pos != s.Position || e.NodeID != s.Node {
			return false
		}
		switch p := e.Event.Payload.(type) {
		case *wire.NodeStart:
			return p.EmptyFolder && s.ID == ""
		case *wire.WorkspaceSnapshot:
			return p.ID == s.ID
		}
		return false
	})
}

func (c *check) fork(e *eventlog.Entry, p *wire.RunForked) {
	inherited, err := run.Decode(p.State)
	if err != nil {
		c.wrong(ForkIsParent, e, "the inherited state can't be read: %v", err)
		return
	}
	if p.ParentPos >= e.Pos {
		c.wrong(ForkIsParent, e, "its parent's position %d is not before", p.ParentPos)
	}
	want := run.New(p.ParentRun)
	c.fold(want, p.ParentPos)
	inherited.Workspace = want.Workspace // a copy of the folder
	if f := want.Folder; (f == nil || f.Pending) && c.isSnapshot(p.ParentRun, p.ParentPos, inherited.Folder) {
		inherited.Folder = f // the point has the folder of the first snapshot behind it
	}
	if got, want := c.encode(inherited), c.encode(want); !bytes.Equal(got, want) {
		c.wrong(ForkIsParent, e, "of %s at %d it has %s, the fold %s", p.ParentRun, p.ParentPos, show(got), show(want))
	}
	for _, x := range c.runs[e.RunID] {
		if x.Pos < e.Pos && !claims(x) && x.Event.Type() != wire.TypeCommandReceived {
			c.wrong(ForkIsParent, x, "stands before the fork")
		}
	}
	if child := c.states[e.RunID]; child != nil && (len(child.Lineage) == 0 || child.Lineage[0].RunID != p.ParentRun || child.Lineage[0].Position != p.ParentPos) {
		c.wrong(ForkIsParent, e, "its lineage is %v", child.Lineage)
	}
}
