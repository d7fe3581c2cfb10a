package inlet_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/inlet"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// ask asks as the user that the server names, and returns the code of what is refused.
func ask[A any](g *gate, user, subject string, q any) (answer A, refused wire.ErrorCode) {
	g.Helper()
	body, err := wire.Marshal(q)
	if err != nil {
		g.Fatal(err)
	}
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	if user != "" {
		m.Header.Set(access.CallerHeader, fmt.Sprintf(`{"user":%q,"name_tag":%q}`, "U"+strings.ToUpper(user), user))
	}
	if m, err = g.log.Conn().RequestMsgWithContext(g.Context(), m); err != nil {
		g.Fatal(err)
	}
	if m.Header.Get(micro.ErrorCodeHeader) != "" {
		var r wire.ErrorResponse
		if err := wire.Unmarshal(m.Data, &r); err != nil || r.Error == nil {
			g.Fatalf("%q, %v", m.Data, err)
		}
		return answer, r.Error.Code
	}
	if err := wire.Unmarshal(m.Data, &answer); err != nil {
		g.Fatal(err)
	}
	return answer, ""
}

func (g *gate) beginAs(user string, q wire.IngestRequest) (wire.IngestResponse, wire.ErrorCode) {
	g.Helper()
	return ask[wire.IngestResponse](g, user, subjects.Default.API(wire.VerbIngest), q)
}

// sendAs sends an input, in one piece, as a user.
func (g *gate) sendAs(user string, q wire.IngestRequest, text string) (r ingest.Result, p wire.IngestProgress) {
	g.Helper()
	begun, refused := g.beginAs(user, q)
	if refused != "" {
		g.Fatal(refused)
	}
	if p, refused = ask[wire.IngestProgress](g, user, begun.Subject, wire.IngestPiece{Session: begun.Session, Data: []byte(text), End: true}); refused != "" || !p.Done {
		g.Fatalf("%s, %+v", refused, p)
	}
	if err := wire.Unmarshal(p.Result, &r); err != nil {
		g.Fatal(err)
	}
	return r, p
}

// Nobody else adds to a user's input, ends it or is told what became of it, whoever has learnt its session's name.
func TestInputOfAnotherUser(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		begun, refused := g.beginAs("ann", agent("r"))
		if refused != "" {
			t.Fatal(refused)
		}
		text := stream(3)
		whole := wire.IngestPiece{Session: begun.Session, Data: []byte(text), End: true}
		strangers := []string{"bob", ""}
		for _, user := range strangers {
			for _, piece := range []wire.IngestPiece{whole, {Session: begun.Session, Abort: true}, {Session: begun.Session}} {
				if p, refused := ask[wire.IngestProgress](g, user, begun.Subject, piece); refused != wire.CodeNotFound {
					t.Errorf("%q: %s, %+v", user, refused, p)
				}
			}
		}
		p, refused := ask[wire.IngestProgress](g, "ann", begun.Subject, whole)
		if refused != "" || !p.Done || p.Problem != nil || p.Received != int64(len(text)) {
			t.Errorf("her own: %s, %+v", refused, p)
		}
		for _, user := range strangers {
			if p, refused := ask[wire.IngestProgress](g, user, begun.Subject, whole); refused != wire.CodeNotFound {
				t.Errorf("%q, what became of it: %s, %+v", user, refused, p)
			}
		}
		if p, ended := g.last("r").(*wire.FlowComplete); !ended {
			t.Errorf("it hasn't ended: %+v", p)
		}
	})
}

