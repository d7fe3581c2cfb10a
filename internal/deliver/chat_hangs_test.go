package deliver_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// lockedText is written and read at once.
type lockedText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *lockedText) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *lockedText) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

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
  here: {type: terminal}
rules:
  - sinks: [dead, here]
`
	out := &lockedText{}
	d, stop, _ := w.run(rules(t, src), out)
	once := sync.OnceFunc(func() { close(release); stop(); server.Close() })
	defer once()
	<-time.After(2 * time.Second)
	w.raise(1)
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Fatal("the chat service isn't asked")
	}
	<-time.After(3 * time.Second)
	if !strings.Contains(out.String(), "❌ 1") {
		t.Fatalf("before: %q", out.String())
	}
	d.Replace(rules(t, strings.Replace(src, "attempts: 1", "attempts: 2", 1)))
	<-time.After(2 * time.Second)
	w.raise(1)
	for begun := time.Now(); !strings.Contains(out.String(), "❌ 2"); <-time.After(100 * time.Millisecond) {
		if time.Since(begun) > 60*time.Second {
			t.Fatalf("no sink gets anything a minute after the rules were changed: %q", out.String())
		}
	}
}
