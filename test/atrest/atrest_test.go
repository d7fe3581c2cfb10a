package atrest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/transcript"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
	"code.wake.dev/wake/services/runner"
	"code.wake.dev/wake/services/snapshotter"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// mark is in everything that is said in the run.
const mark = "m4rk3d"

// installation is a server with the services that store something on it.
type installation struct {
	t    *testing.T
	dir  string // of the server
	keys string // file; "" for none

	server   *natstest.Server
	sessions chan string // of the agent
}

func newInstallation(t *testing.T, keys string) *installation {
	i := &installation{t: t, keys: keys, sessions: make(chan string, 1)}
	i.server = natstest.New(t, func(o *server.Options) {
		o.SyncAlways = true
		i.dir = o.StoreDir
	})
	if _, err := topology.Init(t.Context(), i.server.JetStream(t), topology.Config{}); err != nil {
		t.Fatal(err)
	}
	logtest.Serve(t, i.log(keys)) // the service that answers stores commands
	return i
}

// log opens the log with a file of keys.
func (i *installation) log(keys string) *eventlog.Log {
	i.t.Helper()
	o := eventlog.Options{BlobLimit: 16 << 10}
	if keys != "" {
		var err error
		if o.Keys, err = seal.Load(keys); err != nil {
			i.t.Fatal(err)
		}
	}
	log, err := eventlog.Open(i.t.Context(), i.server.Conn(i.t, nats.ReconnectBufSize(-1)), o)
	if err != nil {
		i.t.Fatal(err)
	}
	return log
}

func (i *installation) client(keys string) *client.Client {
	i.t.Helper()
	c, err := client.Open(i.t.Context(), i.server.Conn(i.t), client.Options{EncryptionKeys: keys})
	if err != nil {
		i.t.Fatal(err)
	}
	return c
}

// serve runs the services until the returned function is called.
func (i *installation) serve() (stop func()) {
	i.t.Helper()
	log, logger := i.log(i.keys), slog.New(slog.DiscardHandler)
	if err := log.UseKeys(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
	r, err := runner.New(runner.Config{
		ID: "r1", Workspaces: i.t.TempDir(), Providers: map[string]agent.Provider{"claude": i},
	}, log, logger)
	if err != nil {
		i.t.Fatal(err)
	}
	s, err := snapshotter.New(snapshotter.Config{}, log, logger)
	if err != nil {
		i.t.Fatal(err)
	}
	a, err := alerter.New(alerter.Config{}, log, logger)
	if err != nil {
		i.t.Fatal(err)
	}
	base, drop := context.WithCancel(context.WithoutCancel(i.t.Context()))
	live, end := context.WithCancel(base)
	var services, storing sync.WaitGroup
	storing.Go(func() { i.ended(log.Run(base)) })
	for _, run := range []func(context.Context) error{r.Run, s.Run, a.Run} {
		services.Go(func() { i.ended(run(live)) })
	}
	return func() {
		end()
		services.Wait()
		drop()
		storing.Wait()
	}
}

func (i *installation) ended(err error) {
	if err != nil {
		i.t.Error(err)
	}
}

// Capabilities implements [agent.Provider].
func (*installation) Capabilities() agent.Capabilities { return agent.Capabilities{} }

// Start implements [agent.Provider]: its agents say something short and something
// long, keep a session file, wait for a message and are done.
func (i *installation) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	save := func(offset int, data []byte) error { return r.Transcript.Save(ctx, r.SessionID, int64(offset), data) }
	return &session{i: i, request: r, save: save, messages: make(chan agent.Message, 1), closed: make(chan struct{})}, nil
}

type session struct {
	i        *installation
	request  agent.Request
	save     func(offset int, data []byte) error
	messages chan agent.Message
	closing  sync.Once
	closed   chan struct{}
}

func (s *session) Events() iter.Seq2[*wire.Event, error] {
	return func(yield func(*wire.Event, error) bool) {
		say := func(p wire.Payload) bool { return yield(&wire.Event{Payload: p}, nil) }
		file := []byte(`{"text":"` + mark + ` of the session"}` + "\n")
		for n := range 2 {
			if err := s.save(n*len(file), file); err != nil {
				yield(nil, err)
				return
			}
		}
		long := strings.Repeat(mark+" at length ", 4<<10)
		spent := 0.5 // a run that has spent nothing leaves no state of the alerter
		if !say(&wire.AgentStart{Prompt: s.request.Prompt}) || !say(&wire.TurnStart{}) || !say(&wire.AgentText{Content: long}) ||
			!say(&wire.Usage{MessageID: "m1", CostUsd: &spent}) {
			return
		}
		select {
		case m := <-s.messages:
			s.i.sessions <- s.request.SessionID
			if say(&wire.UserMessage{Content: m.Content, Source: "command", CommandID: m.CommandID}) {
				say(&wire.AgentComplete{Result: mark + " is the result"})
			}
		case <-s.closed:
		}
	}
}

