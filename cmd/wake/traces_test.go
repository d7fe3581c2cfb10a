package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/internal/tracing/otlptest"
)

// command runs a verb in this process and returns its output.
func command(t *testing.T, args ...string) string {
	t.Helper()
	var out, said bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, errOut: &said}
	if code := a.main(t.Context(), args); code != exitDone {
		t.Fatalf("wake %s: exit code %d: %s", strings.Join(args, " "), code, said.String())
	}
	return strings.TrimSpace(out.String())
}

// upIn runs wake up in a folder until the returned function is called.
func upIn(t *testing.T, dir string, args ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var said bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		a := &app{in: strings.NewReader(""), out: io.Discard, errOut: &said}
		ended <- a.main(ctx, append([]string{"up", "--data-dir", dir}, args...))
	}()
	return func() {
		cancel()
		if code := <-ended; code != exitDone {
			t.Errorf("wake up: exit code %d: %s", code, said.String())
		}
	}
}

// One trace goes from the command line through the runner to the recorder, through
// a restart as well, and a command belongs to the trace of its sender. What
// agents and commands say isn't in it.
func TestTraces(t *testing.T) {
	collector := otlptest.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	dir := t.TempDir()
	flow, rules := filepath.Join(dir, "flow.yaml"), filepath.Join(dir, "rules.yaml")
	for file, text := range map[string]string{
		flow: "name: traced\nnodes:\n  - {id: say, type: exec, input: {command: echo swordfish}}\n" +
			"  - {id: wait, type: ask, input: {prompt: swordfish}}\nedges:\n  - {from: say, to: wait}\n",
		rules: "sinks:\n  here: {type: terminal}\nrules:\n  - sinks: [here]\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stop := upIn(t, dir, "--rules", rules)
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(dir, "nats-url")); return err == nil })
	run := command(t, "run", "--data-dir", dir, "--detach", flow)
	waitFor(t, func() bool { return strings.Contains(command(t, "status", "--data-dir", dir, run), "wait") })
	waitFor(t, func() bool { return command(t, "alerts", "--data-dir", dir) != "" })
	stop()
	if _, err := os.Stat(filepath.Join(dir, "nats-url")); err == nil {
		t.Error("nats-url is left behind")
	}
	stop = upIn(t, dir, "--rules", rules)
	waitFor(t, func() bool { _, err := os.Stat(filepath.Join(dir, "nats-url")); return err == nil })
	command(t, "reply", "--data-dir", dir, run, "yes")
	waitFor(t, func() bool { return strings.Contains(command(t, "status", "--data-dir", dir, run), "complete") })
	command(t, "runs", "--data-dir", dir)
	stop()

	if bytes.Contains(collector.Raw(), []byte("swordfish")) {
		t.Error("what is said is in spans")
	}
	trace := one(t, collector.Spans(), "wake run", "wake").Trace
	var names []string
	for _, s := range collector.Spans() {
		if s.Failed {
			t.Errorf("it failed: %+v", s)
		}
		if s.Trace == trace {
			group, _ := s.Attributes["messaging.consumer.group.name"].(string)
			names = append(names, strings.TrimSpace(s.Name+" "+group))
		}
	}
	// The run that was handed over goes on by the request for it, or by a sweep if that is faster.
	names = slices.DeleteFunc(names, func(name string) bool { return name == tracing.RunTakenOver })
	slices.Sort(names)
	want := []string{
		"deliver wake.alerts", "process wake.events alerter", "process wake.events recorder", "process wake.events snapshotter",
		"process wake.queue.node", "process wake.queue.run", "publish wake.events", "save values alerter", "save values snapshotter",
		"send wake.alerts", "send wake.queue.run", "wake run",
	}
	if d := cmp.Diff(want, slices.Compact(names)); d != "" {
		t.Errorf("one trace, through the restart: %s", d)
	}
	node := one(t, collector.Spans(), "process wake.queue.node", "wake").Attributes
	if node["wake.run.id"] != run || node["wake.node.id"] != "say" || node["wake.exec.id"] != "say#1" || node["wake.attempt"] != int64(1) {
		t.Errorf("%v", node)
	}
	reply := one(t, collector.Spans(), "wake reply", "wake")
	obeyed := one(t, collector.Spans(), "process wake.cmd", "wake")
	if obeyed.Trace != reply.Trace || !slices.Equal(obeyed.Links, []string{trace}) || obeyed.Attributes["wake.command.type"] != "reply" {
		t.Errorf("%+v; reply %+v, trace of the run %s", obeyed, reply, trace)
	}
	asked := one(t, collector.Spans(), "wake runs", "wake")
	if served := one(t, collector.Spans(), "wake.api.runs", "wake", asked.ID); served.Trace != asked.Trace || served.Kind != "SERVER" {
		t.Errorf("%+v of %+v", served, asked)
	}
}

// one returns the span of a name and service, and of a parent if one is given.
func one(t *testing.T, spans []otlptest.Span, name, service string, parent ...string) otlptest.Span {
	t.Helper()
	var found []otlptest.Span
	for _, s := range spans {
		if s.Name == name && s.Service == service && (len(parent) == 0 || s.Parent == parent[0]) {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans %q: %+v", len(found), name, found)
	}
	return found[0]
}

// waitFor waits until something is so.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it didn't come about")
		}
	}
}
