package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/natstest"
)

// verbArguments is what each verb of users is tried with. Run one has ended, wait goes on.
var verbArguments = map[string]string{
	"runs": "", "top": "--json", "search": "hello", "stats": "", "budget list": "", "status": "one", "log": "one", "tail": "one", "replay": "one --speed 0", "snapshot": "one",
	"state": "one", "diff": "one one", "workspace": "one", "alerts": "one", "alerts backtest": "one --rules rules.yaml", "alerts sinks": "", "alerts deadletter list": "",
	"export": "one --format jsonl -o ROLE.jsonl", "record-fixtures": "--run one --output ROLE", "approvals": "", "bookmarks": "one",

	"run": "flow.yaml --id by-ROLE", "send": "one hello", "steer": "one hello", "reply": "one hello --prompt x", "pause": "wait", "resume": "wait", "abort": "one",
	"approve": "one x", "deny": "one x", "bookmark": "wait", "fork": "one --at 5", "delete": "one", "undelete": "one",
	"alerts test": "ticket", "alerts deadletter retry": "ticket",

	"ingest": "--run from-ROLE stream.jsonl", "import": "one.jsonl",

	"init": "", "doctor": "", "rebuild": "recorder", "backup": "backup-ROLE", "restore": "backup --data-dir elsewhere",
	"schedule add": "daily flow.yaml --cron @daily", "schedule list": "", "schedule pause": "daily", "schedule resume": "daily", "schedule remove": "daily",
	"budget set": "core --label team=core --usd 50", "budget remove": "core",
}

// untried are verbs that ask nothing of a server until they are told to, or read a file of
// their machine, or measure for minutes, or take the terminal, and processes, whose roles are those of [access.Roles].
var untried = []string{"mcp", "attach", "decode", "verify", "bench", "up", "console", "runner", "recorder", "snapshotter", "alerter", "watch", "adopt", "release"}

// aboutOneRun are the verbs of viewers that guests may use, too.
var aboutOneRun = []string{"status", "log", "tail", "replay", "snapshot", "state", "diff", "alerts", "alerts backtest", "export", "record-fixtures", "bookmarks"}

// roleMay reports whether a role may use a verb: what [verbUsers] says.
func roleMay(role access.Role, verb string) bool {
	switch user := verbUsers[verb]; {
	case user == viewers && role == access.Guest:
		return slices.Contains(aboutOneRun, verb)
	case user == viewers:
		return role == access.Viewer || role == access.Inspector || role == access.Operator
	case user == inspectors:
		return role == access.Inspector || role == access.Operator
	case user == operators:
		return role == access.Operator
	case user == ingesters:
		return role == access.Ingest
	}
	return false
}

// TestRoleVerbs has the users of each role use each verb, with credentials and nothing
// else, and on three servers those that they may. A user that may is refused nothing; one that may not is told so, and nothing is stored.
func TestRoleVerbs(t *testing.T) {
	for name, servers := range map[string]int{"one": 1, "three": 3} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "roles.txtar")
			if err := os.WriteFile(file, []byte(roleScript(t, servers)), 0o600); err != nil {
				t.Fatal(err)
			}
			p := scriptParams(t, file)
			var c verbTrials
			p.Cmds["may"], p.Cmds["maynot"], p.Cmds["tried"] = mayUse, c.addRefused, c.judge
			testscript.Run(t, p)
		})
	}
}

