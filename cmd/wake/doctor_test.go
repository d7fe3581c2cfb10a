package main

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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
		c := clock(asked, answered, asked.Add(100*time.Millisecond+tt.skew))
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
		c := fill(&jetstream.StreamInfo{
			Config: jetstream.StreamConfig{MaxBytes: tt.limit, Replicas: 3},
			State:  jetstream.StreamState{Msgs: 7, Bytes: tt.bytes},
		})
		if c.Verdict != tt.want || c.Text != tt.text || (c.Remedy == "") != (tt.want == fine) {
			t.Errorf("%d of %d: %+v, want %s %q", tt.bytes, tt.limit, c, tt.want, tt.text)
		}
	}
}
