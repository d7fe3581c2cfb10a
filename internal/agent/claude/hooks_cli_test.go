//go:build claudecli

package claude_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// script is a hook of bash calls whose command or description matches a case of sh.
func script(event, cases string) flow.Hook {
	return flow.Hook{Event: event, Matcher: "Bash", Name: event, Command: []string{"/bin/sh", "-c", "q=$(cat); case $q in " + cases + " esac"}}
}

// The real program obeys hooks: a call is denied, another one made with other arguments,
// in the mode that asks no approver and in the one that asks one, which sees those.
func TestCLIHooks(t *testing.T) {
	const changed = "map[command:echo changed > changed.txt description:x]"
	for _, test := range []struct{ mode, change string }{
		{"bypassPermissions", "ID allow by hook " + changed + ", ID EXECUTING"},
		{"default", "asked about " + changed + ", ID allow by policy, ID EXECUTING"},
	} {
		t.Run(test.mode, func(t *testing.T) {
			versions(t, func(t *testing.T, l lab) {
				r := l.request(t, "hooks")
				r.Options.PermissionMode, r.Options.AllowedTools = test.mode, []string{"Bash(exit:*)"}
				r.Options.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{Allow: true, By: "policy"} }
				hooked(r.Options.Cwd,
					script(flow.HookPreToolUse, `*denied*) echo "not this one" >&2; exit 2;; *changed*) echo '{"decision":"modify","input":{"command":"echo changed > changed.txt","description":"x"}}';;`),
					script(flow.HookPostToolUseFailure, `*exit*) echo '{"decision":"context","message":"CTX-FAILED"}';;`),
					script(flow.HookTurnStart, `*) echo '{"decision":"context","message":"CTX-START"}';;`),
					script(flow.HookAgentStart, `*) echo '{"decision":"system","message":"SYS-START"}';;`),
				)(&r)
				events := l.run(t, r, nil)
				got := ids.ReplaceAllString(strings.Join(story(events), ", "), "ID")
				want := "fired AgentStart system, fired TurnStart context, " +
					"fired ID PreToolUse deny, ID deny by hook not this one, ID result of map[command:echo asked > asked.txt description:Is denied] denied true, " +
					"fired ID PreToolUse modify, " + test.change + ", ID result of " + changed + " denied false, " +
					"fired ID PreToolUse continue, "
				if test.mode == "bypassPermissions" { // in the other one the program's own rules allow it, and don't tell
					want += "ID EXECUTING, "
				}
				want += "fired ID PostToolUseFailure context, ID result of map[command:exit 3 description:Fails] denied false, complete end_turn"
				if diff := cmp.Diff(strings.Split(want, ", "), strings.Split(got, ", ")); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				files, err := filepath.Glob(filepath.Join(r.Options.Cwd, "*.txt"))
				if err != nil || len(files) != 1 || filepath.Base(files[0]) != "changed.txt" {
					t.Errorf("written are %q", files)
				}
				request := string(l.lastRequest(t))
				for _, told := range []string{"CTX-START", "CTX-FAILED", "SYS-START", "not this one"} {
					if !strings.Contains(request, told) {
						t.Errorf("the model isn't told %s", told)
					}
				}
			})
		})
	}
}

// A hook stops the real program, or has it go on, at each event that can.
func TestCLIHookStops(t *testing.T) {
	stop := `*) echo '{"decision":"stop","reason":"enough"}';;`
	for event, want := range map[string]string{
		flow.HookTurnStart:          "",
		flow.HookPostToolUse:        "asked.txt",
		flow.HookPostToolUseFailure: "asked.txt other.txt",
		flow.HookTurnEnd:            "asked.txt other.txt",
	} {
		t.Run(event, func(t *testing.T) {
			versions(t, func(t *testing.T, l lab) {
				r := l.request(t, "hooks")
				hooked(r.Options.Cwd, script(event, stop))(&r)
				events := l.run(t, r, nil)
				if c := last[*wire.AgentComplete](t, events); c.StopReason != "hook" {
					t.Errorf("complete %+v", c)
				}
				var names []string
				files, _ := os.ReadDir(r.Options.Cwd)
				for _, f := range files {
					names = append(names, f.Name())
				}
				if got := strings.Join(names, " "); got != want {
					t.Errorf("written are %q, want %q", got, want)
				}
			})
		})
	}
	t.Run("goes on", func(t *testing.T) {
		versions(t, func(t *testing.T, l lab) {
			r := l.request(t, "hooks")
			once := script(flow.HookTurnEnd, "*) [ -e once ] || echo '{\"decision\":\"context\",\"message\":\"one more thing\"}'; : >once;;")
			hooked(r.Options.Cwd, once)(&r)
			events := l.run(t, r, nil)
			last[*wire.AgentComplete](t, events)
			if !strings.Contains(string(l.lastRequest(t)), "one more thing") || count[*wire.HookFired](events) != 2 {
				t.Errorf("got %q", story(events))
			}
		})
	})
}