func (s *session) Send(_ context.Context, m agent.Message) error {
	s.messages <- m
	return nil
}

func (*session) Interrupt(context.Context) error { return nil }

func (s *session) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return nil
}

// found returns how often the mark is in the files of each stream.
func (i *installation) found() map[string]int {
	i.t.Helper()
	found := map[string]int{}
	err := filepath.WalkDir(i.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := bytes.Count(b, []byte(mark)); n > 0 {
			_, stream, _ := strings.Cut(path, "/streams/")
			stream, _, _ = strings.Cut(stream, "/")
			found[stream] += n
		}
		return nil
	})
	if err != nil {
		i.t.Fatal(err)
	}
	return found
}

// ask leaves a run and something that is none in the queue.
func (i *installation) ask() {
	i.t.Helper()
	definition, err := wire.Marshal(map[string]any{
		"name":  "marked",
		"nodes": []any{map[string]any{"id": "a", "type": "agent", "input": map[string]any{"provider": "claude", "prompt": "{{ input.ask }}"}}},
	})
	if err != nil {
		i.t.Fatal(err)
	}
	input, err := wire.Marshal(map[string]any{"ask": mark + " is asked"})
	if err != nil {
		i.t.Fatal(err)
	}
	if err := i.client(i.keys).Start(i.t.Context(), wire.RunRequest{RunID: "run", Definition: definition, Input: input}); err != nil {
		i.t.Fatal(err)
	}
	if _, err := i.log(i.keys).Send(i.t.Context(), subjects.Default.QueueRun(), []byte(mark+" is no request")); err != nil {
		i.t.Fatal(err)
	}
}

// talk takes part in the run until it has ended, and all services have had their time.
func (i *installation) talk() {
	i.t.Helper()
	c := i.client(i.keys)
	i.until(func(s *wire.State) bool {
		return s.Nodes["a"].Started > 0 && s.Nodes["a"].Open() && s.AgentSessions["a"] != ""
	})
	for _, cmd := range []wire.Command{
		{Type: "bookmark", RunID: "run", Label: "here"},
		{Type: "send", RunID: "run", NodeID: "a", Message: mark + " is told"},
	} {
		if _, err := c.Do(i.t.Context(), cmd); err != nil {
			i.t.Fatal(err)
		}
	}
	i.until(func(s *wire.State) bool { return s.Status == wire.RunComplete })
	<-time.After(time.Minute)
}

func (i *installation) until(f func(*wire.State) bool) {
	i.t.Helper()
	c := i.client(i.keys)
	for range 600 {
		if s, err := c.State(i.t.Context(), "run"); err == nil && f(s) {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	i.t.Fatal("the run doesn't come that far")
}

// everything that holds something of a run.
var everything = []string{
	"WAKE_EVENTS", "WAKE_QUEUE", "WAKE_COMMANDS", "WAKE_ALERTS", "WAKE_DEADLETTER",
	"KV_WAKE_SNAPSHOTS", "KV_WAKE_BOOKMARKS", "KV_WAKE_STATE", "OBJ_WAKE_BLOBS", "OBJ_WAKE_SESSIONS",
}

// Whoever reads the server's disk finds everything that was said in a run, in every
// stream, if there are no keys. With keys nothing is there.
func TestDisk(t *testing.T) {
	for name, keys := range map[string]string{"open": "", "sealed": keyFile(t)} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				i := newInstallation(t, keys)
				i.ask()
				found := i.found() // what waits in the queue leaves it
				stop := i.serve()
				i.talk()
				stop()
				synctest.Wait() // a request that waits for a server that is being shut down would stop the bubble's time
				i.server.Stop()
				for stream, n := range i.found() {
					found[stream] += n
				}
				t.Logf("%d places: %v", len(found), found)
				if keys != "" && len(found) > 0 {
					t.Errorf("the disk has what was said: %v", found)
				}
				for _, stream := range everything {
					if keys == "" && found[stream] == 0 {
						t.Errorf("%s has nothing of the run, so nothing is shown about it", stream)
					}
				}
			})
		})
	}
}

func keyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if _, err := seal.Add(path, false); err != nil {
		t.Fatal(err)
	}
	return path
}

