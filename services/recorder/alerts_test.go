package recorder_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// alert publishes an alert as the alerter does.
func (p *plant) alert(key string, a wire.Alert) {
	p.t.Helper()
	a.V, a.Key = wire.Version, key
	data, err := wire.Marshal(a)
	if err != nil {
		p.t.Fatal(err)
	}
	subject := subjects.Default.Alert(a.RunID, a.NodeID, a.Kind, key)
	if _, err := p.log.JetStream().Publish(p.t.Context(), subject, data); err != nil {
		p.t.Fatal(err)
	}
}

// alerted waits for so many alerts in a store and returns them.
func (p *plant) alerted(path string, want int) []string {
	p.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		db := openDB(p.t, path)
		rows := rowsOf(p.t, db, `SELECT run, node, kind, severity, ts, text, data FROM alerts ORDER BY pos`)
		if err := db.Close(); err != nil {
			p.t.Fatal(err)
		}
		if len(rows) >= want {
			return rows
		}
		<-tick.C
	}
	p.t.Fatalf("%d alerts weren't recorded", want)
	return nil
}

// A recorder that is ended while it begins ends without an error.
func TestEndedWhileItBegins(t *testing.T) {
	p := newPlant(t)
	path := p.path()
	for i := range 20 {
		stop := p.record(recorder.Config{Path: path})
		<-time.After(time.Duration(i) * time.Millisecond)
		if err := stop(); err != nil {
			t.Fatalf("after %d ms: %v", i, err)
		}
	}
}

func TestAlertsAreRecorded(t *testing.T) {
	p := newPlant(t)
	path := p.path()
	stop := p.record(recorder.Config{})
	p.until(p.fill(3))
	raise := func(n int) {
		p.alert(fmt.Sprint("key", n), wire.Alert{
			Kind: "stuck", Severity: wire.SeverityWarning, RunID: "r1", NodeID: "coder", Label: "coder", Timestamp: int64(n), Text: fmt.Sprint("it says \x1b[31m ", n),
			Position: wire.Position{Incarnation: "x", Seq: 3}, Data: mustRaw(t, map[string]any{"event": "stuck", "n": n}),
		})
	}
	raise(1)
	raise(2)
	rows := p.alerted(path, 2)
	if want := "run=r1 node=coder kind=stuck severity=warning ts=1 text=it says \x1b[31m 1 data={\"event\":\"stuck\",\"n\":1}"; strings.TrimSpace(rows[0]) != want {
		t.Errorf("got %q, want %q", rows[0], want)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	raise(3) // while it is away
	if _, err := p.nc.Request(subjects.Default.Alert("r1", "coder", "stuck", "none"), []byte("\xc1 no alert"), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	raise(4)
	stop = p.record(recorder.Config{Path: path})
	if rows := p.alerted(path, 4); len(rows) != 4 {
		t.Errorf("%d alerts are recorded: %q", len(rows), rows)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	execAt(t, path, `UPDATE alerts_read SET created = 'of another stream'`)
	stop = p.record(recorder.Config{Path: path}) // reads all of it again
	raise(5)
	if rows := p.alerted(path, 5); len(rows) != 5 {
		t.Errorf("%d alerts are recorded: %q", len(rows), rows)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if v := verified(t, path, ""); len(v.Damages) > 0 {
		t.Errorf("damages: %v", v.Damages)
	}
	for column, change := range map[string]string{"text": `text = 'another'`, "severity": `severity = 'info'`, "data": `data = '{}'`, "hash": `hash = raw`} {
		execAt(t, path, `UPDATE alerts SET `+change+` WHERE key = 'key2'`)
		v := verified(t, path, "")
		if len(v.Damages) == 0 || !strings.Contains(v.Damages[0].String(), "run r1, table alerts, row key2, column ") {
			t.Errorf("%s was changed, found %v", column, v.Damages)
		}
	}
	execAt(t, path, `DELETE FROM alerts WHERE key IN ('key2', 'key3')`)
	if v := verified(t, path, ""); len(v.Damages) != 2 || v.Damages[0].String() != "table alerts: 5 were stored, there are 3" {
		t.Errorf("two are deleted, found %v", v.Damages)
	}
	if v := verified(t, path, "r1"); len(v.Damages) != 1 || v.Damages[0].String() != "run r1, table alerts: 5 were stored, there are 3" {
		t.Errorf("two are deleted of the run, found %v", v.Damages)
	}
	execAt(t, path, `UPDATE alerts_read SET stored = 3`) // by who knows of that
	execAt(t, path, `UPDATE alert_counts SET stored = 3`)
	s := openAt(t, path)
	defer closed(t, s)
	v, err := s.Checker.VerifyAgainst(t.Context(), "", p.log)
	if err != nil || len(v.Damages) != 2 || v.Damages[1].String() != "run r1, table alerts, row key3: the stream has this alert, the store doesn't" {
		t.Errorf("found %v, %v", v.Damages, err)
	}
}
