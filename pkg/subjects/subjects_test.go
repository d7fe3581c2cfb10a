package subjects_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"code.wake.dev/wake/pkg/subjects"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 300)
	sum := sha256.Sum256([]byte(long))
	for _, c := range []struct{ id, token string }{
		{"coder", "coder"},
		{"_run", "_run"},
		{"A-z_09", "A-z_09"},
		{"item/3", "item=2F3"},
		{"a.b c", "a=2Eb=20c"},
		{"*", "=2A"},
		{">", "=3E"},
		{"=2A", "=3D2A"},
		{"ü", "=C3=BC"},
		{"\x1b[2J\x00\n", "=1B=5B2J=00=0A"},
		{"\xff", "=FF"},
		{"", "="},
		{"=", "=3D"},
		{strings.Repeat("a", 128), strings.Repeat("a", 128)},
		{long, strings.Repeat("=C3=A9", 10) + "==" + hex.EncodeToString(sum[:])},
	} {
		if got := subjects.Escape(c.id); got != c.token {
			t.Errorf("Escape(%q) = %s, want %s", c.id, got, c.token)
		}
	}
}

func TestEscapeLongIDsStayApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for n := range 400 {
		for _, id := range []string{
			strings.Repeat("a", n),
			strings.Repeat(".", n),
			strings.Repeat("a", n) + ".",
			"." + strings.Repeat("a", n),
			subjects.Escape(strings.Repeat("a", n)) + "=",
		} {
			token := subjects.Escape(id)
			if len(token) > subjects.MaxToken {
				t.Fatalf("Escape(%d bytes) has %d bytes", len(id), len(token))
			}
			if other, ok := seen[token]; ok && other != id {
				t.Fatalf("%q and %q share the token %s", other, id, token)
			}
			seen[token] = id
		}
	}
}

// A hashed token is not the token of the id that spells it.
func TestHashedTokenAsID(t *testing.T) {
	t.Parallel()
	token := subjects.Escape(strings.Repeat("a", 129))
	if _, err := subjects.Unescape(token); !errors.Is(err, subjects.ErrHashed) {
		t.Errorf("Unescape = %v, want ErrHashed", err)
	}
	if got := subjects.Escape(token); got == token {
		t.Errorf("Escape leaves %s as it is", token)
	}
}

func TestUnescapeRefuses(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0", 64)
	for _, token := range []string{
		"", "a.b", "a b", "a*", ">", "=2", "a=", "=2f", "=41", "=5F", "=zz", "é",
		strings.Repeat("a", 129),
		"short==" + hash,
		strings.Repeat("a", 61) + "===" + hash,
		strings.Repeat("a", 62) + "==" + strings.ToUpper(strings.Repeat("a", 64)),
	} {
		if id, err := subjects.Unescape(token); !errors.Is(err, subjects.ErrToken) {
			t.Errorf("Unescape(%q) = %q, %v; want ErrToken", token, id, err)
		}
	}
}

func TestEscapeProperties(t *testing.T) {
	t.Parallel()
	ids := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.RuneFrom([]rune("aZ_-.=*> é")), 0, 140, -1))
	rapid.Check(t, func(t *rapid.T) {
		a, b := ids.Draw(t, "a"), ids.Draw(t, "b")
		checkToken(t, a)
		if (a == b) != (subjects.Escape(a) == subjects.Escape(b)) {
			t.Fatalf("%q and %q: %s, %s", a, b, subjects.Escape(a), subjects.Escape(b))
		}
	})
}

func FuzzEscape(f *testing.F) {
	for _, id := range []string{"", "coder", "item/3", "=2F", "\xff\x00", strings.Repeat("=", 200), strings.Repeat("a", 129)} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) { checkToken(t, id) })
}

// checkToken checks what holds for the token of every id.
func checkToken(t interface{ Fatalf(string, ...any) }, id string) {
	token := subjects.Escape(id)
	if token == "" || len(token) > subjects.MaxToken || strings.Trim(token, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-=") != "" {
		t.Fatalf("Escape(%q) = %q: not a token", id, token)
	}
	back, err := subjects.Unescape(token)
	switch {
	case errors.Is(err, subjects.ErrHashed):
		if len(id)*3 <= subjects.MaxToken {
			t.Fatalf("Escape(%q) was hashed without need", id)
		}
	case err != nil:
		t.Fatalf("Unescape(Escape(%q)): %v", id, err)
	case back != id:
		t.Fatalf("Unescape(Escape(%q)) = %q", id, back)
	}
}

