package feed_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// desk is a log that is served, and a reader of it.
type desk struct {
	testing.TB
	server *natstest.Server
	log    *eventlog.Log
	r      *feed.Reader
	stop   func()
	writer *eventlog.Writer
	away   chan error
}

func open(t testing.TB) *desk {
	t.Helper()
	server, log := logtest.StartServer(t)
	d := &desk{TB: t, server: server, log: log, away: make(chan error, 100)}
	d.stop = logtest.Serve(t, d.log)
	d.r = d.reader()
	d.writer = logtest.Claim(t, d.log, "r1", "a")
	return d
}

func (d *desk) reader() *feed.Reader {
	d.Helper()
	for {
		r, err := feed.Open(d.Context(), d.log.Conn(), feed.Options{Away: func(err error) { d.away <- err }})
		if err == nil {
			return r
		}
		if !wire.HasCode(err, wire.CodeUnreachable) {
			d.Fatal(err)
		}
	}
}

func text(s string) *wire.Event {
	return &wire.Event{ExecID: "a#1", Timestamp: 7, Payload: &wire.AgentText{Content: s}}
}

func (d *desk) append(texts ...string) uint64 {
	d.Helper()
	events := make([]*wire.Event, len(texts))
	for i, s := range texts {
		events[i] = text(s)
	}
	return logtest.Append(d.TB, d.writer, events...)
}

// seen is an entry as far as a feed has to have it.
type seen struct {
	Pos     uint64
	Ms      int64
	Subject string
	Data    string
}

func collect(t testing.TB, entries iter.Seq2[eventlog.Entry, error]) (all []seen) {
	t.Helper()
	for e, err := range entries {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, seen{e.Pos, e.Time.UnixMilli(), e.Subject, string(e.Data)})
	}
	return all
}

func TestReadsWhatALogReads(t *testing.T) {
	d := open(t)
	d.append("one", "two")
	d.append(strings.Repeat("x", 200<<10), strings.Repeat("y", 200<<10))
	for i := range 30 { // several pieces
		d.append(fmt.Sprint(i, strings.Repeat("z", 100<<10)))
	}
	logtest.Append(t, logtest.Claim(t, d.log, "r2", wire.RunNode), &wire.Event{Payload: &wire.FlowAborted{Reason: "no"}})
	_, last, err := d.log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []eventlog.Query{
		{},
		{Run: "r1"},
		{Run: "r1", Node: "a"},
		{Run: "r2"},
		{Run: "r3"},
		{Kinds: []wire.Kind{wire.KindFlow}},
		{Run: "r1", Kinds: []wire.Kind{wire.KindFlow, wire.KindText}},
		{Run: "r1", Node: "a", Kinds: []wire.Kind{wire.KindText}},
		{From: 3, To: 5},
		{From: last},
		{From: last + 1},
		{From: last + 7},
		{Run: "r1", To: 1},
		{To: last + 9},
	} {
		want, got := collect(t, d.log.Read(t.Context(), q)), collect(t, d.r.Read(t.Context(), q))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-log +feed):\n%s", q, diff)
		}
		if len(want) == 0 {
			continue
		}
		if known := q.To == 0 && len(q.Kinds) < 2; known {
			checkBehind(t, q, d.log.Read(t.Context(), q), len(want))
			checkBehind(t, q, d.r.Read(t.Context(), q), len(want))
		}
		var followed []seen
		for e, err := range d.r.Follow(t.Context(), q) {
			if err != nil {
				t.Fatal(err)
			}
			if followed = append(followed, seen{e.Pos, e.Time.UnixMilli(), e.Subject, string(e.Data)}); len(followed) == len(want) {
				break
			}
		}
		if diff := cmp.Diff(want, followed); q.To == 0 && diff != "" {
			t.Errorf("followed %+v (-log +feed):\n%s", q, diff)
		}
	}
	first, end, err := d.r.Bounds(t.Context())
	if first != 1 || end != last || err != nil {
		t.Errorf("bounds: %d to %d, %v", first, end, err)
	}
	if d.r.Incarnation() != d.log.Incarnation() {
		t.Errorf("incarnation %q", d.r.Incarnation())
	}
	for _, node := range []string{"a", "b"} {
		want, is, err := d.log.Last(t.Context(), "r1", node)
		got, found, failed := d.r.Last(t.Context(), "r1", node)
		if err != nil || failed != nil || is != found || want.Pos != got.Pos || !bytes.Equal(want.Data, got.Data) {
			t.Errorf("last of %s: %d %v %v, want %d", node, got.Pos, found, failed, want.Pos)
		}
	}
}

