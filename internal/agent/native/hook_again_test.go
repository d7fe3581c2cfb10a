package native_test

import (
	"os"
	"path/filepath"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/process/processtest"
	"code.wake.dev/wake/pkg/wire"
)

// A hook's command that has answered about a call which was rolled back is no answer about another call, which an API without ids of its own
// has given the same one.
func TestHookOfRolledBackCall(t *testing.T) {
	b := newBench(t,
		apitest.Message(apitest.Call("", "write", `{"path":"a.txt","content":"safe"}`)),
		apitest.Message(apitest.Call("", "bash", `{"command":"echo danger > b.txt"}`)),
		apitest.Message(apitest.Text("Done.")),
	)
	host := &processtest.Keeper{}
	defer func() { _ = host.Close() }()
	b.request.Host = host
	b.request.Hooks = hook.New(hook.Config{
		Hooks: []flow.Hook{{Event: "PreToolUse", Name: "policy", Command: []string{
			"/bin/sh", "-c", `if grep -q danger; then echo '{"decision":"deny","reason":"dangerous"}'; else echo '{"decision":"allow"}'; fi`,
		}}},
		Dir: b.request.Options.Cwd, Env: []string{"PATH=" + os.Getenv("PATH")}, Host: host,
	})
	b.each = func(_ agent.Session, e *wire.Event) bool { // the runner dies as the call is at work
		p, is := e.Payload.(*wire.ToolState)
		return !is || p.To != wire.ToolExecuting
	}
	b.run()
	for i, e := range b.log { // its session goes back to the last safe point
		if _, is := e.Payload.(*wire.TurnStart); is {
			b.log = b.log[:i]
			break
		}
	}
	b.each = nil
	b.resume("")
	fired := 0
	for _, e := range b.run() {
		if p, is := e.Payload.(*wire.HookFired); is {
			if fired++; p.Decision != "deny" {
				t.Errorf("the hook says %s: %s", p.Decision, p.Output)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(b.request.Options.Cwd, "b.txt")); err == nil || fired != 1 {
		t.Errorf("the call was made (%v), the hook was asked %d times", err, fired)
	}
}