// roleScript is the script of an installation on so many servers.
func roleScript(t *testing.T, servers int) string {
	t.Helper()
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("exec wake auth generate --dir keys")
	var routes []string
	for _, port := range natstest.FreePorts(t, servers) {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	for i := range servers {
		line("mkdir n%d\ncd n%d\nexec nats-server -c nats.conf &server%d&\ncd ..", i, i, i)
	}
	line("waitfor file n0/nats-url\nexec cat n0/nats-url\ncapture port ':(\\d+)$'")
	line("env WAKE_NATS_URL=nats://127.0.0.1:$port\nenv WAKE_DATA_DIR=$WORK/data")
	line("exec wake init --wait 30s --replicas %d --creds keys/creds/init.creds", servers)
	for _, s := range []string{"recorder", "snapshotter"} {
		line("exec wake %s --wait 30s --creds keys/creds/%[1]s.creds &%[1]s&", s)
	}
	line("exec sh -c 'exec wake alerter --wait 30s --rules rules.yaml --creds keys/creds/alerter.creds' &alerter&")
	line("exec wake runner --wait 30s --creds keys/creds/runner.creds --claude $WORK/none &runner&")
	line("exec wake auth user guest --dir keys --role guest --run one")
	line("env WAKE_CREDS=$WORK/keys/creds/operator.creds\nwaitfor . wake stats\nwaitfor ticket wake alerts sinks")
	line("mkdir files\ncp rules.yaml files/rules.yaml\nexec wake run asks.yaml --id one --fixtures fixtures --workspace files\nexec wake run wait.yaml --id wait --detach\nwaitfor exec:start wake replay wait --speed 0 --json")
	line("waitfor '^one .*complete' wake runs\nwaitfor . wake snapshot one\nexec wake export one --format jsonl -o one.jsonl")
	line("exec wake backup backup --creds keys/creds/init.creds")
	for _, role := range []access.Role{access.Guest, access.Viewer, access.Inspector, access.Ingest, access.Debugger, access.Operator} {
		line("\n# %s\nenv WAKE_CREDS=$WORK/keys/creds/%[1]s.creds", role)
		var mays []string // what they do may go on, so they come last
		for _, verb := range slices.Sorted(maps.Keys(verbUsers)) {
			if verbUsers[verb] == nobody || slices.Contains(untried, verb) {
				continue
			}
			tried := "wake " + verb + " " + strings.ReplaceAll(verbArguments[verb], "ROLE", string(role))
			switch {
			case roleMay(role, verb):
				mays = append(mays, tried)
			case servers == 1: // the server refuses that the user is connected to, however many there are
				line("maynot %s", tried)
			}
		}
		if role == access.Guest && servers == 1 {
			line("maynot wake status wait\nmaynot wake log wait\nmaynot wake export wait -o other.jsonl")
		}
		line("tried")
		for _, tried := range mays {
			line("may %s", tried)
		}
	}
	line("may wake abort wait\nkill -INT runner\nwait runner") // on a slow machine it is over
	for i := range servers {
		cluster := ""
		if servers > 1 {
			cluster = fmt.Sprintf("server_name: n%d\ncluster { name: x, listen: %q, routes: [%s] }\n", i, strings.TrimPrefix(routes[i], "nats://"), strings.Join(routes, ", "))
		}
		line("-- n%d/nats.conf --\nlisten: 127.0.0.1:-1\njetstream { store_dir: data }\n%sinclude ../keys/auth.conf", i, cluster)
	}
	script, err := os.ReadFile("testdata/script/users.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, files, _ := strings.Cut(string(script), "-- flow.yaml --\n") // the flows, rules and fixtures of users
	line("-- flow.yaml --\n%s-- stream.jsonl --", files)
	line(`{"type":"system","subtype":"init","cwd":"/work","session_id":"5e551011-0000-4000-8000-000000000001","tools":["Bash"],"model":"m","permissionMode":"default","uuid":"u"}`)
	return b.String()
}

// refusals are the words by which the server and the services refuse a user.
var refusals = regexp.MustCompile(`Permissions Violation|are for run |PERMISSION_DENIED|who has no streams`)

// mayUse runs a verb, which may fail for any reason but that its user may not.
func mayUse(ts *testscript.TestScript, _ bool, args []string) {
	end := useVerb(ts, args)
	if refusals.MatchString(end.Stdout + end.Stderr) {
		ts.Fatalf("%s: %d: %s%s", args, end.Code, end.Stdout, end.Stderr)
	}
	ts.Logf("%s: %d", args, end.Code)
}

// useVerb runs a verb that takes no longer than verbPatience.
func useVerb(ts *testscript.TestScript, args []string) verbEnd {
	v := verbOf(ts, args[1:])
	v.Within = verbPatience
	end, err := runnerOf(ts).run(v)
	ts.Check(err)
	return end
}

const verbPatience = 30 * time.Second

// verbTrials are verbs that their users may not use, until they are tried.
type verbTrials struct {
	refused []scriptVerb
}

// addRefused adds a verb with the environment and user of now.
func (v *verbTrials) addRefused(ts *testscript.TestScript, _ bool, args []string) {
	tried := verbOf(ts, args[1:])
	tried.Within = verbPatience
	v.refused = append(v.refused, tried)
}

// judge runs the verbs that were added, four at a time. Each tells its user of the refusal, and nothing is stored meanwhile.
func (v *verbTrials) judge(ts *testscript.TestScript, _ bool, _ []string) {
	before := lastStored(ts)
	ends, errs := make([]verbEnd, len(v.refused)), make([]error, len(v.refused))
	next := make(chan int)
	var group sync.WaitGroup
	for range 4 {
		r := startRunner(ts)
		group.Go(func() {
			for i := range next {
				ends[i], errs[i] = r.run(v.refused[i])
			}
			_ = r.close()
		})
	}
	for i := range v.refused {
		next <- i
	}
	close(next)
	group.Wait()
	for i, end := range ends {
		said := end.Stdout + end.Stderr
		if errs[i] != nil || end.Code == 0 || !refusals.MatchString(said) && !strings.Contains(said, "asks no question") { // which comes first
			ts.Fatalf("%v: %v, %d: %s", v.refused[i].Args, errs[i], end.Code, said)
		}
	}
	v.refused = nil
	if now := lastStored(ts); !maps.Equal(before, now) {
		ts.Fatalf("%v became %v", before, now)
	}
}

// lastStored returns the position of the last message of each stream that grows by what users do.
func lastStored(ts *testscript.TestScript) map[string]uint64 {
	creds := ts.MkAbs("keys/creds/init.creds")
	data, err := os.ReadFile(creds)
	ts.Check(err)
	inbox, err := access.Inbox(data)
	ts.Check(err)
	nc, err := nats.Connect(ts.Getenv("WAKE_NATS_URL"), nats.UserCredentials(creds), nats.CustomInboxPrefix(inbox))
	ts.Check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found := map[string]uint64{}
	for _, name := range []string{"WAKE_COMMANDS", "WAKE_QUEUE", "KV_WAKE_BOOKMARKS", "OBJ_WAKE_SESSIONS"} {
		s, err := js.Stream(ctx, name)
		ts.Check(err)
		found[name] = s.CachedInfo().State.LastSeq
	}
	s, err := js.Stream(ctx, "WAKE_EVENTS")
	ts.Check(err)
	info, err := s.Info(ctx, jetstream.WithSubjectFilter("wake.events.>")) // of runs, beside that which goes on
	ts.Check(err)
	for subject, n := range info.State.Subjects {
		if !strings.HasPrefix(subject, "wake.events.wait.") {
			found[subject] = n
		}
	}
	return found
}

// A user without streams is told at once that the services, and what measures the server, need another role: the server would
// refuse each of their questions, and they would wait for an answer.
func TestServicesOfUsers(t *testing.T) {
	var script strings.Builder
	script.WriteString(`exec wake auth generate --dir keys
exec wake auth user guest --dir keys --role guest --run one
exec nats-server -c nats.conf &server&
waitfor file nats-url
exec cat nats-url
capture port ':(\d+)$'
env WAKE_NATS_URL=nats://127.0.0.1:$port
env WAKE_DATA_DIR=$WORK/data
exec wake init --wait 30s --creds keys/creds/init.creds
`)
	for _, role := range []access.Role{access.Guest, access.Viewer, access.Inspector, access.Operator, access.Ingest, access.Debugger} {
		fmt.Fprintf(&script, "env WAKE_CREDS=$WORK/keys/creds/%s.creds\n", role)
		for _, service := range []string{"runner", "recorder", "snapshotter", "alerter"} {
			fmt.Fprintf(&script, "atonce wake %s --wait 1h\ngrep 'user %s, who has no streams: wake %[1]s needs those of the role %[1]s' said\n", service, role)
		}
		script.WriteString("atonce wake bench --quick\ngrep 'wake bench makes streams of its own, which no role may' said\n")
	}
	script.WriteString("-- nats.conf --\nlisten: 127.0.0.1:-1\njetstream { store_dir: data }\ninclude keys/auth.conf\n")
	file := filepath.Join(t.TempDir(), "services.txtar")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := scriptParams(t, file)
	p.Cmds["atonce"] = func(ts *testscript.TestScript, _ bool, args []string) {
		begun := time.Now()
		end := useVerb(ts, args)
		if end.Code == 0 || time.Since(begun) > 20*time.Second {
			ts.Fatalf("%s: %d after %s: %s", args, end.Code, time.Since(begun), end.Stderr)
		}
		ts.Check(os.WriteFile(ts.MkAbs("said"), []byte(end.Stdout+end.Stderr), 0o600))
	}
	testscript.Run(t, p)
}
