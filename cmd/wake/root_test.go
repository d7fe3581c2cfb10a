package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"code.wake.dev/wake/internal/natstest"
)

// Where credentials don't cover a subject the server says so on the side, and
// the call itself would only time out.
func TestDeniedVerbSaysSo(t *testing.T) {
	s := natstest.Serve(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		Users: []*server.User{{Username: "ann", Password: "x", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"wake.api.>", "$JS.API.>"}},
		}}},
	})
	url := strings.Replace(s.ClientURL(), "nats://", "nats://ann:x@", 1)
	for _, verb := range [][]string{{"runs"}, {"status", "r1"}, {"tail"}, {"init"}} {
		var out, errOut bytes.Buffer
		a := &app{out: &out, errOut: &errOut}
		start := time.Now()
		code := a.main(t.Context(), append(verb, "--json", "--nats-url", url))
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("%v: took %s", verb, d)
		}
		if code != exitFailed || !strings.Contains(errOut.String(), `"code":"PERMISSION_DENIED"`) {
			t.Errorf("%v: exit code %d, %s", verb, code, errOut.String())
		}
	}
}

// Whoever presses Ctrl-C before a verb has connected isn't told about it.
func TestInterruptedWhileConnecting(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out, errOut bytes.Buffer
	a := &app{out: &out, errOut: &errOut}
	if code := a.main(ctx, []string{"tail", "--nats-url", "nats://127.0.0.1:1"}); code != exitInterrupted || errOut.Len() > 0 {
		t.Errorf("exit code %d, %s", code, errOut.String())
	}
}

func TestWantsJSON(t *testing.T) {
	tests := map[string]bool{"runs --json": true, "--json=true": true, "runs": false, "run x -- --json": false, "--json=false": false}
	for args, want := range tests {
		if got := wantsJSON(strings.Fields(args)); got != want {
			t.Errorf("%q: %t, want %t", args, got, want)
		}
	}
}
