package api_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/nats-io/nats.go/micro"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/wire"
)

// echo answers with what it was asked.
type echo struct {
	Echo wire.Raw `json:"echo"`
}

// FuzzRequests sends anything to a verb that answers with what it was asked. The
// answer has the form of the question and its envelope, it holds the question
// unchanged, and a question that can't be read is refused for that reason.
func FuzzRequests(f *testing.F) {
	nc := natstest.Start(f)
	s := api.Service{Name: "recorder", Endpoints: []api.Endpoint{
		api.Handle(wire.VerbLog, "get_log", func(_ context.Context, q wire.Raw, _ api.Form) (echo, error) { return echo{q}, nil }),
	}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, nc) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.Errorf("Run: %v", err)
		}
	})
	for {
		if _, err := nc.RequestWithContext(f.Context(), "wake.api.log", nil); err == nil {
			break
		}
	}
	for _, text := range []string{
		``, `{}`, `{"run":"r1","grep":"("}`, `{"type":"command","action":"get_log","requestId":"1","params":{"agentId":"a"}}`,
		`{"type":"command","action":"log","requestId":"é","params":[1,2.5,null]}`, `{"type":"command","action":"delete_all"}`,
		`{"type":"command","action":7}`, `{"type":"command","requestId":"1"}`, `{"a":1,"a":2}`, `{"a":`, `[]`, ` {}`, `{"big":123456789012345678901234567890}`,
		"\x80", "\x81\xa1a\x01", "\xdf\xff\xff\xff\xff", "\xc1", "\x84\xa4type\xa7command\xa6action\xa3log\xa9requestId\xa11\xa6params\xc0", "\x90", "\x81\xa1a\xa2\xff\xfe",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		if len(request) > api.MaxRequest+10 {
			return
		}
		m, err := nc.RequestWithContext(t.Context(), "wake.api.log", request)
		if err != nil {
			t.Fatal(err)
		}
		answer := wire.Raw(m.Data)
		if len(request) == 0 || request[0] == '{' {
			if answer, err = wire.RawFromJSON(m.Data); err != nil {
				t.Fatalf("%q is answered by %q: %v", request, m.Data, err)
			}
		}
		if canonical, err := wire.Canonical(answer); err != nil || !bytes.Equal(canonical, answer) {
			t.Fatalf("%q is answered by %q: %v", request, m.Data, err)
		}
		code := m.Header.Get(micro.ErrorCodeHeader)
		if told := answer.TextAt("error", "code"); told != code {
			t.Fatalf("%q: the header says %q, the answer %q", request, code, told)
		}
		checkAnswer(t, request, answer, wire.ErrorCode(code))
	})
}

// checkAnswer compares an answer with what the verb has to make of a request.
func checkAnswer(t *testing.T, request []byte, answer wire.Raw, code wire.ErrorCode) {
	t.Helper()
	body, readable := read(request)
	if !readable {
		if code != wire.CodeBadRequest && code != wire.CodeTooLarge {
			t.Fatalf("%q can't be read and is answered by %v, %q", request, answer.Any(), code)
		}
		return
	}
	if kind := body.TextAt("type"); kind != "command" {
		if got := answer.Get("echo"); code != "" || !bytes.Equal(got, body) {
			t.Fatalf("%q is answered by %v, %q", request, answer.Any(), code)
		}
		return
	}
	action := body.TextAt("action")
	id := body.TextAt("requestId")
	if action != "log" && action != "get_log" && code == "" {
		t.Fatalf("%q: action %q is obeyed", request, action)
	}
	if code != "" {
		if code != wire.CodeBadRequest {
			t.Fatalf("%q is refused as %q", request, code)
		}
		return
	}
	params := body.Get("params")
	if params == nil {
		params = wire.Raw{0x80}
	}
	if got := answer.TextAt("requestId"); got != id || !bytes.Equal(answer.Get("result").Get("echo"), params) {
		t.Fatalf("%q is answered by %v", request, answer.Any())
	}
}

// read reads a request as the document of the wire says.
func read(request []byte) (wire.Raw, bool) {
	var body wire.Raw
	var err error
	switch {
	case len(request) > api.MaxRequest:
		return nil, false
	case len(request) == 0:
		return wire.Raw{0x80}, true
	case request[0] == '{':
		body, err = wire.RawFromJSON(request)
	default:
		body, err = wire.Canonical(bytes.Clone(request))
	}
	return body, err == nil
}
