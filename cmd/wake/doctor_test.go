package main

import (
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
