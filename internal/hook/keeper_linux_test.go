package hook_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/process"
)

// A hook that is asked about a call when its runner ends is asked once: the runner that attaches hears its verdict.
func TestAskedOnce(t *testing.T) {
	dir := t.TempDir()
	config := keeper.Config{
		Dir: filepath.Join(dir, "keeper"), Fence: keeper.Watchdogs, Freeze: process.Uptime() + time.Minute, Kill: process.Uptime() + 2*time.Minute,
	}
	k, err := keeper.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	on := func(host process.Host) *hook.Set {
		return hook.New(hook.Config{
			Host: host, Dir: dir, Env: []string{"PATH=" + os.Getenv("PATH")}, Logger: logtest.Logger(t),
			Hooks: []flow.Hook{sh(`cat > question; echo x >> begun; until [ -e go ]; do sleep 0.01; done; echo '` + deny + `'`)},
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if o, _ := on(k).Fire(ctx, bash); o.Decision != hook.Continue {
			t.Errorf("it says %v before it has answered", o)
		}
	}()
	for content(dir, "begun") == "" {
		select {
		case <-over:
			t.Fatal("the hook has ended")
		case <-time.After(5 * time.Millisecond):
		}
	}
	k.Leave()
	cancel()
	<-over
	if k, err = keeper.Attach(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Quit(0) }()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is known from then on
		if o, fired := on(k).Fire(t.Context(), bash); text(o) != "deny R" || len(fired) != 1 || fired[0].Error != "" {
			t.Errorf("it says %v, %+v", o, fired)
		}
	}
	if content(dir, "begun") != "x\n" || content(dir, "question") == "" {
		t.Errorf("it was asked %q, %q", content(dir, "begun"), content(dir, "question"))
	}
}

func content(dir, name string) string {
	b, _ := os.ReadFile(filepath.Join(dir, name))
	return string(b)
}
