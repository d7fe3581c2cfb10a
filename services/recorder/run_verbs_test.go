package recorder_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/bookmark"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// ask sends a request as `nats req` does, and returns the answer.
func (p *plant) ask(verb, body string) (answer map[string]any) {
	p.t.Helper()
	m, err := p.nc.RequestWithContext(p.t.Context(), "wake.api."+verb, []byte(body))
	if err == nil {
		err = json.Unmarshal(m.Data, &answer)
	}
	if err != nil {
		p.t.Fatalf("%s %s: %v", verb, body, err)
	}
	return answer
}

// field is a value in an answer.
func field(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			list, _ := v.([]any)
			if p >= len(list) {
				return nil
			}
			v = list[p]
		}
	}
	return v
}

// All that is known of a run is asked for in JSON: its alerts, the points at which it can be forked, in what it differs from another
// one; what calls were given and answered, also if it is large; its flow with how far it is, its ancestors and what comes from it.
func TestVerbsOfRuns(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{})
		logtest.Serve(t, p.log)
		definition := mustRaw(t, map[string]any{
			"nodes": []any{map[string]any{"id": "coder", "type": "agent"}, map[string]any{"id": "test", "type": "exec"}},
			"edges": []any{map[string]any{"from": "coder", "to": "test"}},
		})
		large := strings.Repeat("a large output ", 10_000)
		var call, end uint64
		state := map[string]wire.Raw{}
		for _, run := range []string{"r1", "r2"} {
			flow := p.claim(run, wire.RunNode)
			agent := p.claim(run, "coder")
			p.write(flow, &wire.Event{Payload: &wire.FlowStart{FlowName: "build", Definition: definition, DefinitionHash: "h"}},
				&wire.Event{ExecID: "coder#1", Payload: &wire.NodeScheduled{Target: "coder", Attempt: 1}})
			pos := p.write(agent, &wire.Event{ExecID: "coder#1", Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}},
				&wire.Event{ExecID: "coder#1", SessionID: "s-" + run, Payload: &wire.AgentStart{Prompt: wire.RawString("Build it.")}},
				&wire.Event{ExecID: "coder#1", CallID: "c1", Payload: &wire.AgentTool{ToolName: "Bash", ToolInput: mustRaw(t, map[string]any{"command": "make " + run}), ToolOutput: wire.RawString(large)}})
			if run == "r1" {
				call = pos
			}
			end = pos
			p.until(pos)
			s, err := api.Call[wire.StateResponse](t.Context(), p.nc, subjects.Default, wire.VerbState, wire.StateRequest{Run: run})
			if err != nil {
				t.Fatal(err)
			}
			state[run] = s.State
		}
		fork := p.claim("r3", wire.RunNode)
		p.until(p.write(fork, &wire.Event{Payload: &wire.RunForked{ParentRun: "r1", ParentPos: call, State: state["r1"]}}))
		for i := range 3 {
			p.alert(fmt.Sprint("key", i), wire.Alert{Kind: "stuck", Severity: wire.SeverityWarning, RunID: "r1", NodeID: "coder", Label: "coder", Timestamp: int64(i), Text: fmt.Sprint("alert ", i), Data: wire.Null})
		}
		p.alert("other", wire.Alert{Kind: "stuck", Severity: wire.SeverityInfo, RunID: "r2", NodeID: "coder", Label: "coder", Timestamp: 9, Text: "another's", Data: wire.Null})

		first := p.ask("alerts", `{"run":"r1","limit":2}`)
		next := p.ask("alerts", fmt.Sprintf(`{"run":"r1","limit":2,"before":%v}`, field(first, "before")))
		if got := fmt.Sprint(field(first, "alerts", 0, "text"), field(first, "alerts", 1, "text"), field(next, "alerts", 0, "text"), field(next, "alerts", 1), field(next, "before")); got != "alert 2alert 1alert 0<nil> <nil>" {
			t.Errorf("alerts %s", got)
		}
		if all := p.ask("alerts", `{}`); field(all, "alerts", 0, "text") != "another's" || field(all, "alerts", 3, "text") != "alert 0" {
			t.Errorf("alerts of all: %v", all)
		}

		points := p.ask("bookmarks", `{"run":"r3"}`)
		var labels []string
		for _, point := range field(points, "points").([]any) {
			labels = append(labels, fmt.Sprint(field(point, "run"), " ", field(point, "label")))
		}
		if !slices.Contains(labels, "r1 coder#1:start") || !slices.Contains(labels, "r1 sfp-2") {
			t.Errorf("points of the fork: %v", labels)
		}
		last := p.ask("bookmarks", `{"run":"r1","limit":1}`)
		before := p.ask("bookmarks", fmt.Sprintf(`{"run":"r1","limit":1,"before":%v}`, field(last, "before")))
		if field(last, "points", 0, "position") != float64(call) || field(before, "points", 0, "position").(float64) >= float64(call) {
			t.Errorf("page by page: %v, %v", last, before)
		}

		for _, run := range []string{"r1", "r3"} {
			want, _, err := bookmark.ListBefore(t.Context(), p.log, run, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			got, err := api.Call[wire.BookmarksResponse](t.Context(), p.nc, subjects.Default, wire.VerbBookmarks, wire.BookmarksRequest{Run: run})
			if diff := cmp.Diff(want, got.Points); err != nil || diff != "" {
				t.Errorf("%s: %v (-from the log +from the store):\n%s", run, err, diff)
			}
		}

		d := p.ask("diff", `{"run":"r1","with":"r2"}`)
		if field(d, "same") != false || field(d, "parted", "node") != "coder" || field(d, "parted", "a", "text") != "make r1" || field(d, "parted", "b", "text") != "make r2" || field(d, "tools", 0, "input") != "make r1" {
			t.Errorf("diff %v", d)
		}
		if d := p.ask("diff", fmt.Sprintf(`{"run":"r1","with":"r2","at":%d}`, call-1)); field(d, "parted") == nil || field(d, "tools", 0) != nil {
			t.Errorf("as it was: %v", d)
		}
		if d := p.ask("diff", `{"run":"r1","with":"r3"}`); field(d, "common", "position") != float64(call) {
			t.Errorf("with its fork: %v", d)
		}

		e := p.ask("events", fmt.Sprintf(`{"run":"r1","from":%d,"to":%d}`, call, call))
		if field(e, "events", 0, "event", "toolInput", "command") != "make r1" || field(e, "events", 1) != nil {
			t.Errorf("the call: %v", e)
		}
		sum, _ := field(e, "events", 0, "event", "blobs", 0, "sha256").(string)
		var whole []byte
		for size := 1.0; float64(len(whole)) < size; {
			piece := p.ask("blob", fmt.Sprintf(`{"run":"r1","sha256":%q,"offset":%d}`, sum, len(whole)))
			data, err := base64.StdEncoding.DecodeString(fmt.Sprint(field(piece, "data")))
			if err != nil || len(data) == 0 {
				t.Fatalf("what it has answered: %.200v, %v", piece, err)
			}
			whole, size = append(whole, data...), field(piece, "size").(float64)
		}
		if text, _ := wire.Raw(whole).Text(); text != large {
			t.Errorf("%d bytes of what it has answered", len(whole))
		}

		s := p.ask("state", fmt.Sprintf(`{"run":"r1","at":%d}`, end))
		if field(s, "state", "definition", "edges", 0, "to") != "test" || field(s, "state", "nodeStatus", "coder") != "running" {
			t.Errorf("the flow: %v", s)
		}
		if s := p.ask("state", `{"run":"r3"}`); field(s, "state", "lineage", 0, "runId") != "r1" || field(s, "state", "lineage", 0, "position") != float64(call) {
			t.Errorf("ancestors: %v", field(s, "state", "lineage"))
		}
		if r := p.ask("runs", `{"ancestor":"r1"}`); field(r, "runs", 0, "runId") != "r3" || field(r, "runs", 1) != nil {
			t.Errorf("what comes from it: %v", r)
		}

		for verb, body := range map[string]string{
			"alerts": `{"run":"none"}`, "bookmarks": `{"run":"none"}`, "diff": `{"run":"r1","with":"none"}`,
		} {
			if code := field(p.ask(verb, body), "error", "code"); code != string(wire.CodeRunNotFound) {
				t.Errorf("%s %s: %v", verb, body, code)
			}
		}
		for verb, body := range map[string]string{"alerts": `{"limit":1001}`, "bookmarks": `{"run":"r1","limit":-1}`} {
			if code := field(p.ask(verb, body), "error", "code"); code != string(wire.CodeBadRequest) {
				t.Errorf("%s %s: %v", verb, body, code)
			}
		}
	})
}

