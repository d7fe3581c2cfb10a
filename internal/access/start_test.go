package access_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// TestWhoStartsARun: what is stored of a request for a run says who has asked in the word of the
// server, whatever the request says, and nobody stores one past the service that asks the server.
func TestWhoStartsARun(t *testing.T) {
	s := newSite(t)
	s.init()
	nc, _, _ := s.connect(access.User{Name: "recorder", Role: access.Recorder})
	log := logtest.Open(t, nc)
	defer logtest.Go(t, feed.NewServer(log, logtest.Logger(t)).Run)()

	for _, name := range []string{"ann", "bob"} {
		nc, refused, _ := s.connect(access.User{Name: name, Role: access.Operator})
		var c *client.Client
		await(t, "the service", func() (ok bool) {
			var err error
			c, err = client.Open(t.Context(), nc, client.Options{})
			return err == nil
		})
		if err := c.Start(t.Context(), wire.RunRequest{RunID: "of-" + name, By: "king", Definition: wire.RawString("a flow")}); err != nil {
			t.Fatal(err)
		}
		if err := s.try(nc, refused, "+"+subjects.Default.QueueRun()); err == nil {
			t.Errorf("%s may publish to %s", name, subjects.Default.QueueRun())
		}
	}

	nc, _, _ = s.connect(access.User{Name: "runner", Role: access.Runner})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subjects.Default.QueueStream())
	if err != nil {
		t.Fatal(err)
	}
	if stream.CachedInfo().State.Msgs != 2 {
		t.Errorf("%d requests are stored", stream.CachedInfo().State.Msgs)
	}
	for i, name := range []string{"ann", "bob"} {
		m, err := stream.GetMsg(t.Context(), uint64(i)+1)
		if err != nil {
			t.Fatal(err)
		}
		var r wire.RunRequest
		if err := wire.Unmarshal(m.Data, &r); err != nil {
			t.Fatal(err)
		}
		if r.RunID != "of-"+name || r.By != name {
			t.Errorf("run %s is asked for by %q", r.RunID, r.By)
		}
	}
}