// A user that only adds runs joins none, whatever the request says; others' streams do.
func TestUserJoinsNoRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		const session = "5e551011-0000-4000-8000-000000000001" // of stream
		w := logtest.Claim(t, g.log, session, wire.RunNode)
		logtest.Append(t, w, &wire.Event{Payload: &wire.FlowStart{FlowName: "session", DefinitionHash: "h", Definition: wire.Null, Imported: wire.ImportedIngest, Labels: map[string]string{"session": session}}})
		events := func() (n int) {
			for _, err := range g.log.Read(t.Context(), eventlog.Query{Run: session}) {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			return n
		}
		before := events()
		q := agent("own")
		q.Join = true
		if r, p := g.sendAs("ann", q, stream(3)); p.Problem != nil || r.Lines != 4 || r.RunID != "own" || events() != before {
			t.Errorf("%+v, %+v, %d events more", r, p.Problem, events()-before)
		}
		if p, ended := g.last("own").(*wire.FlowComplete); !ended {
			t.Errorf("it hasn't ended: %+v", p)
		}
		q.Run = "other"
		if r, _ := g.sendAs("", q, stream(3)); r.RunID != session {
			t.Errorf("without users it joins run %q", r.RunID)
		}
	})
}

// One user can't take all the room there is; what was read takes none, and who was refused may try again.
func TestRoomOfOneUser(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		var begun []wire.IngestResponse
		for i := range 8 {
			one, refused := g.beginAs("ann", agent(fmt.Sprint("ann", i)))
			if refused != "" {
				t.Fatalf("%d: %s", i, refused)
			}
			begun = append(begun, one)
		}
		if _, refused := g.beginAs("ann", agent("more")); refused != wire.CodeBusy {
			t.Errorf("a ninth: %q", refused)
		}
		if _, refused := g.beginAs("bob", agent("bob")); refused != "" {
			t.Errorf("another user: %s", refused)
		}
		p, refused := ask[wire.IngestProgress](g, "ann", begun[3].Subject, wire.IngestPiece{Session: begun[3].Session, Data: []byte(stream(3)), End: true})
		if refused != "" || !p.Done {
			t.Errorf("%s, %+v", refused, p)
		}
		if _, refused := g.beginAs("ann", agent("more")); refused != "" {
			t.Errorf("when one was read: %s", refused)
		}
		<-time.After(3 * time.Minute) // the senders are gone
		synctest.Wait()
		for i := range 8 {
			if _, refused := g.beginAs("ann", agent(fmt.Sprint("again", i))); refused != "" {
				t.Errorf("when the others were away, %d: %s", i, refused)
			}
		}
	})
}

// The writer of a run that a user adds is told by the user's name.
func TestWriterNamesUser(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		for user, want := range map[string]string{"ann": "ingest-ann-", "": "ingest-"} {
			run := "of-" + user + "x"
			g.sendAs(user, agent(run), stream(1))
			for e, err := range g.log.Read(t.Context(), eventlog.Query{Run: run, Node: wire.RunNode}) {
				if err != nil {
					t.Fatal(err)
				}
				if c, is := e.Event.Payload.(*wire.RunClaimed); is && (!strings.HasPrefix(c.Runner, want) || len(c.Runner) != len(want)+8) {
					t.Errorf("%q: the writer is %q", user, c.Runner)
				}
			}
		}
	})
}

// A request that can't be read, or is compared by no verdict, begins nothing.
func TestRefusedRequests(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := open(t)
		defer g.stop()
		for name, q := range map[string]wire.IngestRequest{
			"no format":        {Run: "r", Node: "n"},
			"a reserved run":   {Format: string(ingest.StreamJSON), Run: "_r", Node: "n"},
			"no node":          {Format: string(ingest.StreamJSON), Run: "r"},
			"no verdict":       {Format: string(ingest.StreamJSON), Run: "r", Node: "n", Compared: wire.RawString("x")},
			"an exported run":  {Format: string(inlet.Exported), Run: "_r"},
			"a run of lines":   {Format: string(ingest.Kahn), Run: "_r"},
			"a long exported":  {Format: string(inlet.Exported), Run: strings.Repeat("r", subjects.MaxID+1)},
			"a run of its own": {Format: string(ingest.Transcript), Node: "n"},
		} {
			if _, refused := g.beginAs("ann", q); refused != wire.CodeBadRequest {
				t.Errorf("%s: %q", name, refused)
			}
		}
	})
}
