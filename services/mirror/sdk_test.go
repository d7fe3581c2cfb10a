//go:build claudecli

package mirror_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// message is what the program prints of one.
type message struct{ Type, Subtype, Session, Summary string }

// program starts the program in a home of its own, and hands over what it prints.
func program(s *scene, api, cwd, prompt, resume string) (cmd *exec.Cmd, messages *bufio.Scanner) {
	s.Helper()
	here, err := os.Getwd()
	if err != nil {
		s.Fatal(err)
	}
	url, err := os.ReadFile(s.file)
	if err != nil {
		s.Fatal(err)
	}
	modules := os.Getenv("WAKE_CLAUDE_MODULES")
	cmd = exec.CommandContext(s.Context(), "node", filepath.Join(here, "testdata", "program.mjs"), filepath.Join(modules, "claude-agent-sdk", "sdk.mjs"),
		filepath.Join(here, "..", "..", "clients", "typescript", "session-store.js"), filepath.Join(modules, "claude-agent-sdk-linux-x64", "claude"), prompt, resume)
	home := s.TempDir()
	cmd.Dir, cmd.Stderr = cwd, os.Stderr
	cmd.Env = []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "ANTHROPIC_BASE_URL=" + api, "ANTHROPIC_API_KEY=sk-none", "IS_SANDBOX=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "WAKE_SESSIONS_URL=" + strings.TrimSpace(string(url)),
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	messages = bufio.NewScanner(out)
	messages.Buffer(nil, 64<<20)
	return cmd, messages
}

// untilMessage reads messages until one is of a type.
func untilMessage(s *scene, messages *bufio.Scanner, ok func(message) bool) message {
	s.Helper()
	for messages.Scan() {
		var m message
		if err := json.Unmarshal(messages.Bytes(), &m); err != nil {
			s.Fatalf("%v: %s", err, messages.Bytes())
		}
		s.Log(messages.Text())
		if ok(m) {
			return m
		}
	}
	s.Fatalf("the program ended: %v", messages.Err())
	return message{}
}

// asked returns the conversations that the API was sent, by the marker of their scenario, without where they may be cached.
func asked(s *scene, requests string) (all [][]string) {
	s.Helper()
	files, err := filepath.Glob(filepath.Join(requests, "*.json"))
	if err != nil {
		s.Fatal(err)
	}
	slices.Sort(files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			s.Fatal(err)
		}
		var request struct {
			Messages []map[string]any `json:"messages"`
			Tools    []any            `json:"tools"`
		}
		if err := json.Unmarshal(content, &request); err != nil || len(request.Tools) == 0 {
			continue // of the small model
		}
		var one []string
		for _, m := range request.Messages {
			blocks, _ := m["content"].([]any)
			for _, b := range blocks {
				delete(b.(map[string]any), "cache_control")
			}
			text, err := json.Marshal(m)
			if err != nil {
				s.Fatal(err)
			}
			one = append(one, string(text))
		}
		all = append(all, one)
	}
	return all
}

// A program of the Agent SDK is killed in mid-turn; another one, with another home, resumes its session from the store alone, and
// the model is sent what it was sent, and then the rest.
func TestResumedElsewhere(t *testing.T) {
	s := newScene(t)
	requests, cwd := t.TempDir(), t.TempDir()
	api := apitest.Program(t, requests)
	first, messages := program(s, api, cwd, "work [[scn:tools]]", "")
	session := ""
	results := 0
	untilMessage(s, messages, func(m message) bool {
		session = m.Session
		if m.Type == "user" {
			results++
		}
		return results == 4
	})
	s.until("the store has what was said and done", func() bool { return s.countResults(session) == results })
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err == nil {
		t.Fatal("the program had ended before it was killed")
	}
	kept := s.countResults(session) // what the program had no time to append isn't there
	before := slices.DeleteFunc(asked(s, requests), func(one []string) bool {
		return strings.Count(strings.Join(one, ""), `"type":"tool_result"`) > kept
	})
	_, messages = program(s, api, cwd, "go on [[scn:second]]", session)
	listed := untilMessage(s, messages, func(m message) bool { return m.Type == "listed" })
	if listed.Session != session || listed.Summary == "" {
		t.Errorf("listed: %+v, the session is %s", listed, session)
	}
	after := asked(s, requests)
	last := after[len(after)-1]
	want := before[len(before)-1]
	if len(want) < 2*results-1 || len(last) <= len(want) {
		t.Fatalf("%d messages after the resumption, %d before", len(last), len(want))
	}
	if diff := cmp.Diff(want, last[:len(want)]); diff != "" {
		t.Errorf("what the model was sent before, and after (-want +got):\n%s", diff)
	}
	t.Logf("%d requests before, the last with %d messages; that of the resumed session has %d", len(before), len(want), len(last))
	story := s.story(session)
	if strings.Contains(story, "short") || !strings.Contains(story, "agent says Answer to the second message.") || strings.Count(story, "agent says Let me start") != 1 {
		t.Errorf("story:\n%s", story)
	}
	all := s.load(key(projectOf(s, session), session)).(list)
	seen := map[any]bool{}
	for _, e := range all {
		if id := e.(object)["uuid"]; id != nil && seen[id] {
			t.Errorf("%v is there twice", id)
		} else {
			seen[id] = true
		}
	}
}

// countResults counts the calls that have ended.
func (s *scene) countResults(run string) (n int) {
	for e, err := range s.log.Read(s.Context(), eventlog.Query{Run: run, Kinds: []wire.Kind{wire.KindTool}}) {
		if err != nil {
			s.Fatal(err)
		}
		if _, is := e.Event.Payload.(*wire.AgentTool); is {
			n++
		}
	}
	return n
}

// projectOf returns the project of a session.
func projectOf(s *scene, session string) string {
	s.Helper()
	for e, err := range s.log.Read(s.Context(), eventlog.Query{Run: session, Kinds: []wire.Kind{wire.TypeTranscriptRead.Kind()}}) {
		if err != nil {
			s.Fatal(err)
		}
		if mark, is := e.Event.Payload.(*wire.TranscriptRead); is {
			project, _, _ := strings.Cut(strings.TrimPrefix(mark.File, "store:"), "/")
			return project
		}
	}
	return ""
}
