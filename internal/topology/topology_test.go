package topology_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func TestInit(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	first := mustInit(t, js, topology.Config{})
	if got, want := len(first.Items), 15; got != want {
		t.Errorf("%d items, want %d", got, want)
	}
	for _, i := range first.Items {
		if i.Action != topology.Created {
			t.Errorf("%s %s: %s, want created", i.Kind, i.Name, i.Action)
		}
	}
	if err := topology.Verify(t.Context(), js, subjects.Default); err != nil {
		t.Errorf("Verify: %v", err)
	}
	second := mustInit(t, js, topology.Config{})
	if second.Changed() || second.Incarnation != first.Incarnation || second.Incarnation == "" {
		t.Errorf("the second Init: %+v", second)
	}
	id, err := topology.Incarnation(t.Context(), js, subjects.Default)
	if err != nil || id != first.Incarnation {
		t.Errorf("Incarnation = %s, %v; want %s", id, err, first.Incarnation)
	}
}

// What the design promises of the streams, as the server has it.
func TestConfigurations(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	mustInit(t, js, topology.Config{})
	events := config(t, js, "WAKE_EVENTS")
	if !events.AllowAtomicPublish || !events.DenyDelete || !events.DenyPurge || !events.AllowDirect ||
		events.Discard != jetstream.DiscardNew || events.Storage != jetstream.FileStorage || events.MaxConsumers != 20_000 ||
		events.MaxAge != 0 || events.MaxBytes != -1 || !slices.Equal(events.Subjects, []string{"wake.events.*.*.*"}) {
		t.Errorf("WAKE_EVENTS: %+v", events)
	}
	// An alert that is still there is what keeps it from being raised again.
	if alerts := config(t, js, "WAKE_ALERTS"); alerts.MaxAge != 0 || !alerts.DenyDelete || alerts.Discard != jetstream.DiscardNew {
		t.Errorf("WAKE_ALERTS: %+v", alerts)
	}
	if queue := config(t, js, "WAKE_QUEUE"); queue.Retention != jetstream.WorkQueuePolicy {
		t.Errorf("WAKE_QUEUE: %+v", queue)
	}
	leases, err := js.KeyValue(t.Context(), "WAKE_LEASES")
	if err != nil {
		t.Fatal(err)
	}
	status, err := leases.Status(t.Context())
	if err != nil || status.TTL() != 10*time.Second || status.History() != 1 {
		t.Errorf("WAKE_LEASES: %+v, %v", status, err)
	}
	for name, want := range map[string]jetstream.PersistModeType{
		"KV_WAKE_LEASES": jetstream.AsyncPersistMode, "KV_WAKE_SNAPSHOTS": jetstream.AsyncPersistMode,
		"KV_WAKE_STATE": jetstream.DefaultPersistMode, "KV_WAKE_BOOKMARKS": jetstream.DefaultPersistMode, "WAKE_EVENTS": jetstream.DefaultPersistMode,
	} {
		if c := config(t, js, name); c.PersistMode != want {
			t.Errorf("%s is persisted in mode %v, want %v", name, c.PersistMode, want)
		}
	}
	c, err := js.Consumer(t.Context(), "WAKE_EVENTS", "snapshotter")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.CachedInfo().Config; !slices.Equal(got.FilterSubjects, []string{"wake.events.*.*.*"}) || got.AckPolicy != jetstream.AckAllPolicy || got.MaxAckPending != 100_000 {
		t.Errorf("snapshotter: %+v", got)
	}
}

