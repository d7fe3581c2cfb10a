package claude

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/internal/agent/pipe"
	"code.wake.dev/wake/pkg/wire"
)

// FuzzSessionFile reads anything as versions of a session file. The fast ways of
// finding the last time, the further version and a fork point find what slow ones do.
func FuzzSessionFile(f *testing.F) {
	const file = `{"uuid":"u1","timestamp":"2026-01-01T00:00:00.000Z","message":{"content":"go"}}
{"uuid":"u2","timestamp":"2026-01-01T00:00:01.000Z","message":{"id":"m1","content":[{"type":"tool_use","id":"t1"},{"type":"tool_use","id":"t2"}]}}
{"uuid":"u3","timestamp":"2026-01-01T00:00:02.000Z","message":{"content":[{"type":"tool_result","tool_use_id":"t1"}]}}
{"type":"summary"}
{"uuid":"u4","timestamp":"2026-01-01T00:00:03.000Z","message":{"content":[{"type":"tool_result","tool_use_id":"t2"}]}}
{"uuid":"u5","attachment":{"source_uuid":"s5"}}
`
	f.Add([]byte(file), []byte(file[:200]), "u3")
	f.Add([]byte(file), []byte(file+`{"timestamp":"2027`), "s5")
	f.Add([]byte(file[:300]+"\n"), []byte(file+"\n"), "u4")
	f.Add([]byte(file+`{"timestamp":"2027-01-01T00:00:00.000Z"}`), []byte(file), "u5")
	f.Add([]byte(`{"uuid":"u1","isSidechain":true}`), []byte("\n\n"), "u1")
	f.Add([]byte("{\"timestamp\":\"x\"}\n[1]\n7\n"), []byte(""), "")
	f.Add([]byte(`{"uuid":"u","message":{"content":[{"type":"tool_result","tool_use_id":""}]}}`+"\n"), []byte(`{"message":7}`), "u")
	f.Fuzz(func(t *testing.T, a, b []byte, point string) {
		if got, want := lastTime(a), slowLastTime(a); got != want {
			t.Fatalf("last time of %q is %d, want %d", a, got, want)
		}
		if isFurther(a, b) && isFurther(b, a) && !bytes.Equal(a, b) {
			t.Fatalf("%q and %q go further than each other", a, b)
		}
		if longer := append(bytes.Clone(a), b...); !isFurther(longer, a) {
			t.Fatalf("%q doesn't go as far as %q", longer, a)
		}
		id, late := pointIn(a, point)
		if wantID, wantLate := slowPointIn(a, point); id != wantID || id != "" && late != wantLate {
			t.Fatalf("point %q of %q is %q with %d results, want %q with %d", point, a, id, late, wantID, wantLate)
		}
		noise := append([]byte("{half a line\n"), a...)
		if again, n := pointIn(noise, point); again != id || id != "" && n != late {
			t.Fatalf("a damaged line moves point %q of %q from %q to %q", point, a, id, again)
		}
	})
}

func slowLastTime(content []byte) int64 {
	var last int64
	for line := range bytes.Lines(content) {
		var l struct {
			Timestamp string `json:"timestamp"`
		}
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &l) == nil && l.Timestamp != "" {
			last = parseMillis(l.Timestamp)
		}
	}
	return last
}

// slowPointIn finds the point first, and then the results of its calls' messages.
func slowPointIn(content []byte, point string) (id string, late int) {
	var entries []fileEntry
	at := -1
	for line := range bytes.Lines(content) {
		var e fileEntry
		if json.Unmarshal(line, &e) != nil || e.Sidechain {
			continue
		}
		if at < 0 && (e.UUID == point || e.Attachment.SourceUUID == point) && (e.UUID != "" || point != "") {
			at, id = len(entries), e.UUID
			if id == "" {
				id = point
			}
		}
		entries = append(entries, e)
	}
	if at < 0 {
		return "", 0
	}
	message := func(until int, call string) (id string) {
		for i, e := range entries[:until+1] {
			for _, b := range e.contentBlocks() {
				if b.Type == "tool_result" && i == until && b.ToolUseID == call {
					return id
				}
				if b.Type == "tool_use" && b.ID == call {
					id = e.Message.ID
				}
			}
		}
		return id
	}
	together := map[string]bool{}
	for _, b := range entries[at].contentBlocks() {
		if b.Type == "tool_result" {
			together[message(at, b.ToolUseID)] = true
		}
	}
	for i, e := range entries[at+1:] {
		for _, b := range e.contentBlocks() {
			if b.Type == "tool_result" && together[message(at+1+i, b.ToolUseID)] {
				late++
			}
		}
	}
	return id, late
}

