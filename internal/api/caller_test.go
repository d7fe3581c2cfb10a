package api_test

import (
	"encoding/hex"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/natstest"
)

// A guest of one run may name that one, by its id, and nothing else. What the
// server says of users is taken from its header; see TestScript/auth for that it is the
// server's.
func TestCallerOfOneRun(t *testing.T) {
	nc := natstest.Start(t)
	serve(t, nc)
	of := func(run string) string {
		return `{"acc":"A","user":"U","name_tag":"guest","tags":["own-inbox","run:` + hex.EncodeToString([]byte(run)) + `"]}`
	}
	for _, tt := range []struct{ name, caller, verb, request, code string }{
		{"nobody", "", "log", `{"run":"Other"}`, ""},
		{"a user of all runs", `{"user":"U","tags":["own-inbox"]}`, "log", `{"run":"Other"}`, ""},
		{"its run", of("Mine"), "log", `{"run":"Mine"}`, ""},
		{"its run, in an envelope", of("Mine"), "log", `{"type":"command","action":"log","params":{"run":"Mine"}}`, ""},
		{"another run", of("Mine"), "log", `{"run":"Other"}`, "PERMISSION_DENIED"},
		{"another run, in an envelope", of("Mine"), "log", `{"type":"command","action":"log","params":{"run":"Other"},"run":"Mine"}`, "PERMISSION_DENIED"},
		{"a prefix", of("Mine"), "log", `{"run":"Min"}`, "PERMISSION_DENIED"},
		{"no run", of("Mine"), "log", `{}`, "PERMISSION_DENIED"},
		{"an agent", of("Mine"), "log", `{"agentId":"Mine"}`, "PERMISSION_DENIED"},
		{"an agent of another run", of("Mine"), "log", `{"run":"Mine","agentId":"Other/a"}`, "PERMISSION_DENIED"},
		{"a verb about all runs", of("Mine"), "status", `{"run":"Mine"}`, "PERMISSION_DENIED"},
		{"two runs", `{"user":"U","tags":["run:4d","run:4e"]}`, "log", `{"run":"M"}`, "PERMISSION_DENIED"},
		{"a run that is none", `{"user":"U","tags":["run:zz"]}`, "log", `{"run":"M"}`, "PERMISSION_DENIED"},
		{"an empty run", `{"user":"U","tags":["run:"]}`, "log", `{"run":"M"}`, "PERMISSION_DENIED"},
		{"no user", `{"acc":"A"}`, "log", `{"run":"M"}`, "PERMISSION_DENIED"},
		{"no JSON", `{`, "log", `{"run":"M"}`, "PERMISSION_DENIED"},
		{"what can't be read", of("Mine"), "log", `{`, "BAD_REQUEST"},
	} {
		ask := &nats.Msg{Subject: "wake.api." + tt.verb, Data: []byte(tt.request), Header: nats.Header{}}
		if tt.caller != "" {
			ask.Header.Set(access.CallerHeader, tt.caller)
		}
		m, err := nc.RequestMsgWithContext(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		if code := m.Header.Get(micro.ErrorCodeHeader); code != tt.code {
			t.Errorf("%s: code %q, want %q: %s", tt.name, code, tt.code, m.Data)
		}
	}
}
