package feed_test

import (
	"errors"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// TestStartRun: a request for a run is stored, once however often it is sent, and one that no
// runner could use is refused.
func TestStartRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		d := open(t)
		flow := wire.RawString("a flow")
		for range 2 {
			if err := d.r.StartRun(t.Context(), wire.RunRequest{RunID: "r1", Definition: flow, By: "ann"}); err != nil {
				t.Fatal(err)
			}
		}
		for what, c := range map[string]struct {
			q    wire.RunRequest
			want string
		}{
			"no run":        {wire.RunRequest{Definition: flow}, "runId: "},
			"a bad name":    {wire.RunRequest{RunID: "_a", Definition: flow}, "runId: "},
			"no definition": {wire.RunRequest{RunID: "r1"}, "a run needs a definition"},
		} {
			_, err := api.Call[wire.StartResponse](t.Context(), d.log.Conn(), subjects.Default, wire.VerbStart, c.q)
			if e, ok := errors.AsType[*wire.APIError](err); !ok || e.Code != wire.CodeBadRequest || !strings.Contains(e.Message, c.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// 2 KiB below what the server takes, there is no room for the event that begins the run.
		for _, beyond := range []int{-2 << 10, 0, 1 << 20} {
			long := wire.RawString(strings.Repeat("x", int(d.log.Conn().MaxPayload())+beyond))
			err := d.r.StartRun(t.Context(), wire.RunRequest{RunID: "r2", Definition: flow, Input: long})
			if e, ok := errors.AsType[*wire.APIError](err); !ok || e.Code != wire.CodeTooLarge || !strings.Contains(e.Hint, "files of the workspace") {
				t.Errorf("%d bytes beyond: %v", beyond, err)
			}
		}

		stream, err := d.log.JetStream().Stream(t.Context(), subjects.Default.QueueStream())
		if err != nil {
			t.Fatal(err)
		}
		if n := stream.CachedInfo().State.Msgs; n != 1 {
			t.Errorf("%d requests are stored", n)
		}
		m, err := stream.GetMsg(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		var r wire.RunRequest
		if err := wire.Unmarshal(m.Data, &r); err != nil || r.V != wire.Version || r.RunID != "r1" || r.By != "ann" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
