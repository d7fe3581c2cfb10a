package main

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The users of a verb: the credentials of each are enough for it.
const (
	viewers    = "viewer"    // and operators
	inspectors = "inspector" // and operators
	operators  = "operator"  // users who steer
	ingesters  = "ingest"    // those that add runs that happened elsewhere
	installers = "keeper"    // a user with credentials of the installation: init, or a service's
	nobody     = "nobody"    // it asks no server
)

// verbUsers is every verb.
var verbUsers = map[string]string{
	"runs": viewers, "top": viewers, "search": viewers, "stats": viewers, "budget list": viewers, "status": viewers, "log": viewers, "tail": viewers, "replay": viewers,
	"snapshot": viewers, "state": viewers, "diff": viewers, "alerts": viewers, "alerts backtest": viewers, "alerts sinks": viewers,
	"alerts deadletter list": viewers, "export": viewers, "release": viewers, "record-fixtures": viewers, "approvals": viewers, "bookmarks": viewers,

	"workspace": inspectors,

	"run": operators, "send": operators, "steer": operators, "reply": operators, "pause": operators, "resume": operators, "abort": operators,
	"approve": operators, "deny": operators, "bookmark": operators, "fork": operators, "adopt": operators, "delete": operators, "undelete": operators, "mcp": operators,
	"attach": operators, "alerts test": operators, "alerts deadletter retry": operators, "decode": operators,

	"ingest": ingesters, "import": ingesters,

	"up": installers, "console": installers, "init": installers, "doctor": installers, "rebuild": installers, "backup": installers, "restore": installers,
	"runner": installers, "recorder": installers, "snapshotter": installers, "alerter": installers, "watch": installers, "verify": installers, "bench": installers,
	"schedule add": installers, "schedule list": installers, "schedule pause": installers, "schedule resume": installers, "schedule remove": installers,
	"budget set": installers, "budget remove": installers,

	"hooks install": nobody, "hooks uninstall": nobody, "hooks status": nobody, "share": nobody, // which asks the console

	"auth generate": nobody, "auth upgrade": nobody, "auth user": nobody, "auth key": nobody, "supervise": nobody, "version": nobody,
}

// TestVerbUsers: of every verb it is known who uses it, and users.txtar, whose users have
// nothing but requests, uses each of theirs.
func TestVerbUsers(t *testing.T) {
	var verbs []string
	var walk func(*cobra.Command, string)
	walk = func(c *cobra.Command, path string) {
		if c.Runnable() && path != "" && (len(c.Commands()) == 0 || c.ValidArgsFunction != nil) && !c.Hidden {
			verbs = append(verbs, path)
		}
		for _, sub := range c.Commands() {
			walk(sub, strings.TrimSpace(path+" "+sub.Name()))
		}
	}
	walk((&app{in: strings.NewReader(""), out: io.Discard, errOut: io.Discard}).rootCommand(), "")
	if len(verbs) < 40 {
		t.Fatalf("there are only %q", verbs)
	}
	script, err := os.ReadFile("testdata/script/users.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(script), "\n## operator\n")
	byOperator, after, _ := strings.Cut(after, "\n## viewer\n")
	byViewer, _, found := strings.Cut(after, "\n# Neither was refused anything")
	if !found {
		t.Fatal("the parts of the script aren't where they were")
	}
	uses := func(part, verb string) bool {
		return strings.Contains(part, "wake "+verb+" ") || strings.Contains(part, "wake "+verb+"\n")
	}
	for _, verb := range verbs {
		user, known := verbUsers[verb]
		switch {
		case !known:
			t.Errorf("who uses wake %s?", verb)
		case user == viewers && !uses(byViewer, verb):
			t.Errorf("no viewer uses wake %s", verb)
		case (user == viewers || user == inspectors || user == operators) && !uses(byOperator, verb):
			t.Errorf("no operator uses wake %s", verb)
		}
	}
	for verb := range verbUsers {
		if !slices.Contains(verbs, verb) {
			t.Errorf("there is no verb %s", verb)
		}
	}
}
