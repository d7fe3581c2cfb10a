package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/pkg/wire"
)

func anEventOf(p wire.Payload) *wire.Event {
	return &wire.Event{RunID: "r1", NodeID: "coder", Seq: 17, Epoch: 2, Timestamp: 1767400000000, ExecID: "coder#1", Payload: p}
}

// TestBytes spells one event out, so that the form can be read here.
func TestBytes(t *testing.T) {
	e := anEventOf(&wire.AgentTextDelta{Content: "Done.", Block: 1})
	want := "8a" + // a map of ten
		"a176" + "01" + // v 1
		"a474797065" + "b0" + hex.EncodeToString([]byte("agent:text:delta")) +
		"a572756e4964" + "a27231" + // runId r1
		"a66e6f64654964" + "a5636f646572" + // nodeId coder
		"a3736571" + "11" + // seq 17
		"a565706f6368" + "02" + // epoch 2
		"a974696d657374616d70" + "cf0000019b813fca00" + // timestamp 1767400000000
		"a6657865634964" + "a7636f6465722331" + // execId coder#1
		"a7636f6e74656e74" + "a5446f6e652e" + // content Done.
		"a5626c6f636b" + "01" // block 1
	if got := hex.EncodeToString(encode(t, e)); got != want {
		t.Errorf("encode\n got %s\nwant %s", got, want)
	}
	const j = `{"v":1,"type":"agent:text:delta","runId":"r1","nodeId":"coder","seq":17,"epoch":2,` +
		`"timestamp":1767400000000,"execId":"coder#1","content":"Done.","block":1}`
	if got := wantError(t, wire.EncodeJSON, e); string(got) != j {
		t.Errorf("JSON\n got %s\nwant %s", got, j)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := encode(t, anEventOf(&wire.AgentText{Content: "Done."}))
	short := hex.EncodeToString
	for name, test := range map[string]struct {
		in    string // hex
		want  error
		field string // of a FieldError
	}{
		"nothing":            {"", wire.ErrSyntax, ""},
		"no map":             {"93010203", wire.ErrSyntax, ""},
		"trailing byte":      {short(good) + "00", wire.ErrTrailing, ""},
		"two events":         {short(good) + short(good), wire.ErrTrailing, ""},
		"key is no string":   {"8101c0", wire.ErrSyntax, ""},
		"newer version":      {"82a17602a474797065a178", wire.ErrVersion, ""},
		"version 0":          {"82a17600a474797065a178", nil, "v"},
		"version -1":         {"82a176ffa474797065a178", nil, "v"},
		"version is text":    {"82a176a131a474797065a178", nil, "v"},
		"no version":         {"81a474797065a178", nil, "v"},
		"no type":            {"81a17601", nil, "type"},
		"empty type":         {"82a17601a474797065a0", nil, "type"},
		"type is a number":   {"82a17601a47479706505", nil, "type"},
		"type is not UTF-8":  {"82a17601a474797065a1ff", nil, "type"},
		"promises map32":     {"dfffffffff", wire.ErrSyntax, ""},
		"promises map16":     {"deffff" + short(good[1:]), wire.ErrSyntax, ""},
		"one field too few":  {"88" + short(good[1:]), nil, "content"},
		"one field too many": {"8a" + short(good[1:]), wire.ErrSyntax, ""},
	} {
		b, err := hex.DecodeString(test.in)
		if err != nil {
			t.Fatal(err)
		}
		_, err = wire.Decode(b)
		if test.field != "" {
			if e, ok := errors.AsType[*wire.FieldError](err); !ok || e.Field != test.field {
				t.Errorf("%s: %v, want an error about %s", name, err, test.field)
			}
		} else if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// TestTruncated: no beginning of an event is an event, and none makes it panic.
func TestTruncated(t *testing.T) {
	for _, typ := range wire.Types() {
		b := encode(t, decodeMap(t, fullEvent(typ)))
		for n := range b {
			if e, err := wire.Decode(b[:n]); err == nil {
				t.Fatalf("%s: %d of %d bytes decode to %v", typ, n, len(b), e)
			}
		}
	}
}

// TestDuplicateKeys: a field that occurs twice is refused wherever it is, known
// or not.
func TestDuplicateKeys(t *testing.T) {
	for _, typ := range []wire.Type{"agent:complete", "todo:changed", "state:patch", "future:type"} {
		m := fullEvent(typ)
		m["zFuture"] = map[string]any{"a": 1}
		b, err := wire.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			"v", "type", "runId", "turn", "result", "usage", "inputTokens", "items", "status", "patch", "op", "zFuture", "a",
		} {
			for at := 0; ; at++ {
				twice, ok := doubled(b, name, at)
				if !ok {
					break
				}
				if _, err := wire.Decode(twice); err == nil {
					t.Errorf("%s: %s occurs twice and is taken", typ, name)
				}
			}
		}
	}
}

// doubled repeats the at-th field of that name, by the bytes: every map of the
// event has fewer than 16 or more than 16 entries before and after.
func doubled(b []byte, name string, at int) ([]byte, bool) {
	var out []byte
	done := false
	var walk func(in []byte) []byte
	walk = func(in []byte) []byte {
		n, rest, isMap := mapHeader(in)
		if !isMap {
			size := valueSize(in)
			out = append(out, in[:size]...)
			return in[size:]
		}
		header := len(out)
		out = append(out, 0xde, 0, 0)
		count := n
		for range n {
			keySize := valueSize(rest)
			key := rest[:keySize]
			out = append(out, key...)
			start := len(out) - keySize
			rest = walk(rest[keySize:])
			if string(key[1:]) == name && !done {
				if at--; at < 0 {
					out = append(out, out[start:]...)
					count++
					done = true
				}
			}
		}
		out[header+1], out[header+2] = byte(count>>8), byte(count)
		return rest
	}
	walk(b)
	return out, done
}

func mapHeader(b []byte) (n int, rest []byte, ok bool) {
	switch c := b[0]; {
	case c&0xf0 == 0x80:
		return int(c & 0x0f), b[1:], true
	case c == 0xde:
		return int(b[1])<<8 | int(b[2]), b[3:], true
	}
	return 0, nil, false
}

// valueSize is the length of the first value of b.
func valueSize(b []byte) int {
	_, rest, err := wire.AppendFirstJSON(nil, b)
	if err != nil {
		panic(err)
	}
	return len(b) - len(rest)
}

// TestDepth: values are nested up to MaxDepth, in both notations, and no deeper.
func TestDepth(t *testing.T) {
	nested := func(depth int) []byte { return append(bytes.Repeat([]byte{0x91}, depth), 0xc0) }
	most, err := wire.Canonical(nested(wire.MaxDepth))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wire.Canonical(nested(wire.MaxDepth + 1)); !errors.Is(err, wire.ErrDepth) {
		t.Errorf("canonical: %v", err)
	}
	if _, err := wire.RawFromJSON([]byte(strings.Repeat("[", wire.MaxDepth+1) + strings.Repeat("]", wire.MaxDepth+1))); !errors.Is(err, wire.ErrDepth) {
		t.Errorf("JSON: %v", err)
	}
	patch := anEventOf(&wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Value: most}})
	e, err := wire.DecodeJSON(wantError(t, wire.EncodeJSON, patch))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(patch, e); diff != "" {
		t.Error(diff)
	}
	deep := anEventOf(&wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet, Value: nested(wire.MaxDepth + 1)}})
	_, err = wire.Encode(deep)
	if e, ok := errors.AsType[*wire.FieldError](err); !ok || e.Field != "patch.value" || !errors.Is(err, wire.ErrDepth) {
		t.Errorf("encode: %v", err)
	}
	for _, depth := range []int{1000, 1_000_000} {
		in := append([]byte("\x82\xa1v\x01\xa4type"), nested(depth)...)
		if _, err := wire.Decode(in); err == nil {
			t.Errorf("a type of depth %d is taken", depth)
		}
		in = append([]byte("\x83\xa1v\x01\xa4type\xa1x\xa1y"), nested(depth)...)
		if _, err := wire.Decode(in); !errors.Is(err, wire.ErrDepth) {
			t.Errorf("a field of depth %d: %v", depth, err)
		}
	}
}

