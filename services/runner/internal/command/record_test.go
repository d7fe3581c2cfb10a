package command_test

import (
	"testing"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/services/runner/internal/command"
)

// TestRecordNamesWhoGaveIt: what the server says takes the place of what the sender says,
// and is told apart from it.
func TestRecordNamesWhoGaveIt(t *testing.T) {
	for name, c := range map[string]struct{ data, user, by, command string }{
		"a user":                   {`{"type":"pause"}`, "ann", "ann", `{"by":"ann","type":"pause"}`},
		"a user who says another":  {`{"type":"pause","by":"king"}`, "ann", "ann", `{"by":"ann","type":"pause"}`},
		"a server that says none":  {`{"type":"pause","by":"king"}`, "", "", `{"by":"king","type":"pause"}`},
		"a user's, who says a lot": {`[1]`, "ann", "ann", `"[1]"`},
	} {
		p, cmd, err := command.Record(eventlog.Entry{Pos: 7, Data: []byte(c.data), User: c.user})
		json, e := p.Command.MarshalJSON()
		if e != nil {
			t.Fatal(e)
		}
		if p.By != c.by || string(json) != c.command || p.AtPos != 7 || p.CommandID != "cmd-7" {
			t.Errorf("%s: %+v, %s, %v", name, p, json, err)
		}
		if said := p.Command.TextAt("by"); err == nil && cmd.By != said {
			t.Errorf("%s: it is by %q, on record by %q", name, cmd.By, said)
		}
	}
}