// checkBehind checks that entries know at first how many of them there are, and never say anything else.
func checkBehind(t *testing.T, q eventlog.Query, entries iter.Seq2[eventlog.Entry, error], of int) {
	t.Helper()
	i := 0
	for e, err := range entries {
		if err != nil {
			t.Fatal(err)
		}
		if i++; e.Behind != uint64(of-i) && (i == 1 || e.Behind != 0) {
			t.Errorf("%+v: %d messages behind number %d of %d", q, e.Behind, i, of)
		}
	}
}

// TestFollows has readers follow while others write, with servers that come and go and
// readers that are slower than the memory of a server holds: each message comes once, in
// order.
func TestFollows(t *testing.T) {
	d := open(t)
	const events = 300
	var readers sync.WaitGroup
	for _, q := range []eventlog.Query{{Run: "r1"}, {}, {Run: "r1", Node: "a", Kinds: []wire.Kind{wire.KindText}}} {
		readers.Go(func() {
			n := 0
			for e, err := range d.r.Follow(t.Context(), q) {
				if err != nil {
					t.Error(err)
					return
				}
				p, ok := e.Event.Payload.(*wire.AgentText)
				if !ok {
					continue
				}
				if got, _, _ := strings.Cut(p.Content, " "); got != fmt.Sprint(n) {
					t.Errorf("%+v: got %s, want %d", q, got, n)
					return
				}
				if n++; n == events {
					return
				}
			}
			t.Errorf("%+v: only %d of %d came", q, n, events)
		})
	}
	for i := range events {
		d.append(fmt.Sprint(i, " ", strings.Repeat("x", 1000*(i%7))))
		if i%100 == 50 { // the server is started again
			d.stop()
			d.stop = logtest.Serve(t, d.log)
		}
	}
	readers.Wait()
}

// TestTellsWhoIsAway has the recorder go away while a reader waits.
func TestTellsWhoIsAway(t *testing.T) {
	d := open(t)
	first := d.append("before")
	come := make(chan string, 10)
	var reading sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	reading.Go(func() {
		for e, err := range d.r.Follow(ctx, eventlog.Query{Run: "r1", From: first}) {
			if err != nil {
				t.Error(err)
				return
			}
			come <- e.Event.Payload.(*wire.AgentText).Content
		}
	})
	if got := <-come; got != "before" {
		t.Errorf("got %q", got)
	}
	d.stop()
	if err := <-d.away; err == nil || !strings.Contains(err.Error(), "no recorder") {
		t.Errorf("told %v", err)
	}
	d.append("meanwhile")
	d.stop = logtest.Serve(t, d.log)
	if got := <-come; got != "meanwhile" {
		t.Errorf("got %q", got)
	}
	if err := <-d.away; err != nil {
		t.Errorf("told %v", err)
	}
	cancel()
	reading.Wait()
}

