//go:build linux

package keeper_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
)

// BenchmarkStream reads what a program prints that talks like an agent, a line of some hundred
// bytes at a time, but as fast as it can. Opening a keeper isn't counted: BenchmarkKeeper of cmd/wake has that.
func BenchmarkStream(b *testing.B) {
	line := `{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"some words of an answer"}},"session_id":"0b0e9c39-3f4c-4a07-9d0b-1c8f7a2e6d51"}`
	config := process.Config{
		Name: "agent", Journal: true, Env: []string{"PATH=" + os.Getenv("PATH"), "LINE=" + line},
		Argv: []string{"sh", "-c", `i=0; while [ $i -lt 100000 ]; do echo "$LINE"; i=$((i+1)); done`},
	}
	run := func(b *testing.B, host process.Host) {
		p, err := host.Start(config)
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for f := range p.Frames {
			n += len(f.Data)
		}
		_ = p.End(0)
		_ = p.Close()
		b.SetBytes(int64(n))
	}
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			run(b, process.Direct{})
		}
	})
	for _, fence := range fences() {
		b.Run(string(fence), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				now := process.Uptime()
				k, err := keeper.Open(b.Context(), keeper.Config{Dir: filepath.Join(b.TempDir(), "k"), Fence: fence, Freeze: now + time.Hour, Kill: now + time.Hour})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				run(b, k)
				b.StopTimer()
				_ = k.Quit(0)
				b.StartTimer()
			}
		})
	}
}