// Whatever Unescape accepts is the token of what it returns: a subject has one
// reading.
func FuzzUnescape(f *testing.F) {
	for _, token := range []string{"coder", "=2F", "=", "==", "=41", "a=2", strings.Repeat("a", 62) + "==" + strings.Repeat("0", 64)} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		id, err := subjects.Unescape(token)
		if err == nil && subjects.Escape(id) != token {
			t.Fatalf("Unescape(%q) = %q, whose token is %s", token, id, subjects.Escape(id))
		}
	})
}

func FuzzParseEvent(f *testing.F) {
	for _, s := range []string{"wake.events.r1.coder.agent", "wake.events.r1._run.flow", "wake.events.=..x", "wake.events.a.b.c.d", "other.events.a.b.c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		run, node, kind, err := subjects.Default.ParseEvent(subject)
		if err != nil {
			if !errors.Is(err, subjects.ErrHashed) && run+node+kind != "" {
				t.Fatalf("ParseEvent(%q) = %q, %q, %q with %v", subject, run, node, kind, err)
			}
			return
		}
		if got := subjects.Default.Event(run, node, kind); got != subject {
			t.Fatalf("ParseEvent(%q) builds %s", subject, got)
		}
	})
}

func TestSubjects(t *testing.T) {
	t.Parallel()
	n := subjects.Default
	for _, c := range []struct{ got, want string }{
		{n.Event("r1", "item/2", "agent"), "wake.events.r1.item=2F2.agent"},
		{n.Event("r1", "_run", "flow"), "wake.events.r1._run.flow"},
		{n.NodeEvents("r1", "coder"), "wake.events.r1.coder.*"},
		{n.RunEvents("r1"), "wake.events.r1.>"},
		{n.RunKindEvents("r1", "tool"), "wake.events.r1.*.tool"},
		{n.KindEvents("tool"), "wake.events.*.*.tool"},
		{n.AllEvents(), "wake.events.*.*.*"},
		{n.Command("a.b"), "wake.cmd.a=2Eb"},
		{n.AllCommands(), "wake.cmd.*"},
		{n.QueueRun(), "wake.queue.run"},
		{n.QueueNode("gpu"), "wake.queue.node.gpu"},
		{n.AllQueueNodes(), "wake.queue.node.*"},
		{n.Alert("r1", "coder", "error", "17"), "wake.alerts.r1.coder.error.17"},
		{n.RunAlerts("r1"), "wake.alerts.r1.>"},
		{n.AllAlerts(), "wake.alerts.*.*.*.*"},
		{n.DeadLetter("recorder"), "wake.deadletter.recorder"},
		{n.AllDeadLetters(), "wake.deadletter.*"},
		{n.API("status"), "wake.api.status"},
		{n.SnapshotKey("r.1"), "r=2E1"},
		{n.BookmarkKey("r1", "sfp-3"), "r1.sfp-3"},
		{n.SessionKey("pod.1", "p1"), "pod=2E1.p1"},
		{n.StateKey("snapshotter", subjects.NoRun), "snapshotter._"},
		{n.ServiceStates("alerter"), "alerter.*"},
		{n.EventsStream(), "WAKE_EVENTS"},
		{n.CommandsStream(), "WAKE_COMMANDS"},
		{n.QueueStream(), "WAKE_QUEUE"},
		{n.AlertsStream(), "WAKE_ALERTS"},
		{n.DeadLetterStream(), "WAKE_DEADLETTER"},
		{n.SnapshotsBucket(), "WAKE_SNAPSHOTS"},
		{n.BookmarksBucket(), "WAKE_BOOKMARKS"},
		{n.LeasesBucket(), "WAKE_LEASES"},
		{n.StateBucket(), "WAKE_STATE"},
		{n.BlobsBucket(), "WAKE_BLOBS"},
		{n.SessionsBucket(), "WAKE_SESSIONS"},
		{n.WorkspacesBucket(), "WAKE_WORKSPACES"},
		{subjects.NodesConsumer("big iron"), "nodes-big=20iron"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

// Every subject and key is read back as what it was built of.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	id := rapid.StringN(1, 12, 40)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]subjects.Names{subjects.Default, mustNew(t, "team-1.wake")}).Draw(t, "names")
		a, b, c, d := id.Draw(t, "a"), id.Draw(t, "b"), id.Draw(t, "c"), id.Draw(t, "d")
		check := func(what string, want, got []string, err error) {
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s: got %q, %v; want %q", what, got, err, want)
			}
		}
		r1, r2, r3, err := n.ParseEvent(n.Event(a, b, c))
		check("event", []string{a, b, c}, []string{r1, r2, r3}, err)
		r1, r2, r3, r4, err := n.ParseAlert(n.Alert(a, b, c, d))
		check("alert", []string{a, b, c, d}, []string{r1, r2, r3, r4}, err)
		r1, err = n.ParseCommand(n.Command(a))
		check("command", []string{a}, []string{r1}, err)
		r1, err = n.ParseDeadLetter(n.DeadLetter(a))
		check("dead letter", []string{a}, []string{r1}, err)
		r1, err = n.ParseQueueNode(n.QueueNode(a))
		check("node of a pool", []string{a}, []string{r1}, err)
		r1, err = n.ParseSnapshotKey(n.SnapshotKey(a))
		check("snapshot", []string{a}, []string{r1}, err)
		r1, r2, err = n.ParseBookmarkKey(n.BookmarkKey(a, b))
		check("bookmark", []string{a, b}, []string{r1, r2}, err)
		r1, r2, err = n.ParseStateKey(n.StateKey(a, b))
		check("state", []string{a, b}, []string{r1, r2}, err)
	})
}