// TestForkKeepsDeepState: the state of a run holds values of any legal depth,
// and so must the event that carries a state.
func TestForkKeepsDeepState(t *testing.T) {
	deep := wire.Raw(append(bytes.Repeat([]byte{0x91}, wire.MaxDepth), 0xc0))
	state, err := wire.Marshal(&wire.State{
		V: 1, Outputs: map[string]wire.Raw{"a": deep}, State: deep,
		Tools: map[string]wire.ToolCall{"b": {Input: deep}}, Inbox: []wire.InboxEntry{{Command: deep}},
	})
	if err != nil {
		t.Fatal(err)
	}
	fork := anEventOf(&wire.RunForked{ParentRun: "p", ParentPos: 7, State: state})
	e, err := wire.DecodeJSON(wantError(t, wire.EncodeJSON, fork))
	if err != nil {
		t.Fatal(err)
	}
	var back wire.State
	if err := wire.Unmarshal(e.Payload.(*wire.RunForked).State, &back); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.Outputs["a"], deep) || !bytes.Equal(back.State, deep) {
		t.Error("the state has changed")
	}
}

// TestMemory: headers that promise much reserve little.
func TestMemory(t *testing.T) {
	event := func(typ, field string, value []byte) []byte {
		b := append([]byte("\x88\xa1v\x01\xa4type"), 0xa0|byte(len(typ)))
		b = append(append(b, typ...), "\xa5runId\xa1r\xa6nodeId\xa1n\xa3seq\x01\xa5epoch\x01\xa9timestamp\x00"...)
		return append(append(append(b, 0xa0|byte(len(field))), field...), value...)
	}
	// 256 arrays, each of which promises the rest of the message.
	const size = 1 << 20
	var bomb []byte
	for range wire.MaxDepth - 1 {
		bomb = append(bomb, 0xdd, 0, 0x0f, 0xc0, 0)
	}
	bomb = append(bomb, make([]byte, size)...)
	junk := append([]byte{0xdd, 0, 0x0f, 0xff, 0xff}, bytes.Repeat([]byte{0xc1}, size)...)
	entries := append([]byte{0xdf, 0, 0x07, 0xff, 0xff}, bytes.Repeat([]byte{0xc1}, size)...)
	var state wire.State
	for name, decode := range map[string]func(){
		"objects":    func() { _, _ = wire.Decode(event("todo:changed", "items", junk)) },
		"strings":    func() { _, _ = wire.Decode(event("agent_resumed", "sealed", junk)) },
		"objectMap":  func() { _, _ = wire.Decode(event("agent:complete", "modelUsage", entries)) },
		"stringMap":  func() { _, _ = wire.Decode(event("flow:start", "labels", entries)) },
		"any":        func() { _, _ = wire.Decode(event("raw", "data", bomb)) },
		"Raw.Any":    func() { wire.Raw(bomb).Any() },
		"Unmarshal":  func() { _ = wire.Unmarshal(append([]byte("\x81\xa5inbox"), junk...), &state) },
		"map":        func() { _ = wire.Unmarshal(append([]byte("\x81\xa5nodes"), entries...), &state) },
		"AppendJSON": func() { _, _ = wire.AppendJSON(nil, bomb) },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decode()
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 20*size {
			t.Errorf("%s: %d bytes of input cost %d bytes of memory", name, size, used)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	bad := string([]byte{'a', 0xff})
	event := func(change func(*wire.Event)) *wire.Event {
		e := anEventOf(&wire.AgentText{Content: "Done."})
		change(e)
		return e
	}
	field := func(name string) wire.Field { return wire.Field{Name: name, Value: wire.Null} }
	blob := func(field, hash string) wire.Blob { return wire.Blob{Field: field, SHA256: hash, Size: 1} }
	hash := strings.Repeat("0a", 32)
	for name, test := range map[string]struct {
		e     *wire.Event
		field string
	}{
		"no payload":            {event(func(e *wire.Event) { e.Payload = nil }), "type"},
		"no type":               {anEventOf(&wire.Opaque{}), "type"},
		"opaque of known type":  {anEventOf(&wire.Opaque{Name: wire.TypeAgentText}), "type"},
		"foreign payload":       {anEventOf(new(foreignPayload)), "type"},
		"no run":                {event(func(e *wire.Event) { e.RunID = "" }), "runId"},
		"no seq":                {event(func(e *wire.Event) { e.Seq = 0 }), "seq"},
		"run is not UTF-8":      {event(func(e *wire.Event) { e.RunID = bad }), "runId"},
		"content is not UTF-8":  {anEventOf(&wire.AgentText{Content: bad}), "content"},
		"key is not UTF-8":      {anEventOf(&wire.FlowStart{Definition: wire.Null, DefinitionHash: "h", Labels: map[string]string{bad: ""}}), "labels"},
		"item is not UTF-8":     {anEventOf(&wire.AgentResumed{Sealed: []string{bad}}), "sealed"},
		"no session":            {anEventOf(&wire.AgentStart{Prompt: wire.Null}), "sessionId"},
		"no call":               {anEventOf(&wire.ToolIntent{ToolName: "x", ToolInput: wire.Null}), "callId"},
		"nested enum":           {anEventOf(&wire.StatePatch{Patch: wire.Patch{Op: "bogus", Value: wire.Null}}), "patch.op"},
		"nested missing":        {anEventOf(&wire.StatePatch{Patch: wire.Patch{Op: wire.PatchSet}}), "patch.value"},
		"infinite":              {anEventOf(&wire.AgentComplete{TotalCostUsd: new(math.Inf(1))}), "totalCostUsd"},
		"not a number":          {anEventOf(&wire.AgentComplete{TotalCostUsd: new(math.NaN())}), "totalCostUsd"},
		"value is cut off":      {anEventOf(&wire.RawMessage{Source: "x", Data: wire.Raw{0xa5, 'a'}}), "data"},
		"value is two":          {anEventOf(&wire.RawMessage{Source: "x", Data: wire.Raw{1, 2}}), "data"},
		"value is an extension": {anEventOf(&wire.RawMessage{Source: "x", Data: wire.Raw{0xd4, 1, 1}}), "data"},
		"value is not UTF-8":    {anEventOf(&wire.RawMessage{Source: "x", Data: wire.Raw{0xa1, 0xff}}), "data"},
		"value has a key twice": {anEventOf(&wire.RawMessage{Source: "x", Data: wire.Raw{0x82, 0xa1, 'a', 1, 0xa1, 'a', 1}}), "data"},
		"unknown is known":      {event(func(e *wire.Event) { e.Unknown = []wire.Field{field("content")} }), "content"},
		"unknown is envelope":   {event(func(e *wire.Event) { e.Unknown = []wire.Field{field("turn")} }), "turn"},
		"unknown is twice":      {event(func(e *wire.Event) { e.Unknown = []wire.Field{field("x"), field("x")} }), "x"},
		"unknown is unordered":  {event(func(e *wire.Event) { e.Unknown = []wire.Field{field("y"), field("x")} }), "x"},
		"unknown has no value":  {event(func(e *wire.Event) { e.Unknown = []wire.Field{{Name: "x"}} }), "x"},
		"nested unknown":        {anEventOf(&wire.AgentComplete{Usage: wire.TokenUsage{Unknown: wire.Unknown{Rest: []wire.Field{field("inputTokens")}}}}), "usage.inputTokens"},
		"blob and field":        {event(func(e *wire.Event) { e.Blobs = []wire.Blob{blob("content", hash)} }), "content"},
		"blob of the envelope":  {event(func(e *wire.Event) { e.Blobs = []wire.Blob{blob("execId", hash)}; e.ExecID = "" }), "blobs.field"},
		"blob of the type":      {event(func(e *wire.Event) { e.Blobs = []wire.Blob{blob("runId", hash)}; e.RunID = "" }), "blobs.field"},
		"blob twice":            {event(func(e *wire.Event) { e.Blobs = []wire.Blob{blob("x", hash), blob("x", hash)} }), "blobs.field"},
		"blob of an unknown":    {event(func(e *wire.Event) { e.Unknown, e.Blobs = []wire.Field{field("x")}, []wire.Blob{blob("x", hash)} }), "x"},
		"blob without hash":     {event(func(e *wire.Event) { e.Blobs = []wire.Blob{blob("x", "")} }), "blobs.sha256"},
		"blob with a path":      {event(func(e *wire.Event) { e.Blobs = []wire.Blob{blob("x", "../../etc/passwd")} }), "blobs.sha256"},
	} {
		for _, f := range []func(*wire.Event) error{
			func(e *wire.Event) error { _, err := wire.Encode(e); return err },
			func(e *wire.Event) error { _, err := wire.EncodeJSON(e); return err },
		} {
			err := f(test.e)
			if e, ok := errors.AsType[*wire.FieldError](err); !ok || e.Field != test.field {
				t.Errorf("%s: %v, want an error about %s", name, err, test.field)
			}
		}
	}
	if _, err := wire.Encode(event(func(*wire.Event) {})); err != nil {
		t.Error(err)
	}
}

// TestEncodeMakesCanonical: a value that another program encoded may be put into
// an event as it is.
func TestEncodeMakesCanonical(t *testing.T) {
	e := anEventOf(&wire.RawMessage{Source: "x", Data: wire.Raw{0x82, 0xa1, 'b', 0xcd, 0, 1, 0xa1, 'a', 0xd9, 0}})
	got, err := wire.Decode(encode(t, e))
	if err != nil {
		t.Fatal(err)
	}
	if want := (wire.Raw{0x82, 0xa1, 'a', 0xa0, 0xa1, 'b', 1}); !bytes.Equal(got.Payload.(*wire.RawMessage).Data, want) {
		t.Errorf("got %x, want %x", got.Payload.(*wire.RawMessage).Data, want)
	}
}

// TestDecodeRefusesBlobs: references to blobs come from anybody too.
func TestDecodeRefusesBlobs(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for field, blobs := range map[string][]any{
		"blobs.field":  {map[string]any{"field": "turn", "sha256": hash, "size": 1}},
		"blobs.sha256": {map[string]any{"field": "zFuture", "sha256": strings.ToUpper(hash), "size": 1}},
		"blobs.size":   {map[string]any{"field": "zFuture", "sha256": hash}},
		"content":      {map[string]any{"field": "content", "sha256": hash, "size": 1}},
		"blobs":        {7},
	} {
		m := leastEvent("agent:text")
		m["blobs"] = blobs
		refuse(t, m, "agent:text", field)
	}
	m := leastEvent("agent:text")
	delete(m, "content")
	blob := map[string]any{"field": "content", "sha256": hash, "size": 1, "zFuture": "kept"}
	m["blobs"] = []any{blob}
	e := decodeMap(t, m)
	if out := decodeJSON(t, wantError(t, wire.EncodeJSON, e)).(map[string]any); out["content"] != nil || out["blobs"].([]any)[0].(map[string]any)["zFuture"] != "kept" {
		t.Errorf("%v", out)
	}
	m["blobs"] = []any{blob, blob}
	refuse(t, m, "agent:text", "blobs.field")

	m = leastEvent("agent:text") // what couldn't be written again
	m["zFuture"], m["blobs"] = true, []any{map[string]any{"field": "zFuture", "sha256": hash, "size": 1}}
	refuse(t, m, "agent:text", "zFuture")
}

// TestWidths: every length has its shortest header.
func TestWidths(t *testing.T) {
	for n, header := range map[int]int{0: 1, 31: 1, 32: 2, 255: 2, 256: 3, 65535: 3, 65536: 5} {
		text := strings.Repeat("x", n)
		raw, err := wire.Marshal([]any{text, []byte(text), map[string]int{text: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if want := 1 + header + n + max(header, 2) + n + 1 + header + n + 1; len(raw) != want {
			t.Errorf("%d: %d bytes, want %d", n, len(raw), want)
		}
		if again, err := wire.Canonical(appendLong(nil, []any{text, []byte(text), map[string]any{text: 1}}, true)); err != nil || !bytes.Equal(again, raw) {
			t.Errorf("%d: %v", n, err)
		}
		if diff := cmp.Diff([]any{text, []byte(text), map[string]any{text: int64(1)}}, raw.Any()); diff != "" {
			t.Errorf("%d: %s", n, diff)
		}
	}
}

// foreignPayload is none of wire's, whatever it says.
type foreignPayload struct{ wire.AgentText }

// TestOpaque: an event of a type that isn't known passes through.
func TestOpaque(t *testing.T) {
	const j = `{"v":1,"type":"future:type","runId":"r1","nodeId":"coder","seq":17,"epoch":2,"timestamp":1767400000000,` +
		`"turn":3,"alpha":null,"content":[1,2],"zulu":{"a":1.5}}`
	e, err := wire.DecodeJSON([]byte(j))
	if err != nil {
		t.Fatal(err)
	}
	want := &wire.Event{
		RunID: "r1", NodeID: "coder", Seq: 17, Epoch: 2, Timestamp: 1767400000000, Turn: 3,
		Payload: &wire.Opaque{Name: "future:type"},
		Unknown: []wire.Field{
			{Name: "alpha", Value: wire.Null},
			{Name: "content", Value: wire.Raw{0x92, 1, 2}},
			{Name: "zulu", Value: wire.Raw{0x81, 0xa1, 'a', 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0}},
		},
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
	if got := wantError(t, wire.EncodeJSON, e); string(got) != j {
		t.Errorf("got %s", got)
	}
}

// TestEventOwnsItsMemory: a decoded event doesn't change with the buffer that it
// came in.
func TestEventOwnsItsMemory(t *testing.T) {
	for _, typ := range append(wire.Types(), "future:type") {
		m := fullEvent(typ)
		m["zFuture"] = "x"
		want := encode(t, decodeMap(t, m))
		buf := bytes.Clone(want)
		e, err := wire.Decode(buf)
		if err != nil {
			t.Fatal(err)
		}
		for i := range buf {
			buf[i] = 0xc1
		}
		if !bytes.Equal(encode(t, e), want) {
			t.Errorf("%s has changed", typ)
		}
	}
}

// TestErrorsAreSafe: names come from anybody; an error doesn't pass terminal
// escapes on, nor a megabyte.
func TestErrorsAreSafe(t *testing.T) {
	for _, name := range []string{"\x1b]0;x\a", "\u202e", "a b", strings.Repeat("x", 1<<20), "\xff"} {
		m := leastEvent("agent:text")
		m["type"] = "t" + name
		delete(m, "runId")
		b := appendLong(nil, m, true)
		_, err := wire.Decode(b)
		if err == nil {
			t.Fatalf("%q is taken", name)
		}
		if text := err.Error(); len(text) > 600 || !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\a\u202e") {
			t.Errorf("%.40q: the error is %.80q, %d bytes", name, text, len(text))
		}
	}
}

func TestNode(t *testing.T) {
	for _, typ := range wire.Types() {
		e := decodeMap(t, fullEvent(typ))
		want := "coder"
		for _, f := range wire.Describe(typ).Fields {
			if f.Name == "target" {
				want = fullValue(f, 1).(string)
			}
		}
		if got := e.Node(); got != want {
			t.Errorf("%s is about %q, want %q", typ, got, want)
		}
		if got := decodeMap(t, leastEvent(typ)).Node(); got != "coder" && got != "target" {
			t.Errorf("least %s is about %q", typ, got)
		}
	}
}