func TestWhatIsLarge(t *testing.T) {
	d := open(t)
	if d.log.Conn().MaxPayload() > 2<<20 {
		t.Fatal("one piece is enough")
	}
	content := bytes.Repeat([]byte("0123456789abcdef"), 200<<10) // 3.2 MB
	store, err := d.log.JetStream().ObjectStore(t.Context(), d.log.Names().BlobsBucket())
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(content)
	sum := hex.EncodeToString(hash[:])
	if _, err := store.PutBytes(t.Context(), sum, content); err != nil {
		t.Fatal(err)
	}
	got, err := d.r.Blob(t.Context(), sum)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := d.r.Blob(t.Context(), strings.Repeat("0", 64)); !errors.Is(err, eventlog.ErrBlobMissing) {
		t.Errorf("a blob that isn't there: %v", err)
	}
	if got, err := d.r.Session(t.Context(), "r1", "none"); got != nil || err != nil {
		t.Errorf("a session that isn't there: %d bytes, %v", len(got), err)
	}
}

func TestKeptStates(t *testing.T) {
	d := open(t)
	if _, _, err := d.r.Snapshot(t.Context(), "r1"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("no snapshot: %v", err)
	}
	states, err := snapshot.Open(t.Context(), d.log)
	if err != nil {
		t.Fatal(err)
	}
	s := run.New("r1")
	s.Position = wire.Position{Incarnation: d.log.Incarnation(), Seq: 1}
	if _, err := states.Save(t.Context(), s, snapshot.Stored{}); err != nil {
		t.Fatal(err)
	}
	if err := states.Keep(t.Context(), "green", s.Position.Seq, s); err != nil {
		t.Fatal(err)
	}
	got, found, err := snapshot.Load(t.Context(), d.r, "r1")
	if err != nil || !found || got.Position != s.Position {
		t.Errorf("%v %v %v", got, found, err)
	}
	if got, err := snapshot.Kept(t.Context(), d.r, "r1", "green"); err != nil || got.Position != s.Position {
		t.Errorf("%v %v", got, err)
	}
}

// TestBeyondTheEnd has a reader whose position no log has.
func TestBeyondTheEnd(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		d := open(t)
		for _, err := range d.r.Follow(t.Context(), eventlog.Query{Run: "r1", From: 100}) {
			if !errors.Is(err, eventlog.ErrBeyond) {
				t.Errorf("got %v", err)
			}
		}
		d.stop()
		d.log.Conn().Close()
	})
}

