package eventlog_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/pkg/wire"
)

const secret = "correct horse battery staple"

// redacting starts a process that knows a secret.
func redacting(t testing.TB, o eventlog.Options) process {
	t.Helper()
	s, err := redact.New(redact.Known, []string{secret})
	if err != nil {
		t.Fatal(err)
	}
	o.Redact = s
	return one(t, o)
}

// deltas returns the texts of a node's deltas, each behind a bar.
func (p process) deltas(run, node string) string {
	p.t.Helper()
	var b strings.Builder
	for e, err := range p.Read(p.t.Context(), eventlog.Query{Run: run, Node: node, Kinds: []wire.Kind{wire.KindDelta}}) {
		if err != nil {
			p.t.Fatal(err)
		}
		switch p := e.Event.Payload.(type) {
		case *wire.AgentTextDelta:
			b.WriteString("|" + p.Content)
		case *wire.ExecOutput:
			b.WriteString("|" + p.Stream[3:] + ":" + p.Content)
		}
	}
	return b.String()
}

// nowhere looks for a text in every byte that streams and buckets have.
func (p process) nowhere(what string) {
	p.t.Helper()
	js := p.JetStream()
	streams, messages := 0, 0
	for info := range js.ListStreams(p.t.Context()).Info() {
		streams++
		s, err := js.Stream(p.t.Context(), info.Config.Name)
		if err != nil {
			p.t.Fatal(err)
		}
		for seq := info.State.FirstSeq; seq > 0 && seq <= info.State.LastSeq; seq++ {
			m, err := s.GetMsg(p.t.Context(), seq)
			if err != nil {
				continue // purged
			}
			messages++
			if all := fmt.Append(m.Data, m.Header, m.Subject); bytes.Contains(all, []byte(what)) {
				p.t.Errorf("it is in %s at %d: %.200q", info.Config.Name, seq, m.Data)
			}
		}
	}
	if streams < 3 || messages == 0 {
		p.t.Errorf("looked at %d streams and %d messages only", streams, messages)
	}
}

// A secret that comes in two deltas is in none, wherever it is split, and nothing
// else is missing.
func TestRedactSplitAnywhere(t *testing.T) {
	t.Parallel()
	p := redacting(t, eventlog.Options{})
	whole := "it is " + secret + ", you know"
	for i := range len(whole) + 1 {
		node := fmt.Sprint("n", i)
		w := p.claim("r", node)
		for _, part := range []string{whole[:i], whole[i:]} {
			if err := w.Enqueue(t.Context(), delta(part)); err != nil {
				t.Fatal(err)
			}
		}
		appendTo(t, w, text(whole))
		if got := strings.ReplaceAll(p.deltas("r", node), "|", ""); got != "it is [redacted], you know" {
			t.Errorf("split at %d: %q", i, got)
		}
	}
	equal(t, "the last node", p.read(eventlog.Query{Run: "r", Node: "n0", Kinds: []wire.Kind{wire.KindText}}), "r/n0 1.5 agent:text it is [redacted], you know")
	p.nowhere(secret)
}

