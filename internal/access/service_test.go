package access_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// TestServiceKnowsWhoAsks has a service with its credentials asked by each user: it is told
// by the server who that is, whatever the request says itself, and refuses the request
// of which it is told nothing.
func TestServiceKnowsWhoAsks(t *testing.T) {
	s := newSite(t)
	nc, _, _ := s.connect(access.User{Name: "recorder", Role: access.Recorder})
	service := api.Service{Name: "recorder", Logger: slog.New(slog.DiscardHandler), Endpoints: []api.Endpoint{
		api.Handle(wire.VerbStatus, "", func(ctx context.Context, _ wire.StatusRequest, _ api.Form) (wire.StatusResponse, error) {
			return wire.StatusResponse{RunID: api.CallerOf(ctx).Name}, nil
		}).OfRun(),
	}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx, nc) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ask := func(u access.User, run string) (string, wire.ErrorCode) {
		t.Helper()
		nc, _, _ := s.connect(u)
		forged := &nats.Msg{Subject: "wake.api.status", Data: []byte(`{"run":"` + run + `"}`), Header: nats.Header{}}
		forged.Header.Set(access.CallerHeader, `{"user":"UX","name_tag":"king"}`)
		m, err := nc.RequestMsgWithContext(t.Context(), forged)
		if err != nil {
			t.Fatalf("%s: %v", u.Name, err)
		}
		var r wire.StatusResponse
		var e wire.ErrorResponse
		raw, err := wire.RawFromJSON(m.Data)
		if err != nil || wire.Unmarshal(raw, &e) != nil {
			t.Fatalf("%s: %s, %v", u.Name, m.Data, err)
		}
		if e.Error != nil {
			return "", e.Error.Code
		}
		if err := wire.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		return r.RunID, ""
	}
	viewer, _, _ := s.connect(access.User{Name: "waits", Role: access.Viewer})
	await(t, "the service", func() bool {
		_, err := viewer.RequestWithContext(t.Context(), "wake.api.status", nil)
		return err == nil
	})
	for _, u := range []access.User{{Name: "ann", Role: access.Operator}, {Name: "vic", Role: access.Viewer}, {Name: "gus", Role: access.Guest, Run: "Mine"}} {
		if name, code := ask(u, "Mine"); name != u.Name || code != "" {
			t.Errorf("%s asks as %q, %s", u.Name, name, code)
		}
	}
	if _, code := ask(access.User{Name: "gus", Role: access.Guest, Run: "Mine"}, "mine"); code != wire.CodeDenied {
		t.Errorf("a guest of another run: %q", code)
	}
	// Services ask each other in one account, where the server names nobody: they name themselves.
	for name, role := range map[string]access.Role{"up": access.Up, "r1": access.Runner} {
		up, _, _ := s.connect(access.User{Name: name, Role: role})
		r, err := api.Call[wire.StatusResponse](t.Context(), up, subjects.Default, wire.VerbStatus, wire.StatusRequest{Run: "Mine"})
		if err != nil || r.RunID != name {
			t.Errorf("%s asks as %q, %v", name, r.RunID, err)
		}
		m, err := up.RequestWithContext(t.Context(), "wake.api.status", []byte(`{"run":"Mine"}`))
		if err != nil || !strings.Contains(string(m.Data), string(wire.CodeDenied)) {
			t.Errorf("nobody: %v", err)
		}
	}
}
