package native_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/pkg/wire"
)

// slowStream gives a stream of a model one event per second.
type slowStream struct{ events []string }

func (s *slowStream) RoundTrip(r *http.Request) (*http.Response, error) {
	body, pipe := io.Pipe()
	context.AfterFunc(r.Context(), func() { _ = pipe.CloseWithError(r.Context().Err()) })
	go func() {
		for _, e := range s.events {
			<-time.After(time.Second)
			if _, err := fmt.Fprintf(pipe, "event: %s\ndata: %s\n\n", strings.Split(e, `"`)[3], e); err != nil {
				return
			}
		}
		_ = pipe.Close()
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body, Request: r}, nil
}

// A model that takes long to write what a tool is to be given isn't silent.
func TestLongToolInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := []string{
			`{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"x","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}`,
			`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"write","input":{}}}`,
		}
		for _, piece := range []string{`{\"path\":`, `\"a\",`, `\"content\":`, `\"x`, `x`, `x`, `x`, `x`, `x`, `\"}`} {
			events = append(events, `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"`+piece+`"}}`)
		}
		events = append(events, `{"type":"content_block_stop","index":0}`, `{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}`, `{"type":"message_stop"}`)
		b := newBench(t)
		p := &native.Provider{Environ: []string{"ANTHROPIC_API_KEY=k"}, Client: &http.Client{Transport: &slowStream{events}}, Idle: 3 * time.Second}
		b.request.Options.MaxTurns = 1
		s, err := p.Start(t.Context(), b.request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		for e, err := range s.Events() {
			if err != nil {
				t.Fatal(err)
			}
			switch f := e.Payload.(type) {
			case *wire.AgentTool:
				return
			case *wire.AgentError:
				t.Errorf("%s: %s", f.ErrorType, f.Message)
				return
			}
		}
		t.Error("no tool was called")
	})
}
