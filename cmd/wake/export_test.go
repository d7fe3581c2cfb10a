package main

import (
	"bytes"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// exporting is a log with a run, and the command line on it.
type exporting struct {
	fileVerbs
	t   *testing.T
	log *eventlog.Log
	r   *feed.Reader
	out bytes.Buffer
}

const exportedSession = "20bf7da2-c1ef-4225-bc6a-a37251588a16"

func newExporting(t *testing.T) *exporting {
	x := &exporting{t: t, log: logtest.Start(t)}
	x.fileVerbs = fileVerbs{&app{out: &x.out, errOut: io.Discard, log: slog.New(slog.DiscardHandler), names: subjects.Default}}
	logtest.Serve(t, x.log)
	var err error
	if x.r, err = x.readerOn(t.Context(), x.log.Conn()); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("../../internal/agent/claude/testdata/stream/tools.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	// Other runs have positions in between.
	for _, id := range []string{"r0", "r1", "r2"} {
		var in io.Reader = strings.NewReader("words\n")
		if id == "r1" {
			in = f
		}
		if _, err := ingest.Run(t.Context(), x.log, in, ingest.Options{RunID: id, NodeID: "coder", Runner: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// export returns what the run is in a format.
func (x *exporting) export(o exportOptions) string {
	x.t.Helper()
	x.out.Reset()
	q := eventlog.Query{Run: "r1"}
	if err := o.checkFlags(q); err != nil {
		x.t.Fatal(err)
	}
	if err := x.exportLog(x.t.Context(), x.r, q, o); err != nil {
		x.t.Fatal(err)
	}
	if o.file == "" {
		return x.out.String()
	}
	b, err := os.ReadFile(o.file)
	if err != nil {
		x.t.Fatal(err)
	}
	return string(b)
}

// lastHash is the hash that a JSONL file ends with.
func lastHash(t *testing.T, file string) string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(file), "\n")
	var end struct{ Hash string }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &end); err != nil {
		t.Fatal(err)
	}
	return end.Hash
}

// A run in a database of its own is what the recorder would have of it: it is
// verified, and has the chain of the JSONL file.
func TestExportSQLite(t *testing.T) {
	x := newExporting(t)
	path := filepath.Join(t.TempDir(), "run.db")
	for range 2 { // the second takes the place of the first
		x.export(exportOptions{format: formatSQLite, file: path})
	}
	store, err := recorder.OpenReadOnly(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := store.Checker.Verify(t.Context(), "")
	if err != nil || len(v.Damages) > 0 || v.Runs != 1 || v.Gaps != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var head []byte
	if err := db.QueryRowContext(t.Context(), "SELECT head FROM runs").Scan(&head); err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(head), lastHash(t, x.export(exportOptions{format: formatJSONL})); got != want {
		t.Errorf("the store's chain ends with %s, the file's with %s", got, want)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/.*"); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

// What the stream has dropped is taken from the recorder: nothing changes.
func TestExportOfWhatTheStreamDropped(t *testing.T) {
	x := newExporting(t)
	formats := []string{formatJSONL, formatOpenHarness, formatHTML, formatOTLP, formatClaude, formatKahn}
	want := map[string]string{}
	for _, f := range formats {
		want[f] = x.export(exportOptions{format: f})
	}
	path := filepath.Join(t.TempDir(), "recorder.db")
	r, err := recorder.New(recorder.Config{Path: path}, x.log, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	logtest.Go(t, r.Run)
	for {
		store, err := x.findSource(t.Context(), x.r, eventlog.Query{Run: "r2"}, false)
		if err != nil {
			t.Fatal(err)
		}
		store.store = true
		n := 0
		for _, err := range store.readEvents(t.Context()) {
			if err == nil {
				n++
			}
		}
		if n > 3 {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	stream, err := x.log.JetStream().Stream(t.Context(), x.names.EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	for _, left := range []int64{10, 3} { // some events of the run, and none
		c.MaxMsgs, c.Discard = left, jetstream.DiscardOld
		if _, err := x.log.JetStream().UpdateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if first, last, err := x.log.Bounds(t.Context()); err != nil || int64(last-first) != left-1 {
			t.Fatalf("the stream has %d to %d, %v", first, last, err)
		}
		for _, f := range formats {
			if got := x.export(exportOptions{format: f}); got != want[f] {
				t.Errorf("%s is another: %d bytes, were %d", f, len(got), len(want[f]))
			}
		}
	}
	whole := eventlog.Query{Run: "r2"}
	store, err := x.findSource(t.Context(), x.r, whole, false)
	if err != nil {
		t.Fatal(err)
	}
	file, err := openStored(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, src := range map[string]source{"recorder": store, "file": {file: file, query: whole}} { // a meter tells of how many
		var behind []uint64
		for e, err := range src.readEvents(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			behind = append(behind, e.Behind)
		}
		for i, n := range behind {
			if n != uint64(len(behind)-1-i) {
				t.Errorf("%s: event %d of %d says that %d follow", name, i, len(behind), n)
			}
		}
	}
}

// The session file that was kept is what is written, unless it is to be made
// anew.
func TestExportKeptSession(t *testing.T) {
	x := newExporting(t)
	rebuilt := x.export(exportOptions{format: formatClaude})
	store, err := transcript.Open(t.Context(), x.log.JetStream(), x.names, nil)
	if err != nil {
		t.Fatal(err)
	}
	kept := `{"type":"user","sessionId":"` + exportedSession + `"}` + "\n"
	if err := store.Save(t.Context(), exportedSession, 0, []byte(kept)); err != nil {
		t.Fatal(err)
	}
	if got := x.export(exportOptions{format: formatClaude}); got != kept {
		t.Errorf("%.200s", got)
	}
	if got := x.export(exportOptions{format: formatClaude, rebuild: true}); got != rebuilt || !strings.Contains(got, exportedSession) {
		t.Errorf("%.200s", got)
	}
}

// Spans go to an endpoint, with the headers that it wants.
// What a folder and a session are called is up to the agent, and the hint is there
// to be given to a shell.
func TestClaudeHint(t *testing.T) {
	for _, c := range []struct{ session, cwd, file, want string }{
		{exportedSession, "/work", "s.jsonl", "hint: cp s.jsonl ~/.claude/projects/-work/" + exportedSession + ".jsonl && cd /work && claude --resume " + exportedSession},
		{exportedSession, "/a $(id);'b", "my s.jsonl", "hint: cp 'my s.jsonl' ~/.claude/projects/-a---id---b/" + exportedSession + `.jsonl && cd '/a $(id);'\''b' && claude --resume ` + exportedSession},
		{exportedSession, "/two  spaces", "s.jsonl", ""},
		{exportedSession, "/a\nid", "s.jsonl", "hint: cp s.jsonl ~/.claude/projects/-a-id/" + exportedSession + `.jsonl && cd $'/a\x0aid' && claude --resume ` + exportedSession},
		{exportedSession, strings.Repeat("/long", 1000), "s.jsonl", ""},
		{exportedSession, "", "s.jsonl", ""},
		{"--dangerously-skip-permissions", "/work", "s.jsonl", ""},
		{"../../../x;id", "/work", "s.jsonl", ""},
	} {
		done := exportSummary{}
		done.Session, done.Cwd, done.Written = c.session, c.cwd, 3
		lines := append(sessionHint(done, c.file), "")
		if lines[1] != c.want {
			t.Errorf("%q in %q:\n%s\nwant\n%s", c.session, c.cwd, lines[1], c.want)
		}
	}
	silent := exportSummary{}
	silent.Session, silent.Cwd = exportedSession, "/work"
	if lines := sessionHint(silent, "s.jsonl"); strings.Contains(strings.Join(lines, "\n"), "--resume") {
		t.Errorf("a session without a line is to be gone on with:\n%s", strings.Join(lines, "\n"))
	}
}

func TestExportToEndpoint(t *testing.T) {
	x := newExporting(t)
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, r.Header.Get("Authorization")+string(body)+"\n")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "spans.jsonl")
	got := x.export(exportOptions{format: formatOTLP, endpoint: server.URL, headers: []string{"authorization:  Bearer x "}, file: file})
	if sent := strings.Join(bodies, ""); sent != "Bearer x"+got || !strings.Contains(got, "invoke_agent coder") {
		t.Errorf("sent %.200s, wrote %.200s", sent, got)
	}
	if !strings.HasPrefix(x.out.String(), "r1: ") {
		t.Errorf("said %q", x.out.String())
	}
}

// A run that goes on is exported to its end.
func TestExportFollows(t *testing.T) {
	x := newExporting(t)
	w := logtest.Claim(t, x.log, "r3", wire.RunNode)
	logtest.Append(t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: wire.Raw{0x80}, DefinitionHash: "x"}})
	go func() {
		<-time.After(100 * time.Millisecond)
		_, _ = w.Append(t.Context(), &wire.Event{Payload: &wire.FlowAborted{Reason: "enough"}})
	}()
	err := x.exportLog(t.Context(), x.r, eventlog.Query{Run: "r3"}, exportOptions{format: formatOpenHarness, follow: true})
	if err != nil || !strings.HasSuffix(x.out.String(), "}\n") || !strings.Contains(x.out.String(), "flow:aborted") {
		t.Errorf("%q, %v", x.out.String(), err)
	}
}

// What fails leaves the file that was there.
func TestExportKeepsTheOldFile(t *testing.T) {
	x := newExporting(t)
	path := filepath.Join(t.TempDir(), "run.jsonl")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := x.exportLog(t.Context(), x.r, eventlog.Query{Run: "nobody"}, exportOptions{format: formatJSONL, file: path}); err == nil {
		t.Error("a run that isn't there was exported")
	}
	if b, err := os.ReadFile(path); string(b) != "old" {
		t.Errorf("%q, %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/.*"); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}
