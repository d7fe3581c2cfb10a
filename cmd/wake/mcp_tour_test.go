package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The runs of the tour, see testdata/script/mcp_tour.txtar: one whose agent asks, and one with a question of its own.
const (
	tourTalk = "talk"
	tourAsk  = "ask"
)

// tourStep is a call of a tool, and what its answer has.
type tourStep struct {
	tool      string
	arguments map[string]any
	want      string // a pattern; "!" before it: of an error
}

// tourMCP is a program that calls every tool of wake mcp by the SDK's client, on real runs, over stdio or, with a file that has a token, over HTTP.
// It fails for a tool that it doesn't know.
func tourMCP() {
	if err := tour(context.Background(), os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tour(ctx context.Context, argv []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var transport sdk.Transport = &sdk.CommandTransport{Command: exec.CommandContext(ctx, "wake", "mcp")}
	prefix := "stdio"
	if len(argv) == 1 {
		prefix = "http"
		url, stop, err := startHTTP(ctx, argv[0])
		if err != nil {
			return err
		}
		defer stop()
		if _, err := newTourClient().Connect(ctx, bearerTransport(url, "wrong"), nil); err == nil {
			return errors.New("a wrong token is let in")
		}
		token, err := os.ReadFile(argv[0])
		if err != nil {
			return err
		}
		transport = bearerTransport(url, strings.TrimSpace(string(token)))
	}
	session, err := newTourClient().Connect(ctx, transport, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	open := map[string]bool{}
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if tool.OutputSchema == nil || tool.Description == "" {
			return fmt.Errorf("%s has no description, or no schema of what it answers", tool.Name)
		}
		open[tool.Name] = true
	}
	all := len(open)
	for _, step := range tourSteps(prefix) {
		if err := step.take(ctx, session); err != nil {
			return err
		}
		delete(open, step.tool)
	}
	if len(open) > 0 {
		return fmt.Errorf("the tour calls no %s: add a step", strings.Join(slices.Sorted(maps.Keys(open)), ", "))
	}
	fmt.Printf("%s: %d tools called\n", prefix, all)
	return nil
}

func newTourClient() *sdk.Client {
	return sdk.NewClient(&sdk.Implementation{Name: "tour", Version: "1"}, nil)
}

func bearerTransport(url, token string) sdk.Transport {
	return &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearing{token, &http.Transport{}}}}
}

// startHTTP starts wake mcp on a port of its own and returns its address.
func startHTTP(ctx context.Context, tokenFile string) (url string, stop func(), err error) {
	c := exec.CommandContext(ctx, "wake", "mcp", "--listen", "127.0.0.1:0", "--token-file", tokenFile)
	said, err := c.StderrPipe()
	if err != nil {
		return "", nil, err
	}
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _ = c.Process.Kill(); _ = c.Wait() } // it has been killed
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if url = regexp.MustCompile(`http://\S+`).FindString(lines.Text()); url != "" {
			return url, stop, nil
		}
	}
	stop()
	return "", nil, errors.New("wake mcp names no address")
}

// take calls the tool until its answer is the one that is wanted: what was asked for takes its time.
func (s tourStep) take(ctx context.Context, session *sdk.ClientSession) error {
	pattern, failed := strings.CutPrefix(s.want, "!")
	want := regexp.MustCompile(pattern)
	for {
		r, err := session.CallTool(ctx, &sdk.CallToolParams{Name: s.tool, Arguments: s.arguments})
		if err != nil {
			return fmt.Errorf("%s %v: %w", s.tool, s.arguments, err)
		}
		var text strings.Builder
		for _, c := range r.Content {
			if t, ok := c.(*sdk.TextContent); ok {
				text.WriteString(t.Text)
			}
		}
		if r.IsError == failed && want.MatchString(text.String()) {
			if !failed && r.StructuredContent == nil {
				return fmt.Errorf("%s answers without fields", s.tool)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %v: %q, want %s", s.tool, s.arguments, text.String(), s.want)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tourSteps are the calls, in the order in which the runs of a prefix come to them.
func tourSteps(prefix string) []tourStep {
	talk, ask := prefix+tourTalk, prefix+tourAsk
	type in = map[string]any
	return []tourStep{
		{"runs", in{"status": "active"}, talk},
		{"approvals", in{"run": talk}, "approval c1 of coder"},
		{"approve", in{"run": talk, "call": "c1"}, "^approved c1"},
		{"approvals", in{"run": talk}, "approval c2 of coder"},
		{"deny", in{"run": talk, "call": "c2", "note": "not that"}, "^denied c2"},
		{"status", in{"run": talk}, "blocker|question|waits"},
		{"steer", in{"run": talk, "message": "Tabs."}, "^steered run"},
		{"alerts", in{"run": talk}, "Shall I go on"},
		{"send", in{"run": talk, "message": "And now?"}, "^sent to run"},
		{"log", in{"run": talk, "grep": "Two"}, "Two"},
		{"tail", in{"run": talk}, "next: "},
		{"search", in{"text": "Two", "run": talk}, "Two"},
		{"alerts", in{"run": talk}, "Tabs or spaces"},
		{"state", in{"run": talk}, "status +complete"},
		{"bookmarks", in{"run": talk}, "sfp-1"},
		{"approvals", in{"run": ask}, "Deploy"},
		{"bookmark", in{"run": ask, "label": "before"}, "^bookmarked run"},
		{"pause", in{"run": ask, "reason": "lunch"}, "^paused run"},
		{"status", in{"run": ask}, "paused"},
		{"resume", in{"run": ask}, "^resumed run"},
		{"reply", in{"run": ask, "answer": "yes"}, "^answered"},
		{"status", in{"run": ask}, "complete"},
		{"fork", in{"run": ask, "at": "before"}, "^forked run"},
		{"diff", in{"a": ask, "b": talk}, "."},
		{"run", in{"flow": "name: " + prefix + "new\nnodes: [{id: a, type: ask, input: {prompt: \"Well?\"}}]", "labels": in{"name": prefix + "new"}}, "^started run"},
		{"abort", in{"run": prefix + "new", "reason": "enough"}, "^aborted run"},
		{"status", in{"run": "nosuch"}, "!^RUN_NOT_FOUND"},
	}
}