// What is held is stored before what follows, and streams don't mix.
func TestRedactHeld(t *testing.T) {
	t.Parallel()
	p := redacting(t, eventlog.Options{})
	w := p.claim("r", "n")
	say := func(stream, content string) *wire.Event {
		return &wire.Event{Payload: &wire.ExecOutput{Stream: stream, Content: content}}
	}
	for _, e := range []*wire.Event{say("stdout", "a corre"), say("stderr", "b incorrect ho"), say("stdout", "ct."), say("stderr", "use.")} {
		if err := w.Enqueue(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	appendTo(t, w, &wire.Event{Payload: &wire.ExecExit{}})
	if got := p.deltas("r", "n"); got != "|out:a |err:b |out:correct.|err:incorrect house." {
		t.Errorf("%q", got)
	}
	if err := w.Enqueue(t.Context(), say("stdout", "corr")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.deltas("r", "n"); !strings.HasSuffix(got, "|out:|out:corr") {
		t.Errorf("%q", got)
	}
}

// What is held of a stream that nothing follows is stored when its writer is told; another stream goes on.
func TestStoreHeld(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := redacting(t, eventlog.Options{})
		w := p.claim("r", "n")
		if err := w.StoreHeld(t.Context(), "stdout"); err != nil {
			t.Fatal(err)
		}
		if err := w.Enqueue(t.Context(), &wire.Event{Payload: &wire.ExecOutput{Stream: "stdout", Content: "a corre"}}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if got := p.deltas("r", "n"); got != "|out:a " || w.Settled() {
			t.Errorf("%q, settled %t", got, w.Settled())
		}
		if err := w.StoreHeld(t.Context(), "stderr"); err != nil || w.Settled() {
			t.Fatalf("of another stream: %v, settled %t", err, w.Settled())
		}
		if err := w.StoreHeld(t.Context(), "stdout"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if got := p.deltas("r", "n"); got != "|out:a |out:corre" || !w.Settled() {
			t.Errorf("%q, settled %t", got, w.Settled())
		}
	})
}

// What is held of a block is stored before what its agent says in the next one; other agents go on beside it.
func TestRedactBlocks(t *testing.T) {
	t.Parallel()
	p := redacting(t, eventlog.Options{})
	w := p.claim("r", "n")
	for _, e := range []*wire.Event{blockPiece(1, "", "a corre"), blockPiece(2, "sub", "b corre"), blockPiece(3, "", "c corre"), blockPiece(2, "sub", "ct."), blockPiece(4, "", "!")} {
		if err := w.Enqueue(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.deltas("r", "n"); got != "|a |b |corre|c |correct.|corre|!" {
		t.Errorf("%q", got)
	}
}

func blockPiece(n int, parent, content string) *wire.Event {
	return &wire.Event{Parent: parent, Payload: &wire.AgentTextDelta{Content: content, Block: n}}
}

// A writer that goes on behind any event of a log, and is told what that has, stores what
// the former one would have stored: no secret, nothing twice, nothing lost.
func TestRedactPrimed(t *testing.T) {
	t.Parallel()
	p := redacting(t, eventlog.Options{})
	plain := start(t, p.JetStream().Conn(), eventlog.Options{})
	journal := func() []*wire.Event {
		out := func(stream, content string) *wire.Event {
			return &wire.Event{Payload: &wire.ExecOutput{Stream: stream, Content: content}}
		}
		events := []*wire.Event{
			out("stdout", "a corre"), out("stderr", "b correct ho"), out("stdout", "ct."), out("stderr", "rse battery"),
			out("stderr", " staple, correct horse"), text("between"), out("stderr", " battery staple"), out("stdout", "c correct"),
			out("stdout", " horse battery st"), text("between"), out("stdout", "aple"), out("stderr", secret+" corr"),
			blockPiece(1, "", "d corre"), blockPiece(2, "", "e correct"), blockPiece(2, "", " horse"), blockPiece(3, "", "f"),
		}
		for i, e := range events {
			e.JournalOffset, e.JournalIndex, e.Timestamp = uint64(10+i/2), i%2, int64(1000+i)
		}
		return events
	}
	place := func(e *wire.Event) string { return fmt.Sprintf("%05d %05d", e.JournalOffset, e.JournalIndex) }
	log := func(node string) (events []*wire.Event, said []string) {
		for e, err := range p.Read(t.Context(), eventlog.Query{Run: "r", Node: node}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Event.Type() != wire.TypeNodeClaimed {
				events = append(events, e.Event)
				alone := *e.Event
				alone.NodeID, alone.Seq, alone.Epoch = "n", 1, 1
				what, err := wire.EncodeJSON(&alone)
				if err != nil {
					t.Fatal(err)
				}
				said = append(said, string(what))
			}
		}
		return events, said
	}
	store := func(w *eventlog.Writer, events []*wire.Event) {
		t.Helper()
		for _, e := range events {
			if err := w.Enqueue(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	store(p.claim("r", "whole"), journal())
	whole, want := log("whole")
	if len(whole) <= len(journal())+3 {
		t.Fatalf("%d events of %d: too little was held", len(whole), len(journal()))
	}
	for n := range len(whole) + 1 {
		node := fmt.Sprint("n", n)
		before := whole[:n]
		store(plain.claim("r", node), before)
		w, last, places := p.claim("r", node), "", map[string]int{}
		for _, e := range before {
			last = max(last, place(e))
			places[place(e)]++
		}
		fed := journal()
		for len(fed) > 0 && place(fed[0]) <= last {
			if err := w.Prime(t.Context(), fed[0], places[place(fed[0])] > 1); err != nil {
				t.Fatal(err)
			}
			fed = fed[1:]
		}
		store(w, fed)
		_, got := log(node)
		equal(t, fmt.Sprintf("after %d events", n), got, want...)
	}
	p.nowhere(secret)
}

// Large fields lose their secrets before they go to the object store, and the
// envelope counts them. The event of the caller stays as it was.
func TestRedactBlob(t *testing.T) {
	t.Parallel()
	p := redacting(t, eventlog.Options{BlobLimit: 2 << 10})
	w := p.claim("r", "n")
	e := text(strings.Repeat("x", 4<<10) + secret + secret)
	appendTo(t, w, e)
	if !strings.HasSuffix(e.Payload.(*wire.AgentText).Content, secret) || e.Redactions != 0 {
		t.Error("the caller's event was changed")
	}
	last, _, err := p.Last(t.Context(), "r", "n")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := p.Inline(t.Context(), last.Event)
	if err != nil {
		t.Fatal(err)
	}
	if got := whole.Payload.(*wire.AgentText).Content; len(last.Event.Blobs) != 1 || last.Event.Redactions != 2 || !strings.HasSuffix(got, "x[redacted][redacted]") {
		t.Errorf("%d blobs, %d redactions, %.20q…", len(last.Event.Blobs), last.Event.Redactions, got[4090:])
	}
	store, err := p.JetStream().ObjectStore(t.Context(), p.Names().BlobsBucket())
	if err != nil {
		t.Fatal(err)
	}
	data, err := store.GetBytes(t.Context(), last.Event.Blobs[0].SHA256)
	if err != nil || bytes.Contains(data, []byte(secret)) {
		t.Errorf("the blob: %v", err)
	}
	p.nowhere(secret)
}

// Events that were refused, or for which there was no time, lose nothing that was
// held.
func TestRedactRefused(t *testing.T) {
	t.Parallel()
	p := redacting(t, eventlog.Options{})
	w := p.claim("r", "n")
	if err := w.Enqueue(t.Context(), delta("correct ho")); err != nil {
		t.Fatal(err)
	}
	bad := delta("rse battery staple")
	bad.Parent = "\xff"
	if err := w.Enqueue(t.Context(), bad); err == nil {
		t.Fatal("an event that can't be encoded was taken")
	}
	if err := w.Enqueue(t.Context(), delta("rse battery staple.")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.deltas("r", "n"); got != "||[redacted]." {
		t.Errorf("%q", got)
	}
	p.nowhere(secret)
}
