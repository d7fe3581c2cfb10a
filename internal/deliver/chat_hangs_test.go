package deliver_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// A chat service that takes a connection and never answers holds up no other sink, not when rules are changed either.
func TestChatHangs(t *testing.T) {
	release := make(chan struct{})
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	w := begin(t)
	src := `
sinks:
  dead: {type: chat, url: "generic://` + strings.TrimPrefix(server.URL, "http://") + `/hook?disabletls=yes", timeout: 1s, attempts: 1}
  before: {type: terminal}
rules:
  - sinks: [dead, before]
`
	var out logtest.Output
	d, stop, _ := w.run(rules(t, src), &out)
	defer sync.OnceFunc(func() { close(release); stop(); server.Close() })()
	await := func(what string, there func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !there(); <-time.After(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %q", what, out.String())
			}
		}
	}
	begun := func(sink string) func() bool {
		return func() bool {
			all, err := deliver.StoredStatuses(t.Context(), w.log)
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(all, func(s wire.SinkStatus) bool { return s.Sink == sink })
		}
	}
	await("the sinks don't begin", func() bool { return begun("dead")() && begun("before")() })
	w.raise(1)
	<-asked
	await("the other sink gets nothing", func() bool { return strings.Contains(out.String(), "❌ 1") })
	d.Replace(rules(t, strings.ReplaceAll(src, "before", "behind")))
	await("no sink begins by the new rules", begun("behind"))
	w.raise(1)
	await("no sink gets anything by the new rules", func() bool { return strings.Contains(out.String(), "❌ 2") })
}
