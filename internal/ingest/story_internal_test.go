package ingest

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// allocated is how much memory f takes in all, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Many open calls, and a message in many pieces, cost in proportion.
func TestLongStory(t *testing.T) {
	s := newStory(Gemini, 0, Options{})
	for n := range 50_000 {
		s.call(fmt.Sprint("c", n), "run", nil)
	}
	s.takeEvents()
	begun := time.Now()
	s.closeCalls("cut")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("to close 50000 calls took %s", took)
	}
	for n, e := range s.takeEvents() {
		if want := fmt.Sprint("c", n); e.CallID != want {
			t.Fatalf("%s was closed, not %s", e.CallID, want)
		}
	}
	piece := strings.Repeat("x", 100)
	if took := allocated(func() {
		for n := range 5000 {
			s.sayPiece(piece, n > 0)
		}
	}); took > 64<<20 {
		t.Errorf("500 kB in 5000 pieces took %d MiB", took>>20)
	}
	if s.endTurn(""); s.out[len(s.out)-1].Payload.(*wire.TurnEnd).Result != strings.Repeat(piece, 5000) { // it is what ends a turn
		t.Error("the message isn't what its pieces are")
	}
}

// Changes of a session within changes are kept as they are, not opened.
func TestNestedChanges(t *testing.T) {
	g := &geminiSession{story: newStory(GeminiSession, 1, Options{}), heard: map[string]bool{}, said: map[string]*geminiSaid{}}
	said := func(id string) string {
		return `{"id":"` + id + `","type":"user","content":[{"text":"` + id + `"}]}`
	}
	var told []string
	for _, e := range g.Line(1, []byte(`{"$set":{"messages":[`+said("one")+`,{"$set":{"messages":[`+said("two")+`]}}]}}`)) {
		switch p := e.Payload.(type) {
		case *wire.UserMessage:
			told = append(told, p.Content)
		case *wire.RawMessage:
			told = append(told, p.Name)
		}
	}
	if got := strings.Join(told, " "); got != "one $set" {
		t.Errorf("told %q", got)
	}
	line := `"` + strings.Repeat("x", 1<<20) + `"`
	for range 100 {
		line = `{"$set":{"messages":[` + line + `]}}`
	}
	if took := allocated(func() { g.Line(1, []byte(line)) }); took > 32<<20 {
		t.Errorf("a line of 1 MiB took %d MiB", took>>20)
	}
}

// Times after the year 9999 are none.
func TestTimes(t *testing.T) {
	const last = 253402300799999
	for at, want := range map[int64]int64{-1: 7, 0: 7, 1: 1, last: last, last + 1: 7, math.MaxInt64: 7} {
		s := newStory(OpenCode, 0, Options{})
		s.beginLine(7)
		if s.tellTime(at); s.at != want {
			t.Errorf("%d is taken as %d, not %d", at, s.at, want)
		}
	}
	if at := timeIn([]byte(`{"timestamp":9223372036854775807}`)); at != 0 {
		t.Errorf("a line tells %d", at)
	}
}

// A defect in a reader of lines, which strangers may find, is the end of the input and not of the process.
func TestDefectEndsInput(t *testing.T) {
	i := &ingestion{result: Result{Format: StreamJSON, Lines: 6}}
	_, err := i.readInput(t.Context(), func(func([]byte, error) bool) { panic("no such thing") })
	if err == nil || !strings.Contains(err.Error(), "line 7: a defect of wake: no such thing") {
		t.Error(err)
	}
}