// A new recorder doesn't wait for alerts that their stream has dropped.
func TestDroppedAlertsAreNotAwaited(t *testing.T) {
	for name, drop := range map[string]func(context.Context, jetstream.Stream) error{
		"all": func(ctx context.Context, s jetstream.Stream) error { return s.Purge(ctx) },
		"last": func(ctx context.Context, s jetstream.Stream) error {
			return s.Purge(ctx, jetstream.WithPurgeSubject(subjects.Default.Alert("r1", "coder", "stuck", "key1")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				p := newPlant(t)
				for i := range 2 {
					p.alert(fmt.Sprint("key", i), wire.Alert{Kind: "stuck", Severity: wire.SeverityWarning, RunID: "r1", NodeID: "coder", Label: "coder", Text: "alert", Data: wire.Null})
				}
				stream, err := p.log.JetStream().Stream(t.Context(), subjects.Default.AlertsStream())
				if err == nil {
					err = drop(t.Context(), stream)
				}
				if err != nil {
					t.Fatal(err)
				}
				p.record(recorder.Config{})
				p.until(p.fill(3))
				begun := time.Now()
				for range 4 {
					p.ask("alerts", `{}`)
				}
				if took := time.Since(begun); took > 400*time.Millisecond {
					t.Errorf("four answers took %v", took)
				}
			})
		})
	}
}

