package claude_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// shelf keeps session files in memory.
type shelf struct {
	mu    sync.Mutex
	files map[string][]byte
	saves []string // session@offset
	begun []string // sessions that are kept before the program has begun them
	fail  int      // saves to come that fail
	saved chan struct{}
	// others are sessions that a former runner has kept: nothing of them is taken before they were read.
	others map[string]bool
}

func (s *shelf) transcript() agent.Transcript { return agent.Transcript{Load: s.load, Save: s.save} }

func (s *shelf) load(_ context.Context, session string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.others, session)
	return s.files[session], nil
}

func (s *shelf) save(_ context.Context, session string, offset int64, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(data) == 0 && len(s.files[session]) == 0 {
		s.begun = append(s.begun, session)
		return nil
	}
	if s.fail > 0 {
		s.fail--
		return errors.New("away")
	}
	if s.others[session] {
		return errors.New("kept by another writer")
	}
	have := s.files[session]
	if offset > int64(len(have)) {
		return fmt.Errorf("a gap: %d of %d", offset, len(have))
	}
	s.saves = append(s.saves, fmt.Sprintf("%s@%d", session, offset))
	if s.files == nil {
		s.files = make(map[string][]byte)
	}
	s.files[session] = append(have[:offset:offset], data...)
	if s.saved != nil {
		s.saved <- struct{}{}
	}
	return nil
}

// place is a home and a working folder, and where the program keeps sessions
// for them.
type place struct{ home, cwd, folder string }

var noAlnum = regexp.MustCompile(`[^a-zA-Z0-9]`)

func newPlace(t *testing.T) place {
	p := place{home: t.TempDir(), cwd: t.TempDir()}
	p.folder = filepath.Join(p.home, ".claude", "projects", noAlnum.ReplaceAllString(p.cwd, "-"))
	return p
}

func (p place) file(session string) string { return filepath.Join(p.folder, session+".jsonl") }

func (p place) request(r *agent.Request) {
	r.Options.Cwd = p.cwd
	r.Options.Env["HOME"] = p.home
}