// The buckets are buckets to the client, and the object stores object stores.
func TestBucketsWork(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	mustInit(t, js, topology.Config{})
	n := subjects.Default
	for _, name := range []string{n.SnapshotsBucket(), n.BookmarksBucket(), n.LeasesBucket(), n.StateBucket()} {
		kv, err := js.KeyValue(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rev, err := kv.Create(t.Context(), "a.b", []byte("1"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := kv.Update(t.Context(), "a.b", []byte("2"), rev); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := kv.Update(t.Context(), "a.b", []byte("3"), rev); err == nil {
			t.Errorf("%s: an update of an old revision passes", name)
		}
		if err := kv.Purge(t.Context(), "a.b"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{n.BlobsBucket(), n.SessionsBucket(), n.WorkspacesBucket()} {
		store, err := js.ObjectStore(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := store.PutBytes(t.Context(), "x", []byte("content")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := store.GetString(t.Context(), "x"); err != nil || got != "content" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A setting that is given is changed; one that isn't stays as it is.
func TestInitChangesWhatIsGiven(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	first := mustInit(t, js, topology.Config{})
	r := mustInit(t, js, topology.Config{MaxAge: time.Hour, MaxBytes: 1 << 20, LeaseTTL: time.Minute})
	var changed []topology.Item
	for _, i := range r.Items {
		if i.Action == topology.Updated {
			changed = append(changed, i)
		}
	}
	want := []topology.Item{
		{Kind: topology.Stream, Name: "WAKE_EVENTS", Action: topology.Updated, Changes: []topology.Change{
			{Field: "max_bytes", Old: "-1", New: "1048576"}, {Field: "max_age", Old: "0s", New: "1h0m0s"},
		}},
		{Kind: topology.Stream, Name: "WAKE_ALERTS", Action: topology.Updated, Changes: []topology.Change{
			{Field: "max_age", Old: "0s", New: "2h0m0s"},
		}},
		{Kind: topology.Bucket, Name: "WAKE_LEASES", Action: topology.Updated, Changes: []topology.Change{
			{Field: "max_age", Old: "10s", New: "1m0s"}, {Field: "duplicate_window", Old: "10s", New: "1m0s"},
		}},
	}
	if d := cmp.Diff(want, changed); d != "" {
		t.Error(d)
	}
	if r := mustInit(t, js, topology.Config{}); r.Changed() || r.Incarnation != first.Incarnation {
		t.Errorf("Init without settings: %+v", r)
	}
	mustInit(t, js, topology.Config{MaxAge: -1, MaxBytes: -1})
	if c := config(t, js, "WAKE_EVENTS"); c.MaxAge != 0 || c.MaxBytes != -1 {
		t.Errorf("the limits are still %s, %d", c.MaxAge, c.MaxBytes)
	}
}

// Settings that an operator changed come back; what wake doesn't decide stays.
func TestInitRepairs(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	mustInit(t, js, topology.Config{})
	c := config(t, js, "WAKE_EVENTS")
	c.Discard = jetstream.DiscardOld
	c.AllowAtomicPublish = false
	c.Compression = jetstream.S2Compression
	c.Metadata["team"] = "blue"
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	err := topology.Verify(t.Context(), js, subjects.Default)
	wantError(t, err, "stream WAKE_EVENTS: discard is", "allow_atomic is false, must be true", "run `wake init`")
	mustInit(t, js, topology.Config{})
	if err := topology.Verify(t.Context(), js, subjects.Default); err != nil {
		t.Error(err)
	}
	if c := config(t, js, "WAKE_EVENTS"); c.Compression != jetstream.S2Compression || c.Metadata["team"] != "blue" {
		t.Errorf("Init changed what isn't wake's: %+v", c)
	}
}

func TestInitTwiceAtOnce(t *testing.T) {
	t.Parallel()
	s := natstest.New(t)
	type result struct {
		report topology.Report
		err    error
	}
	results := make(chan result)
	for range 4 {
		js := s.JetStream(t)
		go func() {
			r, err := topology.Init(t.Context(), js, topology.Config{})
			results <- result{r, err}
		}()
	}
	ids := map[string]bool{}
	for range 4 {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		ids[r.report.Incarnation] = true
	}
	if len(ids) != 1 {
		t.Errorf("incarnations %v, want one", ids)
	}
}

// A stream that was deleted and created again is another one.
func TestIncarnationOfARecreatedStream(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	first := mustInit(t, js, topology.Config{})
	if err := js.DeleteStream(t.Context(), "WAKE_EVENTS"); err != nil {
		t.Fatal(err)
	}
	wantError(t, topology.Verify(t.Context(), js, subjects.Default), "stream WAKE_EVENTS: missing")
	if second := mustInit(t, js, topology.Config{}); second.Incarnation == first.Incarnation {
		t.Error("the incarnation is the same")
	}
}

func TestTwoInstallations(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	other, err := subjects.New("team.wake")
	if err != nil {
		t.Fatal(err)
	}
	a := mustInit(t, js, topology.Config{})
	b := mustInit(t, js, topology.Config{Names: other})
	if a.Incarnation == b.Incarnation || b.Prefix != "team.wake" {
		t.Errorf("%+v", b)
	}
	for _, n := range []subjects.Names{subjects.Default, other} {
		if err := topology.Verify(t.Context(), js, n); err != nil {
			t.Error(err)
		}
	}
}

func TestInitRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*testing.T, jetstream.JetStream)
		config  topology.Config
		want    []string
	}{
		"a stream of that name": {
			prepare: func(t *testing.T, js jetstream.JetStream) {
				create(t, js, jetstream.StreamConfig{Name: "WAKE_EVENTS", Subjects: []string{"other.>"}})
			},
			want: []string{"stream WAKE_EVENTS", "other.>", "was not created by `wake init`", "nats stream rm WAKE_EVENTS"},
		},
		"a stream with those subjects": {
			prepare: func(t *testing.T, js jetstream.JetStream) {
				create(t, js, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"wake.>"}})
			},
			want: []string{"stream WAKE_EVENTS", "stored by the stream OTHER", "choose another prefix"},
		},
		"another installation with those subjects": {
			prepare: func(t *testing.T, js jetstream.JetStream) {
				create(t, js, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"wake.queue.>"}, Metadata: map[string]string{"wake.prefix": "other"}})
			},
			want: []string{"stream OTHER of the installation with prefix \"other\"; choose another prefix"},
		},
		"a bucket of that name": {
			prepare: func(t *testing.T, js jetstream.JetStream) {
				if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "WAKE_STATE"}); err != nil {
					t.Fatal(err)
				}
			},
			want: []string{"bucket WAKE_STATE", "was not created by `wake init`"},
		},
		"replicas on one server": {
			config: topology.Config{Replicas: 3},
			want:   []string{"stream WAKE_EVENTS", "--replicas 1"},
		},
		"more replicas than that": {
			prepare: func(t *testing.T, js jetstream.JetStream) { mustInit(t, js, topology.Config{}) },
			config:  topology.Config{Replicas: 3},
			want:    []string{"stream WAKE_EVENTS", "num_replicas 1 → 3", "--replicas 1"},
		},
		"another storage": {
			prepare: func(t *testing.T, js jetstream.JetStream) {
				create(t, js, jetstream.StreamConfig{
					Name: "WAKE_ALERTS", Subjects: []string{"wake.alerts.*.*.*.*"}, Storage: jetstream.MemoryStorage,
					Metadata: map[string]string{"wake.prefix": "wake"},
				})
			},
			want: []string{"stream WAKE_ALERTS", "can't change storage Memory → File", "nats stream rm WAKE_ALERTS"},
		},
		"another consumer": {
			prepare: func(t *testing.T, js jetstream.JetStream) {
				mustInit(t, js, topology.Config{})
				if err := js.DeleteConsumer(t.Context(), "WAKE_EVENTS", "alerter"); err != nil {
					t.Fatal(err)
				}
				if _, err := js.CreateConsumer(t.Context(), "WAKE_EVENTS", jetstream.ConsumerConfig{Durable: "alerter", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
					t.Fatal(err)
				}
			},
			want: []string{"consumer alerter of WAKE_EVENTS", "ack_policy", "nats consumer rm WAKE_EVENTS alerter"},
		},
		"less room than is used": {
			prepare: func(t *testing.T, js jetstream.JetStream) {
				mustInit(t, js, topology.Config{})
				for range 3 {
					if _, err := js.Publish(t.Context(), "wake.events.r.n.flow", make([]byte, 1000)); err != nil {
						t.Fatal(err)
					}
				}
			},
			config: topology.Config{MaxBytes: 2000},
			want:   []string{"stream WAKE_EVENTS", "2000 would delete the oldest"},
		},
		"six replicas":          {config: topology.Config{Replicas: 6}, want: []string{"not between 1 and 5"}},
		"a second for an event": {config: topology.Config{MaxAge: time.Second}, want: []string{"max age: 1s is less than 1m0s"}},
		"no time for a lease":   {config: topology.Config{LeaseTTL: time.Millisecond}, want: []string{"lease TTL"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := natstest.JetStream(t)
			if c.prepare != nil {
				c.prepare(t, js)
			}
			report, err := topology.Init(t.Context(), js, c.config)
			wantError(t, err, c.want...)
			if strings.HasPrefix(name, "another installation") && len(report.Items) > 0 {
				t.Errorf("made %+v", report.Items)
			}
		})
	}
}

func TestVerifyNamesEveryProblem(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t)
	err := topology.Verify(t.Context(), js, subjects.Default)
	wantError(t, err, "stream WAKE_EVENTS: missing", "bucket WAKE_SNAPSHOTS: missing", "object store WAKE_BLOBS: missing", "run `wake init`")
	if m, ok := errors.AsType[*topology.Mismatch](err); !ok || len(m.Problems) != 12 {
		t.Errorf("Verify = %v, want a Mismatch of 12 problems", err)
	}
	mustInit(t, js, topology.Config{})
	if err := js.DeleteConsumer(t.Context(), "WAKE_EVENTS", "recorder"); err != nil {
		t.Fatal(err)
	}
	leases := config(t, js, "KV_WAKE_LEASES")
	leases.MaxAge = 0
	if _, err := js.UpdateStream(t.Context(), leases); err != nil {
		t.Fatal(err)
	}
	alerter := jetstream.ConsumerConfig{Durable: "alerter", AckPolicy: jetstream.AckAllPolicy, FilterSubject: "wake.events.*.*.tool"}
	if _, err := js.UpdateConsumer(t.Context(), "WAKE_EVENTS", alerter); err != nil {
		t.Fatal(err)
	}
	err = topology.Verify(t.Context(), js, subjects.Default)
	wantError(t, err, "consumer recorder: missing", "leases would never end", "consumer alerter: filter_subject is wake.events.*.*.tool")
}