// A page of alerts fits into an answer, whatever their texts have in them.
func TestAlertsFit(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{})
		p.until(p.fill(3))
		for i := range 100 {
			p.alert(fmt.Sprint("key", i), wire.Alert{Kind: "stuck", Severity: wire.SeverityWarning, RunID: "r1", NodeID: "coder", Label: "coder", Text: strings.Repeat("\x01", 4000), Data: wire.Null})
		}
		if page := p.ask("alerts", `{}`); field(page, "before") == nil || field(page, "alerts", 9) == nil {
			t.Errorf("%.300v", page)
		}
	})
}

// Points and differences that don't fit into one answer come page by page, or cut, and the answer says so.
func TestVerbsFit(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newPlant(t)
		p.record(recorder.Config{})
		logtest.Serve(t, p.log)
		const nodes, labels, long = 200, 600, 3000
		var end uint64
		for _, run := range []string{"r1", "r2"} {
			flow := p.claim(run, wire.RunNode)
			p.write(flow, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: wire.Null, DefinitionHash: "h"}})
			for i := range nodes {
				node := fmt.Sprint("n", i)
				p.write(flow, &wire.Event{ExecID: node + "#1", Payload: &wire.NodeScheduled{Target: node, Attempt: 1}})
				end = p.write(p.claim(run, node), &wire.Event{ExecID: node + "#1", Payload: &wire.NodeStart{NodeType: "exec", Attempt: 1}},
					&wire.Event{ExecID: node + "#1", Payload: &wire.NodeComplete{Output: wire.RawString(run + strings.Repeat("<", long))}})
			}
		}
		flow := p.claim("r3", wire.RunNode)
		p.write(flow, &wire.Event{Payload: &wire.FlowStart{FlowName: "f", Definition: wire.Null, DefinitionHash: "h"}})
		for i := range labels {
			end = p.write(flow, &wire.Event{Payload: &wire.Checkpoint{Kind: wire.CheckpointLabelled, Label: fmt.Sprint(i, strings.Repeat("<", 2000))}})
		}
		p.until(end)

		pages, seen := 0, map[string]bool{}
		for before := any(0); before != float64(0); pages++ {
			page := p.ask("bookmarks", fmt.Sprintf(`{"run":"r3","limit":1000,"before":%v}`, before))
			points, _ := field(page, "points").([]any)
			if len(points) == 0 {
				t.Fatalf("page %d: %.300v", pages, page)
			}
			for _, point := range points {
				seen[fmt.Sprint(field(point, "label"))] = true
			}
			before = field(page, "before")
		}
		if pages < 2 || len(seen) < labels {
			t.Errorf("%d labels in %d pages", len(seen), pages)
		}

		d := p.ask("diff", `{"run":"r1","with":"r2"}`)
		outputs, _ := field(d, "outputs").([]any)
		cut := 0
		for _, v := range outputs {
			if field(v, "cut") == true {
				cut++
			} else if a, _ := field(v, "a").(string); len(a) != long+2 {
				t.Errorf("%v is %d long", field(v, "name"), len(a))
			}
		}
		if omitted, _ := field(d, "omitted").(float64); len(outputs)+int(omitted) != nodes || cut == 0 || cut == nodes {
			t.Errorf("%d outputs, %d of them cut, %v left out: %.300v", len(outputs), cut, omitted, d)
		}
	})
}
