//go:build claudecli

package claude_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// S16: what is denied isn't done though it is allowed too, in every mode; what isn't
// on the list isn't done where nobody is to be asked, and is asked about elsewhere;
// an agent that may only read changes nothing. Permissions are options of the node, which
// the program enforces; to read only is mode dontAsk with a list of tools that read,
// beside commands that the program knows to do nothing else, such as ls.
func TestCLIPermissions(t *testing.T) {
	readers := []string{"Read", "Glob", "Grep"}
	for _, test := range []struct {
		name, scenario, mode string
		allow, deny          []string
		want                 string // tool=what became of its calls; file=written
	}{
		{"denied and allowed", "denied", "default", []string{"Bash", "Write"}, []string{"Write"}, "Bash=done Write=refused"},
		{"denied in bypass", "denied", "", []string{"Bash", "Write"}, []string{"Write"}, "Bash=done Write=refused"},
		{"not on the list", "denied", "dontAsk", []string{"Bash"}, nil, "Bash=done Write=refused"},
		{"requires approval", "denied", "default", []string{"Bash"}, nil, "Bash=done Write=asked,done file=written"},
		{"read only", "tools", "dontAsk", readers, nil, "Bash=done,refused,failed Edit=failed,failed NoSuchTool=failed Read=failed,failed Write=refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			versions(t, func(t *testing.T, l lab) {
				r := l.request(t, test.scenario)
				o := &r.Options
				o.PermissionMode, o.AllowedTools, o.DisallowedTools = test.mode, test.allow, test.deny
				o.Decide = func(context.Context, agent.Permission) agent.Verdict { return agent.Verdict{Allow: true, By: "tester"} }
				calls := map[string][]string{}
				for _, e := range l.run(t, r, nil) {
					switch p := e.Payload.(type) {
					case *wire.PermissionRequired:
						calls[p.ToolName] = append(calls[p.ToolName], "asked")
					case *wire.AgentTool:
						calls[p.ToolName] = append(calls[p.ToolName], became(p))
					}
				}
				for _, name := range []string{"denied.txt", "hello.py"} {
					if _, err := os.Stat(filepath.Join(o.Cwd, name)); err == nil {
						calls["file"] = append(calls["file"], "written")
					}
				}
				if got := listed(calls); got != test.want {
					t.Errorf("got  %s\nwant %s", got, test.want)
				}
			})
		})
	}
}

// became says what became of a call. A command that exits with an error was done.
func became(p *wire.AgentTool) string {
	switch {
	case p.Denied || strings.Contains(p.Error, "No such tool available: Write"):
		return "refused"
	case p.Error != "" && !strings.Contains(p.Error, "Exit code"):
		return "failed"
	}
	return "done"
}

// listed is key=value,value … in the order of the keys, as fmt prints maps.
func listed(m map[string][]string) string {
	s := fmt.Sprint(m)
	s = strings.NewReplacer("map[", "", "]]", "", "] ", "\n", ":[", "=").Replace(s)
	return strings.NewReplacer(" ", ",", "\n", " ").Replace(s)
}
