package export_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// jsonl returns a run as a file.
func jsonl(t testing.TB, h *history) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := export.JSONL(&b, h.run, h.events(), noBlobs); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readAll returns the events of a file.
func readAll(b []byte) (items []export.Item, err error) {
	f, err := export.Open(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for item, err := range f.All() {
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	return items, nil
}

// What is written can be read, to the byte.
func TestJSONLIsWhole(t *testing.T) {
	for _, file := range recordings(t) {
		h := recorded(t, file)
		items, err := readAll(jsonl(t, h))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(items) != len(h.entries) {
			t.Fatalf("%s: %d events of %d", file, len(items), len(h.entries))
		}
		for i, e := range h.entries {
			if got := items[i]; got.Pos != e.Pos || got.Time != e.Time.UnixMilli() || !bytes.Equal(got.Data, e.Data) {
				t.Errorf("%s: event %d is another", file, i)
			}
		}
	}
}

// An event that another encoder wrote, in another order of keys, keeps its bytes.
func TestOtherEncoding(t *testing.T) {
	h := newHistory(t)
	h.start("")
	data := []byte{0x88}
	for _, kv := range []struct {
		key   string
		value any
	}{
		{"content", "x"},
		{"type", "agent:text"},
		{"runId", "r1"},
		{"nodeId", "a"},
		{"v", 1},
		{"seq", 1},
		{"epoch", 1},
		{"timestamp", began},
	} {
		data = append(data, must(wire.Marshal(kv.key))...)
		data = append(data, must(wire.Marshal(kv.value))...)
	}
	e := h.entries[1]
	e.Pos, e.Data, e.Event = 99, data, must(wire.Decode(data))
	h.entries = append(h.entries, e)
	items, err := readAll(jsonl(t, h))
	if err != nil {
		t.Fatal(err)
	}
	if got := items[len(items)-1].Data; !bytes.Equal(got, data) {
		t.Errorf("%x, want %x", got, data)
	}
}

// Whatever is done to a file is found, and the place is told.
func TestTampered(t *testing.T) {
	h := newHistory(t)
	h.start("")
	for i := range 5 {
		h.add("coder", "coder#1", &wire.AgentText{Content: fmt.Sprintf("text %d", i)})
	}
	file := strings.SplitAfter(string(jsonl(t, h)), "\n") // head, 7 events, tail, ""
	for name, tc := range map[string]struct {
		edit func(l []string) []string
		line int
		says string
	}{
		"a letter": {func(l []string) []string { l[4] = strings.Replace(l[4], "text 1", "text 7", 1); return l }, 5, "breaks the chain"},
		"a time":   {func(l []string) []string { l[4] = strings.Replace(l[4], `"time":`, `"time":1`, 1); return l }, 5, "breaks the chain"},
		"a hash":   {func(l []string) []string { l[4] = strings.Replace(l[4], `"hash":"`, `"hash":"0`, 1); return l }, 5, "breaks the chain"},
		"lost":     {func(l []string) []string { return slices.Delete(l, 4, 5) }, 5, "breaks the chain"},
		"doubled":  {func(l []string) []string { return slices.Insert(l, 5, l[4]) }, 6, "has position"},
		"swapped":  {func(l []string) []string { l[4], l[5] = l[5], l[4]; return l }, 5, "breaks the chain"},
		"cut off":  {func(l []string) []string { return l[:6] }, 7, "is missing: the file was cut off"},
		"cut in a line": {func(l []string) []string {
			l[5] = l[5][:len(l[5])/2]
			return l[:6]
		}, 6, "isn't a JSON object"},
		"another run":        {func(l []string) []string { l[0] = strings.Replace(l[0], `"r1"`, `"r2"`, 1); return l }, 2, "breaks the chain"},
		"last lost":          {func(l []string) []string { return slices.Delete(l, 7, 8) }, 8, "says that there are 7 events; the file has 6"},
		"more":               {func(l []string) []string { return append(l, l[3]) }, 10, "is behind the end"},
		"no beginning":       {func(l []string) []string { return l[1:] }, 1, "isn't the beginning of an exported run"},
		"empty":              {func([]string) []string { return nil }, 1, "the file is empty"},
		"words":              {func(l []string) []string { l[3] = "words\n"; return l }, 4, "isn't a JSON object"},
		"no event":           {func(l []string) []string { l[3] = `{"pos":5,"hash":"","event":{"v":1}}` + "\n"; return l }, 4, "isn't an event"},
		"newer":              {func(l []string) []string { l[0] = strings.Replace(l[0], `"wake":1`, `"wake":2`, 1); return l }, 1, "newer version"},
		"no run":             {func(l []string) []string { l[0] = strings.Replace(l[0], `"r1"`, `""`, 1); return l }, 1, "names no run"},
		"a field":            {func(l []string) []string { return slices.Insert(l, 3, `{"blob":"00","data":"AA=="}`+"\n") }, 4, "another content"},
		"a field added":      {func(l []string) []string { return slices.Insert(l, 3, field(2000)) }, 5, "doesn't refer to the field"},
		"a field at the end": {func(l []string) []string { return slices.Insert(l, 8, field(2000)) }, 10, "where an event with large fields should be"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll([]byte(strings.Join(tc.edit(slices.Clone(file)), "")))
			fault, is := errors.AsType[*export.FileError](err)
			if !is || fault.Line != tc.line || !strings.Contains(fault.Problem, tc.says) {
				t.Errorf("%v, want line %d %s", err, tc.line, tc.says)
			}
		})
	}
}

// field is the line of a large field.
func field(size int) string {
	data := bytes.Repeat([]byte("x"), size)
	sum := sha256.Sum256(data)
	return fmt.Sprintf("{\"blob\":%q,\"data\":%q}\n", hex.EncodeToString(sum[:]), base64.StdEncoding.EncodeToString(data))
}

// Any byte of the events that is flipped is found.
func TestEveryByteCounts(t *testing.T) {
	file := jsonl(t, recorded(t, "stream/refusal.jsonl"))
	for i := 0; i < len(file)-1; i += 97 {
		b := bytes.Clone(file)
		b[i] ^= 0x04
		items, err := readAll(b)
		if err != nil {
			continue
		}
		// What isn't hashed are the names of fields that nobody reads.
		want := must(readAll(file))
		if diff := cmp.Diff(datas(want), datas(items)); diff != "" {
			t.Errorf("byte %d (%q): read as if nothing had happened: %s", i, file[i], diff)
		}
	}
}

func datas(items []export.Item) (all [][]byte) {
	for _, item := range items {
		all = append(all, item.Data)
	}
	return all
}

// store writes a history into a log, as its writers would.
func store(t testing.TB, log *eventlog.Log, h *history) {
	t.Helper()
	c := log.Copy(h.run.ID)
	for _, e := range h.entries {
		small, blobs := must2(t)(log.StoredForm(e.Data))
		if err := c.Add(t.Context(), small, blobs); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func must2(t testing.TB) func([]byte, map[string][]byte, error) ([]byte, map[string][]byte) {
	return func(b []byte, m map[string][]byte, err error) ([]byte, map[string][]byte) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b, m
	}
}

// stored returns the bytes that a log has of a run, and its state.
func stored(t testing.TB, log *eventlog.Log, id string) (all [][]byte, s *wire.State) {
	t.Helper()
	s = run.New(id)
	for e, err := range log.Read(t.Context(), eventlog.Query{Run: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Apply(s, wire.Position{Incarnation: log.Incarnation(), Seq: e.Pos}, e.Event); err != nil {
			t.Errorf("at %d: %v", e.Pos, err)
		}
		all = append(all, e.Data)
	}
	return all, s
}

// exported returns a run of a log as a file.
func exported(t testing.TB, log *eventlog.Log, id string) []byte {
	t.Helper()
	var b bytes.Buffer
	r, err := export.JSONL(&b, export.Run{ID: id, Incarnation: log.Incarnation()}, log.Read(t.Context(), eventlog.Query{Run: id}),
		func(sum string) ([]byte, error) { return log.Blob(t.Context(), sum) })
	if err != nil {
		t.Fatal(err)
	}
	if r.Missing > 0 || r.Skipped > 0 {
		t.Errorf("%+v", r)
	}
	return b.Bytes()
}

// A file tells of each large field that an event refers to: one that the object store had lost is no reason to refuse
// the file, one whose line was lost since is.
func TestLinesOfFields(t *testing.T) {
	h := newHistory(t)
	h.start("")
	h.add("coder", "coder#1", &wire.AgentText{Content: strings.Repeat("large ", 100_000)})
	h.complete()
	log := logtest.Start(t)
	store(t, log, h)
	file := strings.SplitAfter(string(exported(t, log, "r1")), "\n")
	at := slices.IndexFunc(file, func(line string) bool { return strings.HasPrefix(line, `{"blob":`) })
	if at < 0 {
		t.Fatal("no large field")
	}
	lacking := slices.Delete(slices.Clone(file), at, at+1)
	_, err := readAll([]byte(strings.Join(lacking, "")))
	if fault, is := errors.AsType[*export.FileError](err); !is || fault.Line != at+1 || !strings.Contains(fault.Problem, "is missing before it") {
		t.Errorf("without line %d: %v", at+1, err)
	}

	var out bytes.Buffer
	r, err := export.JSONL(&out, export.Run{ID: "r1", Incarnation: log.Incarnation()}, log.Read(t.Context(), eventlog.Query{Run: "r1"}), noBlobs)
	if err != nil || r.Missing == 0 {
		t.Fatalf("%+v, %v: no field is missing", r, err)
	}
	items, err := readAll(out.Bytes())
	if err != nil || len(items) != len(h.entries) {
		t.Fatalf("%d events of %d, %v", len(items), len(h.entries), err)
	}
	for _, item := range items {
		if len(item.Blobs) > 0 {
			t.Errorf("line %d has fields: %v", item.Line, item.Blobs)
		}
	}
}

// A run goes from one server to another: its events are the same but for the one
// that says that it was imported, and importing it again adds nothing.
func TestImport(t *testing.T) {
	for name, file := range map[string]string{"small": "stream/subagents.jsonl", "large fields": "stream/hugeout.jsonl"} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			h.start("")
			h.record("coder", file, agent.BlocksFallback)
			h.add("coder", "coder#1", &wire.AgentText{Content: strings.Repeat("large ", 100_000)})
			h.complete()
			here, there := logtest.Start(t), logtest.Start(t)
			store(t, here, h)
			out := exported(t, here, "r1")
			im, err := export.Restore(t.Context(), there, bytes.NewReader(out), nil)
			if err != nil || im.Added != len(h.entries) || im.Events != im.Added {
				t.Fatalf("%+v, %v; %d events", im, err, len(h.entries))
			}
			want, _ := stored(t, here, "r1")
			got, state := stored(t, there, "r1")
			for i := range want {
				same := bytes.Equal(want[i], got[i])
				if begins := wire.Raw(want[i]).TextAt("type"); (begins == string(wire.TypeFlowStart)) == same {
					t.Errorf("event %d: same is %t", i, same)
				}
			}
			if state.Imported != wire.ImportedCopy || state.Status != wire.RunComplete {
				t.Errorf("%s, imported %q", state.Status, state.Imported)
			}
			for _, again := range [][]byte{out, exported(t, there, "r1")} {
				im, err := export.Restore(t.Context(), there, bytes.NewReader(again), nil)
				if err != nil || im.Added != 0 || im.Events != len(h.entries) {
					t.Errorf("again: %+v, %v", im, err)
				}
			}
			// Where it is from, it is already.
			if im, err := export.Restore(t.Context(), here, bytes.NewReader(out), nil); err != nil || im.Added != 0 {
				t.Errorf("at home: %+v, %v", im, err)
			}
		})
	}
}