func mustNew(t *rapid.T, prefix string) subjects.Names {
	n, err := subjects.New(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestParseEventOfHashedID(t *testing.T) {
	t.Parallel()
	run := strings.Repeat("r", 200)
	subject := subjects.Default.Event(run, "coder", "text")
	got, node, kind, err := subjects.Default.ParseEvent(subject)
	if !errors.Is(err, subjects.ErrHashed) || got != subjects.Escape(run) || node != "coder" || kind != "text" {
		t.Errorf("ParseEvent = %q, %q, %q, %v", got, node, kind, err)
	}
}

func TestParseEventRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "wake", "wake.events", "wake.events.r.n", "wake.events.r.n.k.x", "wake.events..n.k", "wake.events.=.n.k",
		"wake.events.r.*.k", "wake.events.r.>.k", "other.events.r.n.k", "wake.cmd.r.n.k", "wake.events.r n.n.k", "wake.events.r=2f.n.k",
	} {
		if run, _, _, err := subjects.Default.ParseEvent(s); !errors.Is(err, subjects.ErrSubject) || run != "" {
			t.Errorf("ParseEvent(%q) = %q, %v; want ErrSubject", s, run, err)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	n, err := subjects.New("team-1.wake")
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Event("r", "n", "flow"); got != "team-1.wake.events.r.n.flow" {
		t.Errorf("Event = %s", got)
	}
	if got := n.EventsStream(); got != "TEAM-1_WAKE_EVENTS" {
		t.Errorf("EventsStream = %s", got)
	}
	if d, err := subjects.New("wake"); err != nil || d != subjects.Default {
		t.Errorf("New(wake) = %v, %v; want Default", d, err)
	}
	for _, prefix := range []string{"", ".", "a.", ".a", "a..b", "Wake", "a_b", "a b", "*", ">", "$JS", "ü", strings.Repeat("a", 65)} {
		if _, err := subjects.New(prefix); !errors.Is(err, subjects.ErrPrefix) {
			t.Errorf("New(%q) = %v, want ErrPrefix", prefix, err)
		}
	}
}

func TestCheckID(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a", "item/3", "Überprüfung", "a.b c", strings.Repeat("a", subjects.MaxID)} {
		if err := subjects.CheckID(id); err != nil {
			t.Errorf("CheckID(%q) = %v", id, err)
		}
	}
	for _, id := range []string{"", subjects.NoRun, subjects.RunNode, "_x", "\xff", strings.Repeat("a", subjects.MaxID+1)} {
		if err := subjects.CheckID(id); !errors.Is(err, subjects.ErrID) {
			t.Errorf("CheckID(%q) = %v, want ErrID", id, err)
		}
	}
	for id, want := range map[string]error{"a@b": nil, "@last": subjects.ErrID, "@": subjects.ErrID, "": subjects.ErrID} {
		if err := subjects.CheckNewRun(id); !errors.Is(err, want) {
			t.Errorf("CheckNewRun(%q) = %v, want %v", id, err, want)
		}
	}
}

func ExampleNames() {
	n := subjects.Default
	fmt.Println(n.Event("r1", "review/0", "tool"))
	run, node, kind, _ := n.ParseEvent("wake.events.r1.review=2F0.tool")
	fmt.Println(run, node, kind)
	// Output:
	// wake.events.r1.review=2F0.tool
	// r1 review/0 tool
}

func ExampleEscape() {
	fmt.Println(subjects.Escape("Fix bug #7"))
	// Output: Fix=20bug=20=237
}

func BenchmarkEvent(b *testing.B) {
	for b.Loop() {
		_ = subjects.Default.Event("01J2Z7Q0F5", "coder", "delta")
	}
}