// FuzzSessionNames makes files and folders of anything: none leads elsewhere.
func FuzzSessionNames(f *testing.F) {
	for _, s := range []string{"7d4c1c9e-5b0e-4f6b-9d53-0c1f3a5e8b11", "../x", "a/b", "", ".", "C:\\x", "é", "a\x00b", strings.Repeat("/home/user", 40), "/tmp/a.b_c"} {
		f.Add(s)
	}
	plain := regexp.MustCompile(`^[0-9A-Za-z-]{0,208}$`)
	f.Fuzz(func(t *testing.T, s string) {
		if isSafeID(s) && (filepath.Base(s) != s || !filepath.IsLocal(s+".jsonl") || strings.ContainsAny(s, ". ")) {
			t.Fatalf("session %q is safe", s)
		}
		if got := folderName(s); !plain.MatchString(got) || got != folderName(s) {
			t.Fatalf("the folder of %q is %q", s, got)
		}
	})
}

// FuzzParentServer sends the parent's MCP server any message: it is answered in one
// line of JSON-RPC under its id, and what it takes for a message to the parent is
// exactly what the log is told of.
func FuzzParentServer(f *testing.F) {
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`, `{"id":"x","method":"tools/list"}`,
		`{"id":2,"method":"tools/call","params":{"name":"notify_parent","arguments":{"message":"which?","priority":"question"}}}`,
		`{"id":2,"method":"tools/call","params":{"name":"notify_parent","arguments":{"message":" "}}}`,
		`{"id":2,"method":"tools/call","params":{"name":"notify_parent","arguments":{"message":"x","priority":null}}}`,
		`{"id":2,"method":"tools/call","params":{"name":"rm"}}`, `{"method":"ping"}`, `{"id":[1],"method":7}`, `{}`, `[]`, `null`, `{"id":1e400}`,
		`{"id":null,"method":"\u001b[2J"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		message, err := wire.RawFromJSON(data)
		if err != nil {
			return
		}
		line, err := pipe.EncodeLine(successResponse("q", serveParent(message, "id")))
		if err != nil || bytes.Count(line, []byte("\n")) != 1 || bytes.ContainsRune(line, 0x1b) {
			t.Fatalf("%q is answered by %q: %v", data, line, err)
		}
		var got struct {
			Response struct {
				Response struct {
					Reply struct {
						ID     json.RawMessage `json:"id"`
						Result json.RawMessage `json:"result"`
						Error  json.RawMessage `json:"error"`
					} `json:"mcp_response"`
				} `json:"response"`
			} `json:"response"`
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatal(err)
		}
		reply := got.Response.Response.Reply
		if (reply.Result == nil) == (reply.Error == nil) {
			t.Fatalf("%q is answered by %q", data, line)
		}
		if id, err := wire.RawFromJSON(reply.ID); message.Get("id") != nil && (err != nil || !bytes.Equal(id, message.Get("id"))) {
			t.Fatalf("%q is answered under %s", data, reply.ID)
		}
		request, err := wire.Marshal(map[string]any{"request_id": "q", "request": map[string]any{"server_name": parent.Server, "message": message}})
		if err != nil {
			t.Fatal(err)
		}
		taken := NewNormalizer(NormalizerOptions{Started: true}).toParent(request)
		delivered := message.TextAt("method") == "tools/call" && bytes.Contains(reply.Result, []byte(`"isError":false`))
		if taken != delivered {
			t.Fatalf("%q: on record %t, answered by %q", data, taken, line)
		}
	})
}
