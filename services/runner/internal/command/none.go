package command

import (
	"context"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// noneRecords is what is on record of commands that no run has obeyed: the run [subjects.NoRun], which has no snapshot and grows for as
// long as the installation is in use. A process reads each event of it once, and those from before its own beginning only if it is asked
// about a command from before that.
type noneRecords struct {
	turn chan struct{} // held while it is read

	upTo   uint64   // position of the last event that was read, or that is known to be of no use
	since  uint64   // position of the last command that was stored then; 0: all events were read
	events int      // that were read
	sorted []uint64 // positions of the commands
	ids    []string // of the last ones, at most maxIDs
}

// maxIDs is how many ids of commands are known: one that is sent again comes soon.
const maxIDs = 1000

func newNoneRecords() *noneRecords { return &noneRecords{turn: make(chan struct{}, 1)} }

// skipOlder says that no event up to a position tells of a command behind another one.
func (n *noneRecords) skipOlder(event, command uint64) {
	n.turn <- struct{}{}
	defer func() { <-n.turn }()
	if n.upTo == 0 && event > 0 && command > 0 {
		n.upTo, n.since = event, command
	}
}

// readRecords reads what the log has of commands from a position on.
func (n *noneRecords) readRecords(ctx context.Context, log *eventlog.Log, from uint64) error {
	if from <= n.since {
		n.upTo, n.since, n.sorted, n.ids = 0, 0, nil, nil
	}
	query := eventlog.Query{Run: subjects.NoRun, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}, From: n.upTo + 1}
	for e, err := range log.Read(ctx, query) {
		if err != nil {
			return err
		}
		n.upTo = e.Pos
		n.events++
		if p, ok := RecordOf(e); ok {
			n.addRecord(p)
		}
	}
	return nil
}

func (n *noneRecords) addRecord(p *wire.CommandReceived) {
	if at, there := slices.BinarySearch(n.sorted, p.AtPos); !there {
		n.sorted = slices.Insert(n.sorted, at, p.AtPos) // nearly always the last one
	}
	if n.ids = append(n.ids, p.CommandID); len(n.ids) > 2*maxIDs {
		n.ids = slices.Clone(n.ids[maxIDs:])
	}
}

// Unobeyed is what is on record of commands that no run has obeyed.
type Unobeyed struct {
	positions []uint64 // sorted
	ids       []string // of the last ones
}

// Has reports whether the command at a position is among them.
func (u Unobeyed) Has(pos uint64) bool {
	_, there := slices.BinarySearch(u.positions, pos)
	return there
}

// HasID reports whether a command of an id is, of the last thousand.
func (u Unobeyed) HasID(id string) bool { return slices.Contains(u.ids, id) }

// Unobeyed returns which commands from a position on are on record for no run.
func (s *Stream) Unobeyed(ctx context.Context, from uint64) (Unobeyed, error) {
	select {
	case s.none.turn <- struct{}{}:
		defer func() { <-s.none.turn }()
	case <-ctx.Done():
		return Unobeyed{}, ctx.Err()
	}
	if err := s.none.readRecords(ctx, s.log, from); err != nil {
		return Unobeyed{}, err
	}
	at, _ := slices.BinarySearch(s.none.sorted, from)
	return Unobeyed{slices.Clone(s.none.sorted[at:]), slices.Clone(s.none.ids)}, nil
}