// TestImportMarks shows that a label which was given to an earlier point is at that point in a copy of the run, and in a copy of that, and
// that importing any of them again adds nothing.
func TestImportMarks(t *testing.T) {
	h := newHistory(t)
	h.start("")
	h.record("coder", "stream/tools.jsonl", agent.BlocksFallback)
	home := logtest.Start(t)
	store(t, home, h)
	const marked = 12
	at := func(log *eventlog.Log, i int) (pos uint64) {
		for e, err := range log.Read(t.Context(), eventlog.Query{Run: "r1"}) {
			if i--; err != nil || i < 0 {
				return e.Pos
			}
		}
		return 0
	}
	later := *h
	later.entries = nil
	later.add(wire.RunNode, "", &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: "reviewed", AtPos: at(home, marked)})
	later.complete()
	store(t, home, &later)
	from := home
	for hop := range 2 {
		there := logtest.Start(t)
		other := &history{t: t, run: export.Run{ID: "r2", Incarnation: "i"}, seq: map[string]uint64{}, at: began}
		other.start("") // positions are others here
		if hop > 0 {
			other.complete()
		}
		store(t, there, other)
		out := exported(t, from, "r1")
		for again := range 2 {
			im, err := export.Restore(t.Context(), there, bytes.NewReader(out), nil)
			if err != nil || (im.Added == 0) != (again == 1) {
				t.Fatalf("%+v, %v", im, err)
			}
		}
		_, s := stored(t, there, "r1")
		if want := at(there, marked); len(s.Bookmarks) != 1 || s.Bookmarks[0].Position != want || want == at(from, marked) {
			t.Errorf("bookmarks %+v, want one at %d; it was at %d", s.Bookmarks, want, at(from, marked))
		}
		from = there
	}
	if im, err := export.Restore(t.Context(), home, bytes.NewReader(exported(t, home, "r1")), nil); err != nil || im.Added != 0 {
		t.Errorf("at home: %+v, %v", im, err)
	}
}

