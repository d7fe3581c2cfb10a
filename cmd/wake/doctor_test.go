package main

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
)

func TestClock(t *testing.T) {
	asked := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	answered := asked.Add(200 * time.Millisecond)
	tests := []struct {
		skew time.Duration // of the server, at the middle of the call
		want verdict
		text string
	}{
		{0, fine, "within 1ms of the server's"},
		{900 * time.Millisecond, fine, "within 900ms of the server's"},
		{-900 * time.Millisecond, fine, "within 900ms of the server's"},
		{1500 * time.Millisecond, warned, "the server's is 1.5s off"},
		{-time.Hour, warned, "the server's is -1h0m0s off"},
	}
	for _, tt := range tests {
		c := clockCheck(asked, answered, asked.Add(100*time.Millisecond+tt.skew))
		if c.Verdict != tt.want || c.Text != tt.text {
			t.Errorf("skew %s: %s %q, want %s %q", tt.skew, c.Verdict, c.Text, tt.want, tt.text)
		}
	}
}

func TestFill(t *testing.T) {
	tests := []struct {
		bytes uint64
		limit int64
		want  verdict
		text  string
	}{
		{1 << 30, -1, fine, "7 events, 1.0 GiB, 3 replica(s)"},
		{79, 100, fine, "7 events, 79 B, 3 replica(s), 79% of 100 B"},
		{80, 100, failed, "7 events, 80 B, 3 replica(s), 80% of 100 B"},
	}
	for _, tt := range tests {
		c := fillCheck(&jetstream.StreamInfo{
			Config: jetstream.StreamConfig{MaxBytes: tt.limit, Replicas: 3},
			State:  jetstream.StreamState{Msgs: 7, Bytes: tt.bytes},
		})
		if c.Verdict != tt.want || c.Text != tt.text || (c.Remedy == "") != (tt.want == fine) {
			t.Errorf("%d of %d: %+v, want %s %q", tt.bytes, tt.limit, c, tt.want, tt.text)
		}
	}
}

func TestStored(t *testing.T) {
	for store, want := range map[uint64]verdict{0: fine, 79: fine, 80: warned, 200: warned} {
		info := &jetstream.AccountInfo{}
		info.Store = store
		if c := storedCheck(info); c.Verdict != fine {
			t.Errorf("%d without a limit: %+v", store, c)
		}
		info.Limits.MaxStore = 100
		if c := storedCheck(info); c.Verdict != want || (c.Remedy == "") != (want == fine) {
			t.Errorf("%d of 100: %+v, want %s", store, c, want)
		}
	}
}

func TestCopies(t *testing.T) {
	for name, tt := range map[string]struct {
		cluster  *jetstream.ClusterInfo
		replicas int
		warns    bool
	}{
		"a single server":  {nil, 1, false},
		"one of a cluster": {&jetstream.ClusterInfo{Name: "c"}, 1, true},
		"three":            {&jetstream.ClusterInfo{Name: "c"}, 3, false},
	} {
		all := copiesCheck(&jetstream.StreamInfo{Cluster: tt.cluster, Config: jetstream.StreamConfig{Replicas: tt.replicas}})
		if len(all) > 0 != tt.warns {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

func TestServerIsAway(t *testing.T) {
	here, late := &jetstream.PeerInfo{Name: "n1", Current: true, Active: time.Hour}, &jetstream.PeerInfo{Name: "n2", Active: time.Second}
	away, silent := &jetstream.PeerInfo{Name: "n3", Offline: true}, &jetstream.PeerInfo{Name: "n3", Active: 20 * time.Second}
	for _, tt := range []struct {
		replicas []*jetstream.PeerInfo
		want     []check
	}{
		{[]*jetstream.PeerInfo{here, here}, nil},
		{[]*jetstream.PeerInfo{here, late}, []check{{"streams", warned, "n2 of the cluster lacks events that others have", "wait: it catches up by itself"}}},
		{[]*jetstream.PeerInfo{here, silent}, []check{{"streams", failed, "n3 of the cluster is away: with one more nothing is stored", "start it again; what it has missed it gets from the others"}}},
		{[]*jetstream.PeerInfo{here, away}, []check{{"streams", failed, "n3 of the cluster is away: with one more nothing is stored", "start it again; what it has missed it gets from the others"}}},
	} {
		got := awayCheck(&jetstream.StreamInfo{Config: jetstream.StreamConfig{Replicas: 3}, Cluster: &jetstream.ClusterInfo{Replicas: tt.replicas}})
		if !slices.Equal(got, tt.want) {
			t.Errorf("%v, want %v", got, tt.want)
		}
	}
}

func TestLate(t *testing.T) {
	for name, tt := range map[string]struct {
		lag  eventlog.Lag
		want verdict // "": nothing to say
	}{
		"up to date":       {eventlog.Lag{}, ""},
		"a rush":           {eventlog.Lag{Events: 1e6, Age: 5 * time.Minute}, ""},
		"behind":           {eventlog.Lag{Events: 1, Age: 6 * time.Minute}, warned},
		"about to be lost": {eventlog.Lag{Events: 1, Age: time.Minute, Part: 0.8}, failed},
	} {
		all := lagChecks(tt.lag)
		switch {
		case tt.want == "" && len(all) == 0:
		case len(all) != 1 || all[0].Verdict != tt.want || all[0].Remedy == "":
			t.Errorf("%s: %+v", name, all)
		}
	}
}