func TestVerifyNamesThePrefix(t *testing.T) {
	t.Parallel()
	n, err := subjects.New("blue")
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, topology.Verify(t.Context(), natstest.JetStream(t), n), "BLUE_EVENTS: missing", "run `wake init --prefix blue`")
}

func TestReportJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(topology.Report{Prefix: "wake", Incarnation: "u", Items: []topology.Item{
		{Kind: topology.Bucket, Name: "B", Action: topology.Updated, Changes: []topology.Change{{Field: "max_age", Old: "0s", New: "1s"}}},
	}})
	want := `{"prefix":"wake","incarnation":"u","items":[{"kind":"bucket","name":"B","action":"updated","changes":[{"field":"max_age","old":"0s","new":"1s"}]}]}`
	if err != nil || string(b) != want {
		t.Errorf("got %s, %v", b, err)
	}
}

// On a cluster streams can be replicated and, later, be replicated more.
func TestInitOnACluster(t *testing.T) {
	t.Parallel()
	c := natstest.NewCluster(t, 3)
	js := c.JetStream(t)
	first := mustInit(t, js, topology.Config{Replicas: 1})
	if l := config(t, js, "KV_WAKE_LEASES"); l.PersistMode != jetstream.DefaultPersistMode || l.AllowDirect {
		t.Errorf("leases of a cluster: %+v", l)
	}
	r := mustInit(t, js, topology.Config{Replicas: 3})
	if r.Incarnation != first.Incarnation {
		t.Error("another incarnation after an update")
	}
	c.WaitReady(t, "WAKE_EVENTS", "KV_WAKE_LEASES")
	for _, name := range []string{"WAKE_EVENTS", "KV_WAKE_SNAPSHOTS", "OBJ_WAKE_BLOBS"} {
		if got := config(t, js, name).Replicas; got != 3 {
			t.Errorf("%s has %d replicas, want 3", name, got)
		}
	}
	if err := topology.Verify(t.Context(), js, subjects.Default); err != nil {
		t.Error(err)
	}
}

func mustInit(t *testing.T, js jetstream.JetStream, c topology.Config) topology.Report {
	t.Helper()
	r, err := topology.Init(t.Context(), js, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func config(t *testing.T, js jetstream.JetStream, stream string) jetstream.StreamConfig {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().Config
}

func create(t *testing.T, js jetstream.JetStream, c jetstream.StreamConfig) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := js.CreateStream(ctx, c); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q lacks %q", err, p)
		}
	}
}