// An import that was cut off is gone on with.
func TestImportGoesOn(t *testing.T) {
	h := recorded(t, "stream/tools.jsonl")
	log := logtest.Start(t)
	first := *h
	first.entries = h.entries[:57]
	store(t, log, &first)
	im, err := export.Restore(t.Context(), log, bytes.NewReader(jsonl(t, h)), nil)
	if err != nil || im.Added != len(h.entries)-57 {
		t.Fatalf("%+v, %v", im, err)
	}
	if got, _ := stored(t, log, "r1"); len(got) != len(h.entries) {
		t.Errorf("%d events of %d", len(got), len(h.entries))
	}
}

// Nothing is written of a file that isn't right, or over another run.
func TestImportRefuses(t *testing.T) {
	log := logtest.Start(t)
	h := recorded(t, "stream/tools.jsonl")
	broken := bytes.Replace(jsonl(t, h), []byte("All done"), []byte("All gone"), 1)
	_, err := export.Restore(t.Context(), log, bytes.NewReader(broken), nil)
	if fault, is := errors.AsType[*export.FileError](err); !is || fault.Line < 50 {
		t.Errorf("broken: %v", err)
	}
	tail := *h
	tail.entries = h.entries[20:]
	if _, err := export.Restore(t.Context(), log, bytes.NewReader(jsonl(t, &tail)), nil); err == nil || !strings.Contains(err.Error(), "without --from") {
		t.Errorf("a part: %v", err)
	}
	if got, _ := stored(t, log, "r1"); len(got) > 0 {
		t.Fatalf("%d events were written", len(got))
	}
	store(t, log, recorded(t, "stream/think.jsonl"))
	before, _ := stored(t, log, "r1")
	if _, err := export.Restore(t.Context(), log, bytes.NewReader(jsonl(t, h)), nil); !errors.Is(err, export.ErrAnother) {
		t.Errorf("another: %v", err)
	}
	// A run that goes on here isn't added to.
	live := &history{t: t, run: export.Run{ID: "r2", Incarnation: "i"}, seq: map[string]uint64{}, at: began}
	live.add(wire.RunNode, "", &wire.RunClaimed{Runner: "test", Nonce: "n"})
	live.start("")
	store(t, log, live)
	live.complete()
	if _, err := export.Restore(t.Context(), log, bytes.NewReader(jsonl(t, live)), nil); !errors.Is(err, export.ErrAnother) {
		t.Errorf("it goes on here: %v", err)
	}
	if after, _ := stored(t, log, "r1"); len(after) != len(before) {
		t.Errorf("%d events, were %d", len(after), len(before))
	}
}

