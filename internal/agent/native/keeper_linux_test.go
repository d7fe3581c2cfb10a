package native_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// TestCallKept takes its runner from an agent whose command is at work in a keeper: the session that goes on has its
// result, whole, and no command runs twice.
func TestCallKept(t *testing.T) {
	for _, test := range []struct {
		name string
		back func(b *bench, k *keeper.Keeper, c keeper.Config) process.Host // the host of the session that goes on
		want string
	}{
		{"attached", func(b *bench, k *keeper.Keeper, c keeper.Config) process.Host {
			k.Leave()
			k = b.attach(c)
			b.file("go", "")
			return k
		}, "one\ntwo\n"},
		{"ended meanwhile", func(b *bench, k *keeper.Keeper, c keeper.Config) process.Host {
			k.Leave()
			b.file("go", "")
			b.await("the end of the command", func() bool { return b.tail(c).Ended("call/t1") })
			return b.attach(c)
		}, "one\ntwo\n"},
		{"ended before its keeper", func(b *bench, k *keeper.Keeper, c keeper.Config) process.Host {
			k.Leave()
			b.file("go", "")
			b.await("the end of the command", func() bool { return b.tail(c).Ended("call/t1") })
			b.kill(k)
			return b.tail(c)
		}, "one\ntwo\n"},
		{"lost with its keeper", func(b *bench, k *keeper.Keeper, c keeper.Config) process.Host {
			b.kill(k)
			if b.tail(c).Ended("call/t1") {
				b.t.Error("the command has an end")
			}
			return nil
		}, "its outcome is unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t,
				apitest.Message(apitest.Call("t1", "bash", `{"command":"echo x >> ran; echo one; until [ -e go ]; do sleep 0.01; done; echo two"}`)),
				apitest.Message(apitest.Text("Done.")))
			b.script.ByTurn = true
			now := process.Uptime()
			c := keeper.Config{
				Dir: filepath.Join(t.TempDir(), "keeper"), Fence: keeper.Watchdogs, Freeze: now + time.Minute, Kill: now + 2*time.Minute,
			}
			k, err := keeper.Open(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = k.Quit(0) }()
			b.request.Host = k
			lost := make(chan error, 1)
			go func() { lost <- b.untilLost() }()
			b.await("the command", func() bool { return b.ran() > 0 })
			b.request.Host = test.back(b, k, c)
			if err := <-lost; !errors.Is(err, agent.ErrLost) {
				t.Fatalf("the session ends with %v: %s %s", err, types(b.log), outcome(b.log))
			}
			b.resume("")
			if got := outcome(b.run()); got != "Done." || b.ran() != 1 {
				t.Errorf("outcome %q, the command ran %d times: %s", got, b.ran(), types(b.log))
			}
			results := of[*wire.AgentTool](b.log)
			if len(results) != 1 || !strings.Contains(textOf(results[0].ToolOutput), test.want) {
				t.Errorf("results %+v", results)
			}
			if len(of[*wire.ToolIntent](b.log)) != 1 || len(of[*wire.ToolState](b.log)) != 1 {
				t.Errorf("the log has %s", types(b.log))
			}
		})
	}
}

func textOf(r wire.Raw) string {
	s, _ := r.Text()
	return s
}

// untilLost runs the agent until it ends with an error.
func (b *bench) untilLost() error {
	s, err := b.provider().Start(context.WithoutCancel(b.t.Context()), b.request)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	for e, err := range s.Events() {
		if err != nil {
			return err
		}
		b.store(e)
	}
	return nil
}

func (b *bench) attach(c keeper.Config) *keeper.Keeper {
	b.t.Helper()
	k, err := keeper.Attach(b.t.Context(), c)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = k.Quit(0) })
	return k
}

func (b *bench) tail(c keeper.Config) *keeper.Tail {
	b.t.Helper()
	tail, err := keeper.OpenTail(c)
	if err != nil {
		b.t.Fatal(err)
	}
	return tail
}

// kill kills a keeper, and returns when it is gone.
func (b *bench) kill(k *keeper.Keeper) {
	b.t.Helper()
	if err := syscall.Kill(k.Pid(), syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	<-k.Gone()
}

func (b *bench) await(what string, f func() bool) {
	b.t.Helper()
	limit := time.After(20 * time.Second)
	for !f() {
		select {
		case <-limit:
			b.t.Fatal("not in time: " + what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A command of an agent whose keeper died while the agent did something else has it end, as its runner has to know.
func TestKeeperGone(t *testing.T) {
	b := newBench(t, apitest.Message(apitest.Call("t1", "bash", `{"command":"echo x >> ran"}`)))
	now := process.Uptime()
	k, err := keeper.Open(t.Context(), keeper.Config{
		Dir: filepath.Join(t.TempDir(), "keeper"), Fence: keeper.Watchdogs, Freeze: now + time.Minute, Kill: now + 2*time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.kill(k)
	b.request.Host = k
	if err := b.untilLost(); !errors.Is(err, agent.ErrLost) {
		t.Errorf("the session ends with %v: %s", err, types(b.log))
	}
	if _, err := os.Stat(filepath.Join(b.request.Options.Cwd, "ran")); err == nil || len(of[*wire.AgentTool](b.log)) > 0 {
		t.Errorf("the call has a result: %s", types(b.log))
	}
}