// What was stored before there were keys, or under former ones, is read; a reader that lacks a
// key is told which, wherever it looks, and adds nothing.
func TestRotation(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		first := keyFile(t)
		i := newInstallation(t, "")
		i.ask()
		stop := i.serve()
		i.talk()
		stop()
		i.keys = first
		i.read("what was open", first)
		i.serve()()
		i.until(func(*wire.State) bool { return true })

		both := filepath.Join(t.TempDir(), "both")
		text, err := os.ReadFile(first)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(both, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := seal.Add(both, false); err != nil {
			t.Fatal(err)
		}
		i2 := newInstallation(t, first)
		i2.ask()
		stop = i2.serve()
		i2.talk()
		stop()
		i2.keys = both
		i2.serve()()
		i2.read("what former keys sealed", both)
		i2.refused("no keys", "", both)
		i2.refused("former keys", first, both)
		i2.refused("other keys", keyFile(t), both)
	})
}

// read reads everything that is stored of the run.
func (i *installation) read(what, keys string) {
	i.t.Helper()
	for name, err := range i.reads(keys) {
		if err != nil {
			i.t.Errorf("%s: %s: %v", what, name, err)
		}
	}
}

// refused checks that the keys are too few for anything that is sealed.
func (i *installation) refused(who, keys, all string) {
	i.t.Helper()
	k, err := seal.Load(all)
	if err != nil {
		i.t.Fatal(err)
	}
	if err := i.log(keys).UseKeys(i.t.Context()); !errors.Is(err, seal.ErrNoKey) || !strings.Contains(err.Error(), k.WriteID()) {
		i.t.Errorf("%s: a service starts: %v", who, err)
	}
	c := i.client(keys)
	if err := c.Start(i.t.Context(), wire.RunRequest{RunID: "other"}); !errors.Is(err, seal.ErrNoKey) {
		i.t.Errorf("%s: a run is asked for: %v", who, err)
	}
	if _, err := c.Do(i.t.Context(), wire.Command{Type: "pause", RunID: "run"}); !errors.Is(err, seal.ErrNoKey) {
		i.t.Errorf("%s: a command is sent: %v", who, err)
	}
	if strings.HasPrefix(who, "former") {
		return // can read what it sealed
	}
	for name, err := range i.reads(keys) {
		if !errors.Is(err, seal.ErrNoKey) || !strings.Contains(err.Error(), "--encryption-keys") {
			i.t.Errorf("%s: %s: %v", who, name, err)
		}
	}
}

// reads reads what is stored of the run, in all of its forms.
func (i *installation) reads(keys string) map[string]error {
	i.t.Helper()
	ctx, log := i.t.Context(), i.log(keys)
	reads := map[string]error{}
	_, _, reads["snapshot"] = snapshot.Load(ctx, log, "run")
	_, reads["bookmark"] = snapshot.Kept(ctx, log, "run", "here")
	for e, err := range log.Read(ctx, eventlog.Query{Run: "run"}) {
		if err != nil {
			reads["events"] = err
			break
		}
		for _, b := range e.Event.Blobs {
			_, reads["blob"] = log.Blob(ctx, b.SHA256)
		}
	}
	store, err := transcript.Open(ctx, log.JetStream(), subjects.Default, log.Keys())
	if err != nil {
		i.t.Fatal(err)
	}
	var file []byte
	select {
	case id := <-i.sessions:
		i.sessions <- id
		file, reads["session"] = store.Load(ctx, id)
	default:
		i.t.Fatal("no agent was at work")
	}
	if n := bytes.Count(file, []byte(mark)); reads["session"] == nil && n != 2 {
		reads["session"] = fmt.Errorf("%d of 2 lines", n)
	}
	for stream, subject := range map[string]string{
		subjects.Default.AlertsStream(): ">", subjects.Default.CommandsStream(): ">", subjects.Default.DeadLetterStream(): ">",
	} {
		reads[stream] = i.message(log, stream, subject)
	}
	states, err := log.Bucket(ctx, subjects.Default.StateBucket())
	if err != nil {
		i.t.Fatal(err)
	}
	_, _, reads["alerter"] = states.Get(ctx, subjects.Default.StateKey("alerter", "run"))
	return reads
}

// message opens the last message of a stream.
func (i *installation) message(log *eventlog.Log, stream, subject string) error {
	s, err := log.JetStream().Stream(i.t.Context(), stream)
	if err != nil {
		return err
	}
	m, err := s.GetLastMsgForSubject(i.t.Context(), subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("%s is empty", stream)
	}
	if err != nil {
		return err
	}
	_, err = log.Unseal(m.Subject, m.Data)
	return err
}