// A fork begins with the state of its parent; that is where it says that it was
// imported.
func TestImportFork(t *testing.T) {
	parent := run.New("r0")
	parent.FlowName, parent.Status = "review", wire.RunRunning
	state := must(wire.Marshal(parent))
	h := newHistory(t)
	h.add(wire.RunNode, "", &wire.RunForked{ParentRun: "r0", ParentPos: 7, State: state})
	h.complete()
	log := logtest.Start(t)
	if _, err := export.Restore(t.Context(), log, bytes.NewReader(jsonl(t, h)), nil); err != nil {
		t.Fatal(err)
	}
	if _, s := stored(t, log, "r1"); s.Imported != wire.ImportedCopy || s.FlowName != "review" {
		t.Errorf("imported %q, flow %q", s.Imported, s.FlowName)
	}
}

// A file can be read while it is written: neither side waits for the whole.
func TestStreams(t *testing.T) {
	h := newHistory(t)
	h.start("")
	e := h.add("coder", "coder#1", &wire.AgentTextDelta{Content: "a piece of text that is streamed", Block: 1})
	many := func(yield func(eventlog.Entry, error) bool) {
		for _, entry := range h.entries[:2] {
			if !yield(entry, nil) {
				return
			}
		}
		for i := range 5_000 {
			d := *e
			d.Seq = uint64(i + 1)
			d.Payload = &wire.AgentTextDelta{Content: "a piece of text that is streamed", Block: i/50 + 1}
			entry := h.entries[2]
			entry.Pos, entry.Event, entry.Data = uint64(100+i), &d, must(wire.Encode(&d))
			if !yield(entry, nil) {
				return
			}
		}
	}
	pipe, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := export.JSONL(in, h.run, many, noBlobs)
		done <- errors.Join(err, in.CloseWithError(err))
	}()
	f, err := export.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for item, err := range f.All() {
		if err != nil || len(item.Data) == 0 {
			t.Fatal(err)
		}
		n++
	}
	if err := <-done; err != nil || n != 5_002 || f.Events != n {
		t.Errorf("%d events, %v", n, err)
	}
}

