package client_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

// goOn resumes a run, allows each call that waits for a decision, and returns how the run has ended.
func goOn(ctx context.Context, nc *nats.Conn, runID string) (*wire.State, error) {
	c, err := client.Open(ctx, nc, client.Options{}) // the connection stays yours
	if err != nil {
		return nil, err
	}
	agent, err := c.ResumeFromStore(ctx, runID, client.ResumeOptions{Message: "go on"})
	if err != nil {
		return nil, err
	}
	err = agent.On("permission_required", func(e client.Event) {
		if err := e.Respond(true, "fine"); err != nil {
			panic(err)
		}
	})
	if err != nil {
		return nil, err
	}
	return agent.Wait(ctx) // calls the listeners until the run has ended
}

// tryAgain goes on with a run that has failed from what failed.
func tryAgain(ctx context.Context, c *client.Client, runID string) (*wire.State, error) {
	agent, err := c.ResumeFromStore(ctx, runID, client.ResumeOptions{Rerun: []string{"*"}})
	if err != nil {
		return nil, err
	}
	return agent.Wait(ctx)
}

// Each example of the docs in Go is code of this file, which is compiled and run.
func TestDocsHaveTheseExamples(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("docs_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	fenced := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	examples := 0
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fenced.FindAllSubmatch(text, -1) {
			if examples++; !strings.Contains(string(source), string(m[1])) {
				t.Errorf("%s has an example that isn't tested here:\n%s", file, m[1])
			}
		}
		if regexp.MustCompile(`(?m)^ {4}.*:= `).Match(text) {
			t.Errorf("%s has Go outside of a fence", file)
		}
	}
	if examples < 2 {
		t.Errorf("%d examples found", examples)
	}
}

func TestExampleGoOn(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	s.judge(func(cmd wire.Command) (string, []wire.Payload) {
		switch {
		case cmd.Type == "resume" && cmd.Message == "go on":
			return "", []wire.Payload{&wire.FlowResumed{Strategy: "crash", Message: cmd.Message}}
		case cmd.Type == "approve" && cmd.CallID == "c1":
			return "", []wire.Payload{&wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusComplete}}
		}
		return "BAD_REQUEST: x", nil
	})
	s.act("c1", &wire.ToolIntent{ToolName: "Bash", ToolInput: wire.RawString("ls"), InputHash: "00"})
	s.act("c1", &wire.PermissionRequired{ToolName: "Bash", ToolInput: wire.RawString("ls")})
	s.decide("", &wire.FlowPaused{Reason: wire.PauseOperator})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if state, err := goOn(ctx, s.log.Conn(), "r1"); err != nil || state.Result != wire.FlowStatusComplete {
		t.Errorf("%+v, %v", state, err)
	}
}

// TestExampleTryAgain: a client that resumes a run that had failed waits for its second end, and one that follows it from its
// beginning sees both.
func TestExampleTryAgain(t *testing.T) {
	t.Parallel()
	s := play(t, client.Options{})
	s.judge(func(cmd wire.Command) (string, []wire.Payload) {
		if cmd.Type != "resume" || len(cmd.Rerun) != 1 || cmd.Rerun[0] != "*" {
			return "BAD_REQUEST: x", nil
		}
		return "", []wire.Payload{&wire.FlowResumed{Strategy: "crash", Rerun: []string{"a"}}, &wire.FlowAborted{Reason: "enough"}}
	})
	s.act("", &wire.NodeError{Error: "no luck", ErrorType: "exit"})
	s.decide("", &wire.FlowComplete{FlowName: "review", Status: wire.FlowStatusFailed, Error: "no luck"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := s.c.ResumeFromStore(ctx, "r1", client.ResumeOptions{}); code(err) != wire.CodeNotResumable {
		t.Errorf("without a node: %v", err)
	}
	if state, err := tryAgain(ctx, s.c, "r1"); err != nil || state.Status != wire.RunAborted {
		t.Errorf("%+v, %v", state, err)
	}
	var states []string
	for e := range s.events(0) {
		if e.Type == "state_changed" {
			states = append(states, e.State+" "+e.Reason)
		}
	}
	if got := strings.Join(states, ", "); got != "WORKING started, READY failed, WORKING resumed, READY aborted" {
		t.Errorf("states were %s", got)
	}
}
