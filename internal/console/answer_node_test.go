package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/pkg/wire"
)

// A link answers the question of its own node, where another node has a call of the same id.
func TestLinkOfNode(t *testing.T) {
	w := newWorld(t)
	w.config.Public = "https://wake.example"
	w.serveConsole()
	flow, coder := w.write("r", "hello")
	logtest.Append(t, flow, &wire.Event{ExecID: "reviewer#1", Payload: &wire.NodeScheduled{Target: "reviewer", Attempt: 1}})
	reviewer := logtest.Claim(t, w.log, "r", "reviewer")
	logtest.Append(t, reviewer, &wire.Event{ExecID: "reviewer#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}},
		&wire.Event{ExecID: "reviewer#1", SessionID: "5e551012", Payload: &wire.AgentStart{Prompt: wire.RawString("x"), Model: "m"}})
	at := time.Now().UnixMilli()
	links := map[string]string{}
	for name, agent := range map[string]*eventlog.Writer{"coder": coder, "reviewer": reviewer} {
		input := wire.RawOf(map[string]any{"command": "make deploy of " + name})
		logtest.Append(t, agent, &wire.Event{ExecID: name + "#1", CallID: "call_1", Timestamp: at, Payload: &wire.ToolIntent{ToolName: "Bash", ToolInput: input}},
			&wire.Event{ExecID: name + "#1", CallID: "call_1", Timestamp: at, Payload: &wire.PermissionRequired{ToolName: "Bash", ToolInput: input}})
	}
	for e, err := range w.log.Read(t.Context(), eventlog.Query{Run: "r"}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, is := e.Event.Payload.(*wire.PermissionRequired); is && e.Event.CallID == "call_1" {
			a := &wire.Alert{
				Kind: "waiting", RunID: "r", NodeID: e.NodeID, Position: wire.Position{Incarnation: w.log.Incarnation(), Seq: e.Pos},
				Timestamp: time.Now().UnixMilli(), Data: wire.RawOf(map[string]any{"callId": "call_1"}),
			}
			links[e.NodeID] = strings.TrimPrefix(w.console.AnswerLink(a), "https://wake.example")
		}
	}
	page := func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("Accept", "text/html")
		r.Host = "wake.example"
	}
	for name, link := range links {
		if status, text := w.ask(http.MethodGet, link, "", page); status != http.StatusOK || !strings.Contains(text, "make deploy of "+name) {
			t.Errorf("the link of %s's question shows another one (%d)", name, status)
		}
	}
	w.ask(http.MethodPost, links["reviewer"], "type=approve", page)
	if _, c := w.givenCommands(); c.NodeID != "reviewer" {
		t.Errorf("the command of the reviewer's link names node %q: %+v", c.NodeID, c)
	}
}

// The form by which a call is allowed names its node.
func TestInboxNamesNode(t *testing.T) {
	w := newWorld(t)
	w.serveConsole()
	_, coder := w.write("r", "hello")
	w.asks("r", coder, "call_1", time.Now())
	text := w.get("/parts/inbox?run=r", `value="call_1"`)
	if !strings.Contains(text, `name="node" value="coder"`) {
		t.Error("the inbox's form for call_1 of coder names no node: the first call of that id that waits when the order comes is allowed, whosever it is")
	}
}
