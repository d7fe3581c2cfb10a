package main

import (
	"bytes"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

// A publisher of alerts can't reach the terminal of their readers.
func TestHostileAlert(t *testing.T) {
	const evil = "\x1b[2J\nx"
	alert := wire.Alert{Severity: evil, RunID: evil, NodeID: evil, Kind: evil, Text: evil, Label: evil, Flow: evil}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		a := &app{out: &out, json: asJSON}
		if err := a.printAlert(alert); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsRune(out.String(), '\x1b') || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("json %t: %q", asJSON, out.String())
		}
		out.Reset()
		if err := (alertVerbs{a}).printBacktest([]backtestRow{{Mark: "=", Alert: alert}}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsRune(out.String(), '\x1b') {
			t.Errorf("json %t: %q", asJSON, out.String())
		}
	}
}