// TestOneRun has a user ask of which the server says that it is a guest of run r1.
func TestOneRun(t *testing.T) {
	d := open(t)
	own := logtest.Append(t, d.writer, &wire.Event{ExecID: "a#1", SessionID: "ours", Payload: &wire.AgentText{Content: strings.Repeat("o", 400<<10)}})
	other := logtest.Append(t, logtest.Claim(t, d.log, "r2", "a"), &wire.Event{ExecID: "a#1", SessionID: "theirs", Payload: &wire.AgentText{Content: strings.Repeat("t", 400<<10)}})
	small := d.append("small")
	blob := func(pos uint64) string {
		for e, err := range d.log.Read(t.Context(), eventlog.Query{From: pos, To: pos}) {
			if err != nil || len(e.Event.Blobs) != 1 {
				t.Fatalf("%v, %v", e.Event, err)
			}
			return e.Event.Blobs[0].SHA256
		}
		t.Fatal("there is no event")
		return ""
	}
	for _, test := range []struct {
		verb string
		q    any
		want wire.ErrorCode
	}{
		{wire.VerbFeed, wire.FeedRequest{Run: "r1"}, ""},
		{wire.VerbFeed, wire.FeedRequest{Run: "r2"}, wire.CodeDenied},
		{wire.VerbFeed, wire.FeedRequest{}, wire.CodeDenied},
		{wire.VerbFeed, wire.FeedRequest{Of: wire.TopicAlerts}, wire.CodeDenied},
		{wire.VerbLast, wire.LastRequest{Run: "r1", Node: "a"}, ""},
		{wire.VerbLast, wire.LastRequest{Run: "r2", Node: "a"}, wire.CodeDenied},
		{wire.VerbBounds, wire.BoundsRequest{Run: "r1"}, ""},
		{wire.VerbValue, wire.ValueRequest{Run: "r2"}, wire.CodeDenied},
		{wire.VerbBlob, wire.BlobRequest{Run: "r1", SHA256: blob(own)}, ""},
		{wire.VerbBlob, wire.BlobRequest{Run: "r1", SHA256: blob(other)}, wire.CodeNotFound},
		{wire.VerbBlob, wire.BlobRequest{Run: "r1", Pos: own, SHA256: blob(own)}, ""},
		{wire.VerbBlob, wire.BlobRequest{Run: "r1", Pos: other, SHA256: blob(other)}, wire.CodeNotFound},
		{wire.VerbBlob, wire.BlobRequest{Run: "r1", Pos: small, SHA256: blob(own)}, wire.CodeNotFound}, // nothing else is read
		{wire.VerbBlob, wire.BlobRequest{SHA256: blob(own)}, wire.CodeDenied},
		{wire.VerbSession, wire.SessionRequest{Run: "r1", Session: "theirs"}, wire.CodeNotFound},
		{wire.VerbSession, wire.SessionRequest{Run: "r2", Session: "theirs"}, wire.CodeDenied},
	} {
		body, err := wire.Marshal(test.q)
		if err != nil {
			t.Fatal(err)
		}
		ask := &nats.Msg{Subject: subjects.Default.API(test.verb), Data: body, Header: nats.Header{
			access.CallerHeader: {`{"user":"U1","name_tag":"guest","tags":["run:` + hex.EncodeToString([]byte("r1")) + `"]}`},
		}}
		m, err := d.log.Conn().RequestMsgWithContext(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get(micro.ErrorCodeHeader); got != string(test.want) {
			t.Errorf("%s %+v: %q, want %q", test.verb, test.q, got, test.want)
		}
	}
}

// A guest's reader says which event has a large field: the feed needn't read the run for it, which may be long.
func TestGuestNamesEvent(t *testing.T) {
	d := open(t)
	pos := logtest.Append(t, d.writer, &wire.Event{ExecID: "a#1", Payload: &wire.AgentText{Content: strings.Repeat("o", 400<<10)}})
	keys, err := access.Keys{}.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := keys.Credentials(access.User{Name: "guest", Role: access.Guest, Run: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	guest, err := feed.Open(t.Context(), d.server.Conn(t, nats.UserCredentialBytes(creds)), feed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := d.log.Conn().SubscribeSync(subjects.Default.API(wire.VerbBlob))
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range guest.Read(t.Context(), eventlog.Query{Run: "r1", From: pos}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := guest.Inline(t.Context(), e.Event); err != nil {
			t.Fatal(err)
		}
	}
	m, err := asked.NextMsgWithContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var q wire.BlobRequest
	if err := wire.Unmarshal(m.Data, &q); err != nil || q.Pos != pos || q.Run != "r1" {
		t.Errorf("%v: asks for %+v, of the event at %d", err, q, pos)
	}
}

func TestRefusals(t *testing.T) {
	d := open(t)
	for name, q := range map[string]wire.FeedRequest{
		"topic": {Of: "commands"}, "node alone": {Node: "a"}, "kind": {Kinds: []wire.Kind{"x"}},
		"run": {Run: "_x"}, "alerts of a node": {Of: wire.TopicAlerts, Run: "r", Node: "a"},
	} {
		_, err := api.Call[wire.FeedResponse](t.Context(), d.log.Conn(), subjects.Default, wire.VerbFeed, q)
		if !wire.HasCode(err, wire.CodeBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := d.log.Conn().RequestWithContext(t.Context(), "wake.api.feed", []byte(`{"run":"r1"}`))
	if err != nil || !strings.Contains(string(m.Data), `"subject":"wake.events.r1.a.flow"`) {
		t.Errorf("%s, %v", m.Data, err)
	}
}
