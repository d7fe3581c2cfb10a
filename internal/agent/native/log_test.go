package native_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
)

// TestLog is the levels of seeds/001: nothing is logged but to the logger that is given.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t,
			apitest.Failure(http.StatusTooManyRequests, "rate_limit_error"),
			apitest.Message(apitest.Call("t0", "read", `{"path":"../x"}`), apitest.Call("t1", "write", `{}`)),
			apitest.Message(apitest.Text("ok")))
		b.request.Options = agent.Options{Cwd: b.request.Options.Cwd, Model: "m", DisallowedTools: []string{"write"}}
		var out bytes.Buffer
		p := b.provider()
		p.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		b.play(p)
		want := map[string]string{
			"session open": "INFO", "agent complete": "INFO", "turn": "DEBUG", "tool call": "DEBUG", "limits of the model not known": "DEBUG",
			"model call failed": "WARN", "tool call failed": "WARN", "tool call denied": "WARN",
		}
		got := map[string]string{}
		for line := range strings.Lines(out.String()) {
			_, rest, _ := strings.Cut(line, "level=")
			level, rest, _ := strings.Cut(rest, " msg=")
			text, _, _ := strings.Cut(strings.TrimPrefix(rest, `"`), ` run_id=r node_id=n session_id=s`)
			got[strings.TrimSuffix(text, `"`)] = level
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s\n%s", diff, out.String())
		}
	})
}