func (p place) put(t *testing.T, session, content string) {
	t.Helper()
	if err := os.MkdirAll(p.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.file(session), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p place) has(t *testing.T, session string) string {
	t.Helper()
	b, err := os.ReadFile(p.file(session))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// line is a line of a session file.
func line(uuid, at string) string {
	return fmt.Sprintf(`{"type":"user","uuid":%q,"timestamp":"2026-01-02T03:04:%sZ"}`, uuid, at)
}

// What the program writes is kept, all of it once the session is over, even
// if the store was away in between; half a line isn't.
func TestKept(t *testing.T) {
	for _, fail := range []int{0, 1} {
		t.Run(fmt.Sprint(fail), func(t *testing.T) {
			p, kept := newPlace(t), &shelf{fail: fail, saved: make(chan struct{}, 10)}
			file := p.file("s1")
			script := start + "append " + file + " " + line("u1", "01") + "\n" + replay +
				"append " + file + " " + line("u2", "02") + "\n> " + success + "\n< eof\n" +
				"append " + file + " " + line("u3", "03") + "\nexit 0\n"
			drain(t, session(t, script, func(r *agent.Request) {
				p.request(r)
				r.Transcript = kept.transcript()
			}), func(e *wire.Event) {
				if _, ok := e.Payload.(*wire.TurnEnd); ok {
					<-kept.saved // while the program runs
				}
			})
			want := line("u1", "01") + "\n" + line("u2", "02") + "\n" + line("u3", "03") + "\n"
			if got := string(kept.files["s1"]); got != want {
				t.Errorf("kept %q, want %q", got, want)
			}
			if len(kept.saves) < 2 || kept.saves[0] != "s1@0" || kept.saves[1] == "s1@0" {
				t.Errorf("saves %v: not as it grew", kept.saves)
			}
			if !slices.Equal(kept.begun, []string{"s1"}) {
				t.Errorf("kept before they were begun: %v", kept.begun)
			}
		})
	}
}

// A program that rewrites the end of its file is followed.
func TestKeptAnew(t *testing.T) {
	p, kept := newPlace(t), new(shelf)
	p.put(t, "s1", line("u1", "01")+"\n"+line("u2", "02")+"\n")
	rewritten := line("u1", "01") + "\n" + line("u2", "09") + "\n" + line("u3", "10") + "\n"
	s := session(t, start+replay+"need "+filepath.Join(p.home, "go")+"\n"+ending, func(r *agent.Request) {
		p.request(r)
		r.Resume, r.Transcript = true, kept.transcript()
	})
	drain(t, s, func(e *wire.Event) {
		if _, ok := e.Payload.(*wire.AgentInit); ok {
			if got, _ := kept.load(t.Context(), "s1"); !strings.Contains(string(got), `"u2"`) {
				t.Errorf("the program runs and %q is kept", got)
			}
			p.put(t, "s1", rewritten)
			if err := os.WriteFile(filepath.Join(p.home, "go"), nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	if got := string(kept.files["s1"]); got != rewritten {
		t.Errorf("kept %q", got)
	}
}

// A session that goes on finds the version of its file that goes furthest.
func TestRestored(t *testing.T) {
	one, two, three := line("u1", "01")+"\n", line("u2", "02")+"\n", line("u3", "03")+"\n"
	other := line("u9", "09") + "\n"
	for name, test := range map[string]struct{ local, elsewhere, kept, want string }{
		"nowhere":            {"", "", "", ""},
		"only kept":          {"", "", one + two, one + two},
		"kept is longer":     {one, "", one + two, one + two},
		"kept is shorter":    {one + two, "", one, one + two},
		"torn":               {one + two[:9], "", one + two + three, one + two + three},
		"torn, and the last": {one + two[:9], "", one, one + two[:9]},
		"parted, kept later": {one + two + three, "", one + other, one + other},
		"parted, here later": {one + other, "", one + two + three, one + other},
		"another folder":     {"", one, "", one},
		"another and kept":   {"", one, one + two, one + two},
	} {
		t.Run(name, func(t *testing.T) {
			p, kept := newPlace(t), &shelf{files: map[string][]byte{"s1": []byte(test.kept)}}
			if test.local != "" {
				p.put(t, "s1", test.local)
			}
			if test.elsewhere != "" {
				place{folder: p.folder + "-other"}.put(t, "s1", test.elsewhere)
			}
			drain(t, session(t, start+replay+ending, func(r *agent.Request) {
				p.request(r)
				r.Resume, r.Transcript.Load = true, kept.load
			}), func(e *wire.Event) {
				if _, ok := e.Payload.(*wire.AgentInit); ok {
					if got := p.has(t, "s1"); got != test.want {
						t.Errorf("the program finds %q, want %q", got, test.want)
					}
				}
			})
			if info, err := os.Stat(p.file("s1")); err == nil && info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v", info.Mode())
			}
			if left, _ := filepath.Glob(filepath.Join(p.folder, ".*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// A fork finds the file of the session it begins as.
func TestRestoredForFork(t *testing.T) {
	p, kept := newPlace(t), &shelf{files: map[string][]byte{"s0": []byte(line("u1", "01") + "\n")}}
	drain(t, session(t, start+replay+"append "+p.file("s1")+" "+line("u2", "02")+"\n"+ending, func(r *agent.Request) {
		p.request(r)
		r.ForkOf, r.Transcript = "s0", kept.transcript()
	}), nil)
	if got := p.has(t, "s0"); got != line("u1", "01")+"\n" {
		t.Errorf("the session to fork is %q", got)
	}
	if got := string(kept.files["s1"]); got != line("u2", "02")+"\n" {
		t.Errorf("of the fork %q is kept", got)
	}
}

func TestRestoreFails(t *testing.T) {
	for name, change := range map[string]func(*agent.Request){
		"away":    func(*agent.Request) {},
		"hostile": func(r *agent.Request) { r.SessionID = "../../../s1" },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			got := drain(t, session(t, start+ending, func(r *agent.Request) {
				p.request(r)
				r.Resume = true
				r.Transcript.Load = func(context.Context, string) ([]byte, error) {
					if name == "away" {
						return nil, errors.New("away")
					}
					return []byte("x\n"), nil
				}
				change(r)
			}), nil)
			if s := said(got); len(s) != 2 || !strings.HasPrefix(s[1], "agent:error start_failed") {
				t.Errorf("events %v", s)
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(p.home), "*.jsonl")); len(left) > 0 {
				t.Errorf("written: %v", left)
			}
		})
	}
}

// The point of a fork is the id of a line; what can't be exact is said.
func TestForkPoint(t *testing.T) {
	content := strings.Join([]string{
		`{"type":"user","uuid":"u1","message":{"content":"Go."}}`,
		`{"type":"assistant","uuid":"u2","message":{"id":"m1","content":[{"type":"tool_use","id":"t1"}]}}`,
		`{"type":"assistant","uuid":"u3","message":{"id":"m1","content":[{"type":"tool_use","id":"t2"}]}}`,
		`{"type":"user","uuid":"u4","message":{"content":[{"type":"tool_result","tool_use_id":"t2"}]}}`,
		`{"type":"user","uuid":"u5","message":{"content":[{"type":"tool_result","tool_use_id":"t1"}]}}`,
		`{"type":"attachment","uuid":"u6","attachment":{"type":"queued_command","source_uuid":"sent"}}`,
		`{"type":"assistant","uuid":"u7","message":{"id":"m2","content":[{"type":"tool_use","id":"t3"}]}}`,
		`{"type":"user","uuid":"u8","message":{"content":[{"type":"tool_result","tool_use_id":"t3"}]}}`,
		"",
	}, "\n")
	note := `> {"type":"note","argv":"${argv}"}` + "\n"
	for at, want := range map[string]struct{ flag, warning string }{
		"u1":   {"--resume-session-at=u1", ""},
		"u4":   {"--resume-session-at=u4", "1 results of calls that were made together come after u4 and are kept too"},
		"u5":   {"--resume-session-at=u5", ""},
		"sent": {"--resume-session-at=u6", ""},
		"u8":   {"--resume-session-at=u8", ""},
		"gone": {"", "the session's file has no message gone, since its end was lost or the message was joined with the next one: all of the file is kept"},
	} {
		t.Run(at, func(t *testing.T) {
			p := newPlace(t)
			p.put(t, "s0", content)
			var flag, warning string
			drain(t, session(t, start+note+ending, func(r *agent.Request) {
				p.request(r)
				r.ForkOf, r.ForkAt = "s0", at
			}), func(e *wire.Event) {
				switch p := e.Payload.(type) {
				case *wire.RawMessage:
					argv := p.Data.TextAt("argv")
					flag = regexp.MustCompile(`--resume-session-at=\S*`).FindString(argv)
				case *wire.AgentError:
					if p.ErrorType != agent.ErrorForkInexact || p.Severity != wire.SeverityWarning {
						t.Errorf("error %+v", p)
					}
					warning = p.Message
				}
			})
			if diff := cmp.Diff([]string{want.flag, want.warning}, []string{flag, warning}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestForkPointUnknownToAgent(t *testing.T) {
	got := drain(t, session(t, "< initialize\n< user\n> "+
		`{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,"errors":["No message found with message.uuid of: u1"]}`+
		"\nexit 1\n", func(r *agent.Request) { r.ForkOf, r.ForkAt = "s0", "u1" }), nil)
	var o agent.Outcome
	for _, e := range got {
		o.Observe(e)
	}
	if p := o.Error(); p == nil || p.ErrorType != agent.ErrorForkPointNotFound {
		t.Errorf("error %+v", p)
	}
}

// What the log has and the session's record lacks is told in the prompt, once.
func TestLapse(t *testing.T) {
	content := strings.Join([]string{
		`{"type":"user","uuid":"u1","message":{"content":"Go."}}`,
		`{"type":"user","uuid":"u2","message":{"content":[{"type":"tool_result","tool_use_id":"t1"}]}}`,
		`{"type":"user","uuid":"u3","message":{"content":"continue\n\n- Bash {\"a\":\"<b>\"}\n  Its result: 2"}}`,
		"",
	}, "\n")
	facts := []agent.Fact{
		{Mark: "t1", Text: "one"},
		{Mark: "t2", Text: "- Bash {\"a\":\"<b>\"}\n  Its result: 2"},
		{Mark: "t3", Text: "three"},
		{Mark: "t4", Text: "four"},
		{Mark: "u1", Text: "five"},
		{Mark: "t6", Text: "six"},
	}
	const want = "go on; four\n\nYour record of this conversation lacks what came last. What is listed here has happened; do not do it again:\n\nthree\n\nsix"
	block := `[{"text":"` + strings.ReplaceAll(want, "\n", `\n`) + `","type":"text"}]`
	for name, ask := range map[string]func(*agent.Request){
		"resumed": func(r *agent.Request) { r.Resume = true },
		"forked":  func(r *agent.Request) { r.ForkOf = "s0" },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.put(t, "s0", content)
			p.put(t, "s1", content)
			note := `> {"type":"note","got":"${text}"}` + "\n"
			var prompt, got string
			drain(t, session(t, start+note+ending, func(r *agent.Request) {
				p.request(r)
				r.Prompt, r.Facts = wire.RawString("go on; four"), facts
				ask(r)
			}), func(e *wire.Event) {
				switch p := e.Payload.(type) {
				case *wire.AgentStart:
					prompt, _ = p.Prompt.Text()
				case *wire.RawMessage:
					got = p.Data.TextAt("got")
				}
			})
			if d := cmp.Diff([]string{want, block}, []string{prompt, got}); d != "" {
				t.Errorf("on record, and what the agent got:\n%s", d)
			}
		})
	}
}
