package summary_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"code.wake.dev/wake/internal/summary"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is what a model was sent.
type request struct {
	Model    string
	System   string
	Messages []struct{ Role, Content string }
	header   http.Header
}

// endpoint answers with a status and a body.
func endpoint(t *testing.T, status int, body string) (url string, got *request) {
	t.Helper()
	got = new(request)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(sent, got)
		}
		if err != nil {
			t.Error(err)
		}
		got.header = r.Header
		w.Header().Set("Location", "http://elsewhere.invalid/messages")
		w.WriteHeader(status)
		fmt.Fprint(w, body) //nolint:errcheck // a reader that has gone is the test's matter
	}))
	t.Cleanup(server.Close)
	return server.URL, got
}

func TestModel(t *testing.T) {
	url, got := endpoint(t, 200, `{"content":[{"type":"thinking","text":"hm"},{"type":"text","text":" All \u001b[31mwell.\n"}]}`)
	told, err := summary.Model{URL: url + "/v1/messages", Name: "small", Key: "k1"}.Tell(t.Context(), "password=hunter2hunter2 "+strings.Repeat("é", 50_000)+" the end")
	if err != nil || told != "All well." {
		t.Errorf("told %q, %v", told, err)
	}
	content := got.Messages[0].Content
	switch {
	case got.Model != "small" || got.header.Get("X-Api-Key") != "k1" || got.header.Get("Anthropic-Version") == "" || !strings.Contains(got.System, "data"):
		t.Errorf("sent %+v", got)
	case strings.Contains(content, "hunter2") || len(content) > 33<<10 || !strings.Contains(content, "[…]") || !strings.HasSuffix(content, " the end\n</log>"):
		t.Errorf("%d bytes: %.80q … %q", len(content), content, content[len(content)-40:])
	}
	url, got = endpoint(t, 200, `{"choices":[{"message":{"role":"assistant","content":"`+strings.Repeat("x", 5000)+`"}}]}`)
	told, err = summary.Model{URL: url + "/v1/chat/completions", Name: "small", Key: "k2"}.Tell(t.Context(), "log")
	if err != nil || len([]rune(told)) != 4000 || got.header.Get("Authorization") != "Bearer k2" || len(got.Messages) != 2 {
		t.Errorf("told %d characters, %v; sent %+v", len(told), err, got)
	}
}

func TestModelFails(t *testing.T) {
	for want, answer := range map[string]struct {
		status int
		body   string
	}{
		"answers 529":   {529, `{"error":"over\u001bloaded"}`},
		"answers 307":   {307, ""},
		"can't be read": {200, "<html>"},
		"has no text":   {200, `{"content":[]}`},
	} {
		url, _ := endpoint(t, answer.status, answer.body)
		if told, err := (summary.Model{URL: url + "/messages", Name: "m"}).Tell(t.Context(), "log"); err == nil || told != "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: told %q, %v", want, told, err)
		}
	}
	for want, m := range map[string]summary.Model{
		"https://HOST":  {URL: "ftp://h/messages", Name: "m"},
		"should end in": {URL: "https://h/v1", Name: "m"},
		"no model":      {URL: "https://h/v1/messages"},
		"over https":    {URL: "http://example.com/v1/messages", Name: "m", Key: "k"},
	} {
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", m, err, want)
		}
	}
	for _, m := range []summary.Model{{URL: "http://[::1]:1/messages", Name: "m", Key: "k"}, {URL: "http://h/x/chat/completions", Name: "m"}} {
		if err := m.Check(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
}
