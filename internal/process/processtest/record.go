package processtest

import (
	"iter"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// Record is what a log has of a program, in which sessions come and go.
type Record struct {
	Events []*wire.Event

	mark [2]uint64 // offset and index in the journal, up to which it is
}

// Add adds the events of a session, but those that the record has, until die, which is told how many it has added, says that the
// session has been left. over says that the session has ended.
func (r *Record) Add(t testing.TB, events iter.Seq2[*wire.Event, error], die func(added int) bool) (over bool) {
	t.Helper()
	added := 0
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		at := [2]uint64{e.JournalOffset, uint64(e.JournalIndex)}
		if at[0] != 0 && (at[0] < r.mark[0] || at[0] == r.mark[0] && at[1] <= r.mark[1]) {
			continue
		}
		if at[0] != 0 {
			r.mark = at
		}
		r.Events = append(r.Events, e)
		if added++; die(added) {
			return false
		}
	}
	return true
}