func FuzzRead(f *testing.F) {
	h := newHistory(f)
	h.start("")
	h.add("a", "a#1", &wire.AgentText{Content: "x"})
	f.Add(jsonl(f, h))
	f.Add([]byte(`{"wake":1,"run":"r1","incarnation":"x"}` + "\n" + `{"end":true,"events":0,"hash":"` + strings.Repeat("0", 64) + `"}`))
	f.Add([]byte(`{"wake":1,"run":"r1"}` + "\n" + `{"blob":"x","data":"AAAA"}` + "\n"))
	f.Add([]byte("\n\n{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := readAll(b)
		if err != nil {
			if fault, is := errors.AsType[*export.FileError](err); !is || fault.Line < 1 || fault.Problem == "" {
				t.Errorf("an error without a place: %v", err)
			}
			return
		}
		// What was accepted is what would be written.
		var h history
		h.run = must(export.Open(bytes.NewReader(b))).Run
		for _, item := range items {
			h.entries = append(h.entries, eventlog.Entry{Pos: item.Pos, Time: time.UnixMilli(item.Time), Data: item.Data, Event: item.Event})
		}
		again, err := readAll(jsonl(t, &h))
		if err != nil {
			t.Fatalf("accepted, and can't be written: %v", err)
		}
		if diff := cmp.Diff(datas(items), datas(again)); diff != "" {
			t.Error(diff)
		}
	})
}
