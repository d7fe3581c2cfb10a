package recorder_test

import (
	"errors"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// hold keeps a recorder from recording until let is called.
func (p *plant) hold() (let func()) {
	p.t.Helper()
	db := openDB(p.t, p.path())
	conn, err := db.Conn(p.t.Context()) // the driver rolls back what a connection that it gets back has begun
	if err != nil {
		p.t.Fatal(err)
	}
	lock := []string{"PRAGMA busy_timeout = 10000", "BEGIN IMMEDIATE"}
	if onPostgres(p.path()) {
		lock = []string{"BEGIN", "LOCK TABLE streams IN EXCLUSIVE MODE"}
	}
	for _, text := range lock {
		if _, err := conn.ExecContext(p.t.Context(), text); err != nil {
			p.t.Fatal(err)
		}
	}
	return func() {
		if err := errors.Join(conn.Close(), db.Close()); err != nil {
			p.t.Error(err)
		}
	}
}

// An answer that doesn't know all that was stored says so, and what isn't found may
// only not be there yet. A database waits for a lock by a clock of its own.
func TestAnswersSayWhatTheyLack(t *testing.T) {
	p := newPlant(t)
	pos := p.fill(3)
	p.record(recorder.Config{})
	p.until(pos)
	want := func(runs int, behind uint64) {
		t.Helper()
		r, err := api.Call[wire.RunsResponse](t.Context(), p.nc, subjects.Default, wire.VerbRuns, wire.RunsRequest{})
		if err != nil || len(r.Runs) != runs || r.Behind != behind {
			t.Errorf("%d runs, %d events behind, %v; want %d and %d", len(r.Runs), r.Behind, err, runs, behind)
		}
	}
	want(1, 0)
	let := p.hold()
	end := p.write(p.claim("r2", "c"), text("more"))
	want(1, end-pos)
	for run, behind := range map[string]uint64{"r1": 0, "r": end - pos} { // what another run has said is awaited where it may be meant
		s, err := api.Call[wire.StatusResponse](t.Context(), p.nc, subjects.Default, wire.VerbStatus, wire.StatusRequest{Run: run})
		if err != nil || s.RunID != "r1" || s.Behind != behind {
			t.Errorf("%s: %s, %d events behind, %v; want %d", run, s.RunID, s.Behind, err, behind)
		}
	}
	_, err := api.Call[wire.LogResponse](t.Context(), p.nc, subjects.Default, wire.VerbLog, wire.LogRequest{Run: "r2"})
	if e, ok := errors.AsType[*wire.APIError](err); !ok || e.Code != wire.CodeRunNotFound || !strings.Contains(e.Hint, "events to catch up with") {
		t.Errorf("%+v", err)
	}
	let()
	p.until(end)
	want(2, 0)
}
