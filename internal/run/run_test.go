package run_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// Whatever the cut, a snapshot and the tail make the bytes of the whole fold.
// The tail may overlap what the snapshot has folded.
func TestSnapshotAndTailMakeTheWhole(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		h := parseHistory(t, section(a, "events.jsonl"))
		s, _ := h.fold(t, run.New("r1"))
		whole := encode(t, s)
		for cut := range len(h.events) + 1 {
			head, _ := history{h.events[:cut]}.fold(t, run.New("r1"))
			snapshot, err := run.Decode(encode(t, head))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(encode(t, head), encode(t, snapshot)) {
				t.Fatalf("%s: the state at %d does not survive its own bytes", file, cut)
			}
			for _, overlap := range []int{0, 1, cut} {
				got, _ := history{h.events[cut-min(overlap, cut):]}.fold(t, run.Clone(snapshot))
				if !bytes.Equal(encode(t, got), whole) {
					t.Fatalf("%s: cut at %d with overlap %d:\n%s", file, cut, overlap, cmp.Diff(show(t, s), show(t, got)))
				}
			}
		}
	}
}

func TestApplyNamesTheEventItRefuses(t *testing.T) {
	s := run.New("r1")
	e := &wire.Event{RunID: "r1", NodeID: "coder", Seq: 4, Epoch: 2, Payload: &wire.NodeStart{}}
	err := run.Apply(s, wire.Position{Seq: 9}, e)
	if _, ok := errors.AsType[*run.HistoryError](err); !ok {
		t.Fatalf("got %v", err)
	}
	want := "run: r1/coder seq 4 (node:start) at position 9: epoch 2 was never claimed"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// A state takes events of one incarnation of the stream (RULES 15).
func TestApplyStopsAtAnotherIncarnation(t *testing.T) {
	s := run.New("r1")
	claim := func(seq uint64) *wire.Event {
		return &wire.Event{RunID: "r1", NodeID: "_run", Seq: seq, Epoch: seq, Payload: &wire.RunClaimed{Runner: "a", Nonce: "b"}}
	}
	if err := run.Apply(s, wire.Position{Incarnation: "x", Seq: 5}, claim(1)); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{1, 6} {
		if err := run.Apply(s, wire.Position{Incarnation: "y", Seq: seq}, claim(2)); !errors.Is(err, run.ErrIncarnation) {
			t.Errorf("position %d: got %v, want ErrIncarnation", seq, err)
		}
	}
}

// An event whose patch is in the object store means nothing until it is back.
func TestApplyWantsBlobsItLooksInto(t *testing.T) {
	s := run.New("r1")
	h := parseHistory(t, []byte(`
{"type":"run:claimed"}
{"type":"flow:start","flowName":"f","definition":{},"definitionHash":"h"}
{"type":"state:patch","patch":{"op":"set","path":"big","value":"`+strings.Repeat("x", 4000)+`"}}
`))
	last := &h.events[2]
	b, err := wire.Encode(last.e)
	if err != nil {
		t.Fatal(err)
	}
	small, blobs, err := wire.Externalize(b, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if last.e, err = wire.Decode(small); err != nil {
		t.Fatal(err)
	}
	if !run.NeedsInline(last.e) {
		t.Error("NeedsInline is false")
	}
	if s, _ = h.fold(t, s); s.EventCount != 2 {
		t.Errorf("folded %d events, want 2", s.EventCount)
	}
	if err := run.Apply(s, last.pos, last.e); !errors.Is(err, run.ErrBlob) {
		t.Errorf("got %v, want ErrBlob", err)
	}
	whole, err := wire.Inline(small, func(sum string) ([]byte, error) { return blobs[sum], nil })
	if err != nil {
		t.Fatal(err)
	}
	if last.e, err = wire.Decode(whole); err != nil {
		t.Fatal(err)
	}
	if err := run.Apply(s, last.pos, last.e); err != nil {
		t.Fatal(err)
	}
	if text := s.State.TextAt("big"); len(text) != 4000 {
		t.Errorf("the state has %d bytes of big", len(text))
	}
}

func TestOutputInTheObjectStoreIsReferredTo(t *testing.T) {
	output := wire.RawString(strings.Repeat("y", 5000))
	sum := sha256.Sum256(output)
	hash := hex.EncodeToString(sum[:])
	h := parseHistory(t, []byte(`
{"type":"run:claimed"}
{"type":"flow:start","flowName":"f","definition":{},"definitionHash":"h"}
{"type":"node:scheduled","target":"a","execId":"a#1","attempt":1}
{"type":"node:start","target":"a","execId":"a#1"}
{"type":"node:complete","target":"a","execId":"a#1","blobs":[{"field":"output","sha256":"`+hash+`","size":5003}]}
`))
	s, refused := h.fold(t, run.New("r1"))
	if refused != "" {
		t.Fatal(refused)
	}
	if got := run.Ref(s.Outputs["a"]); got != hash {
		t.Fatalf("output refers to %q, want %s", got, hash)
	}
	full, err := run.Inline(s, func(string) ([]byte, error) { return output, nil })
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(full.Outputs["a"], output) {
		t.Error("Inline did not put the output back")
	}
	if run.Ref(s.Outputs["a"]) != hash {
		t.Error("Inline changed the state it was given")
	}
	same, err := run.Inline(s, func(string) ([]byte, error) { return nil, fs.ErrNotExist })
	if err != nil || same != s {
		t.Errorf("a missing blob: got %v, want the state itself", err)
	}
	if _, err := run.Inline(s, func(string) ([]byte, error) { return []byte{0xc0}, nil }); err == nil {
		t.Error("a blob of another hash was accepted")
	}
}

// Each value that may be a reference is put back, and the state that has it stays as it was.
func TestInlineEachField(t *testing.T) {
	output := wire.RawString("whole")
	sum := sha256.Sum256(output)
	ref := wire.RawOf(map[string]any{"$blob": map[string]any{"sha256": hex.EncodeToString(sum[:])}})
	node := func(n wire.NodeState) func(*wire.State) { return func(s *wire.State) { s.Nodes["a"] = n } }
	for name, set := range map[string]func(*wire.State){
		"input": func(s *wire.State) { s.Input = ref }, "limits": func(s *wire.State) { s.Limits = ref },
		"output": func(s *wire.State) { s.Outputs["a"] = ref },
		"item":   node(wire.NodeState{Item: ref}), "input of a node": node(wire.NodeState{Input: ref}), "answer": node(wire.NodeState{Answer: ref}),
	} {
		s := run.New("r1")
		set(s)
		full, err := run.Inline(s, func(string) ([]byte, error) { return output, nil })
		if err != nil {
			t.Fatal(err)
		}
		whole := bytes.Join([][]byte{full.Input, full.Limits, full.Outputs["a"], full.Nodes["a"].Item, full.Nodes["a"].Input, full.Nodes["a"].Answer}, nil)
		kept := bytes.Join([][]byte{s.Input, s.Limits, s.Outputs["a"], s.Nodes["a"].Item, s.Nodes["a"].Input, s.Nodes["a"].Answer}, nil)
		if !bytes.Equal(whole, output) || !bytes.Equal(kept, ref) {
			t.Errorf("%s: put back %q, left %q", name, whole, kept)
		}
	}
}

// What an agent puts out must not be taken for a reference unless it is one.
func TestRefIsStrict(t *testing.T) {
	for _, src := range []string{
		`null`, `"x"`, `{}`, `{"$blob":"x"}`, `{"$blob":{}}`, `{"$blob":{"sha256":"zz"}}`,
		`{"$blob":{"sha256":"` + strings.Repeat("a", 64) + `"},"more":1}`,
	} {
		v, err := wire.RawFromJSON([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if got := run.Ref(v); got != "" {
			t.Errorf("Ref(%s) = %q", src, got)
		}
	}
}

func TestDecodeRefusesANewerVersion(t *testing.T) {
	s := run.New("r1")
	s.V = wire.Version + 1
	if _, err := run.Decode(encode(t, s)); !errors.Is(err, wire.ErrVersion) {
		t.Errorf("got %v, want ErrVersion", err)
	}
	if _, err := run.Decode([]byte("nonsense")); err == nil {
		t.Error("nonsense was accepted")
	}
}

func TestPatch(t *testing.T) {
	tests := []struct {
		state, op, path, value, want string // want "error: …" for a refusal
	}{
		{`{}`, "set", "a", `1`, `{"a":1}`},
		{`{}`, "set", "a.b.c", `[1]`, `{"a":{"b":{"c":[1]}}}`},
		{`{"a":1}`, "set", "a.b", `2`, `{"a":{"b":2}}`},
		{`{"a":1}`, "set", "", `{"b":2}`, `{"b":2}`},
		{`{"a":1}`, "set", "a", `null`, `{"a":null}`},
		{`{"l":[1,2]}`, "set", "l.1", `9`, `{"l":[1,9]}`},
		{`{"l":[1,2]}`, "set", "l.2", `3`, `{"l":[1,2,3]}`},
		{`{"l":[{"done":false}]}`, "set", "l.0.done", `true`, `{"l":[{"done":true}]}`},
		{`{"a":{"x":1,"y":1}}`, "merge", "a", `{"y":2,"z":3}`, `{"a":{"x":1,"y":2,"z":3}}`},
		{`{"a":1}`, "merge", "", `{"b":2}`, `{"a":1,"b":2}`},
		{`{"a":1}`, "merge", "a", `{"b":2}`, `{"a":{"b":2}}`},
		{`{"l":[1]}`, "set", "l.5", `3`, `error: patch l.5: "5" is no index of a list of 1`},
		{`{"l":[1]}`, "set", "l.x", `3`, `error: patch l.x: "x" is no index of a list of 1`},
		{`{}`, "set", "", `3`, `error: patch: the whole state must be an object`},
		{`{}`, "merge", "a", `3`, `error: patch a: only an object can be merged`},
		{`{}`, "set", strings.Repeat("a.", 300) + "a", `1`, `error: patch ` + strings.Repeat("a.", 300) + "a: wire: nested too deep"},
	}
	for _, test := range tests {
		state, value := raw(t, test.state), raw(t, test.value)
		before := bytes.Clone(state)
		out, err := run.Patch(state, wire.Patch{Op: wire.PatchOp(test.op), Path: test.path, Value: value})
		var got string
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = jsonOf(out)
		}
		if got != test.want {
			t.Errorf("%s %s %q %s: got %s, want %s", test.state, test.op, test.path, test.value, got, test.want)
		}
		if !bytes.Equal(before, state) {
			t.Errorf("%s %q changed its argument", test.op, test.path)
		}
	}
}

func raw(t testing.TB, src string) wire.Raw {
	t.Helper()
	v, err := wire.RawFromJSON([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCloneSharesNothingThatChanges(t *testing.T) {
	a, err := txtar.ParseFile("testdata/full_protocol.txtar")
	if err != nil {
		t.Fatal(err)
	}
	h := parseHistory(t, section(a, "events.jsonl"))
	for cut := range h.events {
		s, _ := history{h.events[:cut]}.fold(t, run.New("r1"))
		before := encode(t, s)
		history{h.events[cut:]}.fold(t, run.Clone(s))
		if !bytes.Equal(before, encode(t, s)) {
			t.Fatalf("folding a clone from event %d on changed the original", cut)
		}
	}
}

// Bookmarks that nobody asked for, and ids of commands, don't grow for ever.
func TestBoundedLists(t *testing.T) {
	lines := []string{`{"type":"run:claimed"}`, `{"type":"checkpoint","kind":"labelled","label":"mine"}`}
	for i := range 1000 {
		lines = append(lines,
			fmt.Sprintf(`{"type":"checkpoint","kind":"sfp","label":"sfp-%d"}`, i),
			fmt.Sprintf(`{"type":"command:received","command":{"type":"fork"},"commandId":"c%d","accepted":true}`, i))
	}
	s, refused := parseHistory(t, []byte(strings.Join(lines, "\n"))).fold(t, run.New("r1"))
	if refused != "" {
		t.Fatal(refused)
	}
	if n := len(s.Bookmarks); n != 257 {
		t.Errorf("%d bookmarks, want 256 and the labelled one", n)
	}
	if !slices.ContainsFunc(s.Bookmarks, func(b wire.Bookmark) bool { return b.Label == "mine" }) {
		t.Error("the labelled bookmark is gone")
	}
	if s.Bookmarks[256].Label != "sfp-999" {
		t.Errorf("the last bookmark is %q", s.Bookmarks[256].Label)
	}
	if n := len(s.CommandIDs); n != 256 {
		t.Errorf("%d command ids, want 256", n)
	}
	if n := len(s.Inbox); n != 0 {
		t.Errorf("%d commands wait for something that nobody does", n)
	}
}

// Of an agent with very many open calls it is still told that one waits for a person, and the exact breakpoint again when there are
// fewer.
func TestManyOpenCalls(t *testing.T) {
	lines := []string{
		`{"type":"run:claimed"}`, `{"type":"flow:start","flowName":"f","definition":{},"definitionHash":"h"}`,
		`{"type":"node:scheduled","target":"a","execId":"a#1","attempt":1}`, `{"type":"node:claimed","nodeId":"a"}`,
		`{"type":"node:start","nodeId":"a","execId":"a#1","nodeType":"agent"}`,
	}
	call := func(kind string, i int, rest string) {
		lines = append(lines, fmt.Sprintf(`{"type":%q,"nodeId":"a","execId":"a#1","callId":"t%d"%s}`, kind, i, rest))
	}
	const many = 1500
	for i := range many {
		call("tool:intent", i, `,"toolName":"Bash","toolInput":{}`)
	}
	call("permission:required", many-1, `,"toolName":"Bash"`)
	for want, ended := range map[string]int{"AWAITING_APPROVAL": 0, "TOOL_PENDING": many - 1, "POST_TOOL": many} {
		begun := len(lines)
		if ended > 0 {
			call("permission:decided", many-1, `,"decision":"deny"`)
		}
		for i := range ended {
			call("agent:tool", many-1-i, `,"toolName":"Bash","toolInput":{},"toolOutput":"no","error":"no","denied":true`)
		}
		s, refused := parseHistory(t, []byte(strings.Join(lines, "\n"))).fold(t, run.New("r1"))
		if lines = lines[:begun]; refused != "" {
			t.Fatal(refused)
		}
		if got := s.Nodes["a"].Breakpoint; got != want || len(s.Tools) != many-ended {
			t.Errorf("with %d open calls the breakpoint is %s, want %s", len(s.Tools), got, want)
		}
	}
}

// A decision on a call leaves that on another node's call of the same id in the
// inbox.
func TestDecisionsOfOneCallID(t *testing.T) {
	h := parseHistory(t, []byte(`
{"type":"run:claimed"}
{"type":"flow:start","flowName":"f","definition":{},"definitionHash":"h"}
{"type":"node:scheduled","target":"a","execId":"a#1","attempt":1}
{"type":"node:scheduled","target":"b","execId":"b#1","attempt":1}
{"type":"node:claimed","nodeId":"a"}
{"type":"node:start","nodeId":"a","execId":"a#1","nodeType":"agent"}
{"type":"tool:intent","nodeId":"a","execId":"a#1","callId":"t1","toolName":"Bash","toolInput":{}}
{"type":"permission:required","nodeId":"a","execId":"a#1","callId":"t1","toolName":"Bash"}
{"type":"command:received","commandId":"c1","accepted":true,"command":{"type":"approve","callId":"t1","nodeId":"a"}}
{"type":"command:received","commandId":"c2","accepted":true,"command":{"type":"deny","callId":"t1","nodeId":"b"}}
{"type":"permission:decided","nodeId":"a","execId":"a#1","callId":"t1","decision":"allow"}
`))
	s, refused := h.fold(t, run.New("r1"))
	if refused != "" {
		t.Error(refused)
	}
	if len(s.Inbox) != 1 || s.Inbox[0].ID != "c2" {
		t.Errorf("the inbox has %+v", s.Inbox)
	}
}

// What a resumption says to an agent that hasn't been told it yet is still to be said
// after a resumption that says nothing, such as that of the next owner.
func TestMessageOfFormerResumption(t *testing.T) {
	const begin = `
{"type":"run:claimed"}
{"type":"flow:start","flowName":"f","definition":{},"definitionHash":"h"}
{"type":"node:scheduled","target":"a","execId":"a#1","attempt":1}
{"type":"node:claimed","nodeId":"a"}
{"type":"node:start","nodeId":"a","execId":"a#1","nodeType":"agent"}
{"type":"flow:resumed","strategy":"crash","message":"quickly"}
`
	for between, want := range map[string]string{
		"": "quickly",
		`{"type":"agent_resumed","nodeId":"a","execId":"a#1","strategy":"crash","sealed":[]}`: "",
		`{"type":"flow:resumed","strategy":"crash","message":"or slowly"}`:                    "or slowly",
		`{"type":"flow:paused","reason":"operator"}
{"type":"flow:resumed","strategy":"crash","message":"or slowly","hold":true}
{"type":"agent_resumed","nodeId":"a","execId":"a#1","strategy":"crash","sealed":[]}`: "or slowly",
		`{"type":"flow:paused","reason":"operator"}
{"type":"flow:resumed","strategy":"crash","message":"or slowly","hold":true}
{"type":"agent_resumed","nodeId":"a","execId":"a#1","strategy":"crash","sealed":[]}
{"type":"flow:resumed","strategy":"crash"}
{"type":"agent_resumed","nodeId":"a","execId":"a#1","strategy":"crash","sealed":[]}`: "",
	} {
		h := parseHistory(t, []byte(begin+between+`
{"type":"flow:resumed","strategy":"crash"}
`))
		s, refused := h.fold(t, run.New("r1"))
		if refused != "" {
			t.Error(refused)
		}
		if r := s.Nodes["a"].Resume; r == nil || r.Message != want {
			t.Errorf("after %q it is told %+v, want %q", between, r, want)
		}
	}
}
