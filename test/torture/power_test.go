//go:build torture

package torture_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/test/lab"
)

// TestPowerCut cuts the power of all servers at once while a client publishes, and
// counts what was acknowledged and is gone: nothing may be with sync_interval:
// always. What the server's default loses is only reported.
func TestPowerCut(t *testing.T) {
	if !lab.Mountable() {
		t.Fatal("disks of its own need root")
	}
	for _, sync := range []string{"always", "2m"} {
		for _, replicas := range []int{1, servers} {
			t.Run(fmt.Sprintf("%s/R%d", sync, replicas), func(t *testing.T) { powerCut(t, sync, replicas) })
		}
	}
}

func powerCut(t *testing.T, sync string, replicas int) {
	s := newSite(t, config(t, 5*time.Minute), sync)
	s.stream("P", replicas)
	acked := s.publish("P", 15*time.Second, func() { s.Must(powerOff(s.nodes())) })
	lost, what := s.missing("P", acked)
	s.Logf("sync_interval %s, %d replicas: %d of %d acknowledged messages lost %s", sync, replicas, lost, len(acked), what)
	if sync == "always" && lost > 0 {
		s.Errorf("%d acknowledged messages are lost", lost)
	}
}

// TestCorruption flips bytes in the segments of a stopped replica and reports what
// becomes of them: the server checks each message as it reads it.
func TestCorruption(t *testing.T) {
	s := newSite(t, config(t, 5*time.Minute), "always")
	s.stream("P", servers)
	acked := s.publish("P", 5*time.Second, func() {})
	leader := s.whoLeads("P")
	u := s.unit(leader)
	u.hold()
	flipped := s.flip(u.disk.Dir)
	u.release()
	s.Must(s.NC.FlushTimeout(10 * time.Second))
	<-time.After(10 * time.Second)
	lost, what := s.missing("P", acked)
	s.Logf("%d bytes flipped in the stopped leader %s: %d of %d messages missing by the new leader %s %s", flipped, leader, lost, len(acked), s.whoLeads("P"), what)
	s.lead("P", leader)
	lost, what = s.missing("P", acked)
	s.Logf("led by %s: %d of %d missing %s", s.whoLeads("P"), lost, len(acked), what)
}

// stream makes a stream.
func (s *site) stream(name string, replicas int) {
	s.Helper()
	s.Until("the stream is there", time.Minute, func() bool {
		ctx, cancel := s.soon()
		defer cancel()
		_, err := s.JS.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{name + ".>"}, Replicas: replicas, Storage: jetstream.FileStorage,
		})
		return err == nil
	})
}

// publish publishes for a while and does something meanwhile, at the end. It
// returns the positions that were acknowledged, and what stands there.
func (s *site) publish(name string, d time.Duration, then func()) map[uint64]string {
	s.Helper()
	acked := make(map[uint64]string)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			text := fmt.Sprintf("%d%s", i, strings.Repeat(".", 200))
			ctx, cancel := s.soon()
			if ack, err := s.JS.Publish(ctx, name+".x", []byte(text)); err == nil {
				acked[ack.Sequence] = text
			}
			cancel()
		}
	})
	<-time.After(d)
	then()
	close(stop)
	wg.Wait()
	return acked
}

// missing counts what isn't where it was acknowledged.
func (s *site) missing(name string, acked map[uint64]string) (lost int, what string) {
	s.Helper()
	var stream jetstream.Stream
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		ctx, cancel := s.soon()
		stream, err = s.JS.Stream(ctx, name)
		if err == nil {
			_, err = s.JS.Publish(ctx, name+".after", nil) // it has a leader
		}
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrStreamNotFound) {
			break
		}
		<-time.After(200 * time.Millisecond)
	}
	if err != nil {
		return len(acked), fmt.Sprintf("(%v)", err)
	}
	first := make(map[string]int)
	for position, text := range acked {
		ctx, cancel := context.WithTimeout(s.Ctx, 5*time.Second)
		m, err := stream.GetMsg(ctx, position)
		cancel()
		switch {
		case err != nil:
			lost++
			first[err.Error()]++
		case string(m.Data) != text:
			lost++
			first["another message is there"]++
		}
	}
	return lost, tallied(first)
}

func (s *site) whoLeads(name string) (leader string) {
	s.Helper()
	s.Until(name+" has a leader", time.Minute, func() bool {
		ctx, cancel := s.soon()
		defer cancel()
		stream, err := s.JS.Stream(ctx, name)
		if err == nil && stream.CachedInfo().Cluster != nil {
			leader = stream.CachedInfo().Cluster.Leader
		}
		return leader != ""
	})
	return leader
}

// lead makes a server the leader, if it can be.
func (s *site) lead(name, server string) {
	s.Helper()
	for range 20 {
		if s.whoLeads(name) == server {
			return
		}
		if _, err := s.NC.Request("$JS.API.STREAM.LEADER.STEPDOWN."+name, []byte(`{"placement":{"preferred":"`+server+`"}}`), 5*time.Second); err != nil {
			s.Log(err)
		}
		<-time.After(time.Second)
	}
}

// flip changes a byte in the middle of each segment of the stream below a folder.
func (s *site) flip(dir string) (flipped int) {
	s.Helper()
	s.Must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".blk" || !strings.Contains(path, "/streams/P/") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || len(b) == 0 {
			return err
		}
		b[len(b)/2] ^= 0xff
		flipped++
		return os.WriteFile(path, b, 0o600)
	}))
	return flipped
}
