package work

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// sharing are two nodes at work in the folder of a run.
type sharing struct {
	t    *testing.T
	log  *eventlog.Log
	dir  string
	kept *keptFolder
	a, b *nodeLog
	cut  func() // node a off from the server
}

// cuttable is a server that takes no connection any more once it is cut off.
type cuttable struct {
	*natstest.Server

	isCut atomic.Bool
}

func (c *cuttable) InProcessConn() (net.Conn, error) {
	if c.isCut.Load() {
		return nil, errors.New("cut off")
	}
	return c.Server.InProcessConn()
}

func newSharing(t *testing.T) *sharing {
	server := natstest.New(t)
	nc := server.Conn(t)
	logtest.Init(t, nc, topology.Config{})
	way := &cuttable{Server: server}
	log, away := logtest.Open(t, nc), server.Conn(t, nats.InProcessServer(way))
	store, err := workspace.Open(t.Context(), log.JetStream(), subjects.Default, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &sharing{t: t, log: log, dir: t.TempDir()}
	s.cut = func() {
		way.isCut.Store(true)
		if err := away.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
	}
	var all folders
	x := &execution{cfg: &Config{Kept: store, Process: "p"}, offer: &wire.NodeOffer{RunID: "run1"}, workdir: workdir{path: s.dir}, state: &wire.State{}}
	s.kept = all.openFolder(x, unknownFolder)
	s.a = &nodeLog{offer: &wire.NodeOffer{RunID: "run1", NodeID: "a", ExecID: "a#1"}, writer: logtest.Claim(t, logtest.Open(t, away), "run1", "a")}
	s.b = &nodeLog{writer: logtest.Claim(t, log, "run1", "b")}
	t.Cleanup(away.Close) // else the end of its log waits
	return s
}

// write makes a file, and returns what there is to say of the folder then.
func (s *sharing) write(name string, by *nodeLog) taken {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(name), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return s.take(by)
}

func (s *sharing) take(by *nodeLog) taken {
	s.t.Helper()
	taken, _, err := s.kept.takeSnapshot(s.t.Context(), "", by)
	if err != nil {
		s.t.Fatal(err)
	}
	return taken
}

// folder returns what the log says of the folder.
func (s *sharing) folder() *wire.FolderSnapshot {
	s.t.Helper()
	state := run.New("run1")
	for e, err := range s.log.Read(s.t.Context(), eventlog.Query{Run: "run1"}) {
		if err == nil {
			err = run.Apply(state, wire.Position{Incarnation: s.log.Incarnation(), Seq: e.Pos}, e.Event)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return state.Folder
}

// A node's snapshot that was taken before another node's file was made, and is recorded behind that node's, doesn't take the file away.
func TestSnapshotsHoldInTheOrderInWhichTheyAreTaken(t *testing.T) {
	s := newSharing(t)
	first := s.write("a", s.a)
	second := s.write("b", s.b)
	if !first.isNews || !second.isNews {
		t.Fatalf("%+v, %+v", first, second)
	}
	logtest.Append(t, s.b.writer, &wire.Event{Payload: second.snapshot})
	second.note()
	logtest.Append(t, s.a.writer, &wire.Event{Payload: first.snapshot})
	first.note()
	if f := s.folder(); f == nil || f.ID != second.snapshot.ID || f.Files != 2 {
		t.Errorf("the folder is %+v, want snapshot %+v", f, second.snapshot)
	}
	if third := s.take(s.a); third.isNews {
		t.Errorf("there is something to say though nothing has changed: %+v", third.snapshot)
	}
}

// What one node has found in the folder is said by another one, too, as long as the log doesn't have it: that has its result recorded first.
func TestSnapshotOnTheWayIsSaidAgain(t *testing.T) {
	s := newSharing(t)
	s.cut()
	first := s.write("a", s.a)
	if err := s.a.writer.Enqueue(t.Context(), &wire.Event{Payload: first.snapshot}); err != nil {
		t.Fatal(err)
	}
	first.note()
	if again := s.take(s.a); again.isNews {
		t.Errorf("what its node says next is behind it: %+v", again.snapshot)
	}
	second := s.take(s.b)
	if !second.isNews {
		t.Fatal("nothing is said of a folder that the log doesn't have")
	}
	logtest.Append(t, s.b.writer, &wire.Event{Payload: second.snapshot})
	second.note()
	if again := s.take(s.a); again.isNews {
		t.Errorf("the log has it: %+v", again.snapshot)
	}
}

// A node that is ended doesn't wait for the snapshot that another one takes.
func TestSnapshotIsNotWaitedForInTheEnd(t *testing.T) {
	s := newSharing(t)
	s.kept.taking <- struct{}{} // by another one, for which the server has no answer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.kept.takeSnapshot(ctx, "", s.b); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
