// Package acptest is an agent that speaks the Agent Client Protocol by a script, for tests. It is made with the other side of
// the SDK, which judges what wake writes.
package acptest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"
)

// Script is the environment variable that holds the script of an agent; Home names the folder in which it keeps its
// sessions. A script has a part for each prompt of a session, divided by lines of "--"; the last part serves all further
// prompts. A line of a part is one of
//
//	say TEXT, think TEXT          a piece of text
//	plan TEXT, TEXT …             the first is done
//	call ID KIND INPUT            a call that is pending; INPUT is JSON
//	update ID STATUS TEXT         what has become of it
//	diff ID PATH TEXT             it has written a file, and is done
//	ask ID KIND INPUT             asks for permission, and says the option that was chosen
//	read PATH, write PATH TEXT    by the client; says what it got, or the error
//	run DIR COMMAND               in a terminal of the client; says its output and exit code
//	usage USED SIZE COST          of the session
//	tokens IN OUT                 of the turn, told with its end
//	raw LINE                      prints a line as it is
//	forever LINE                  prints it again and again from now on
//	await FILE, touch FILE        waits until a file exists; makes it
//	cancelled                     waits until the turn is cut short
//	stop REASON                   ends the turn for a reason; else it is end_turn
//	fail CODE TEXT                ends the turn with an error
//	die CODE, hang                ends the program; doesn't go on
//
// Before the first part, lines that begin with "!" say what agent it is: !load, !resume, !fork (abilities),
// !version N, !hang METHOD, !auth, !stderr TEXT, !modes A B, !models A B, !silent (it ignores what it is cut short by),
// !knows ID ID? (the calls that it repeats when it loads a session; ".ID": the end alone; "?": without their ends, "^": with a diff, "@": it asks the parent ID, "~": ended without a word, as codex-acp has it, "!": failed), !garbage N (lines before it speaks), !stay (it doesn't exit at the end of its input).
const (
	Script = "WAKE_TEST_ACP_SCRIPT"
	Home   = "WAKE_TEST_ACP_HOME"
)

// Main plays the script of the environment and reports true, if there is one. The program ends with its input.
func Main() bool {
	script, ok := os.LookupEnv(Script) //nolint:forbidigo // tests start it as a program without arguments
	if !ok {
		return false
	}
	a := newAgent(script, os.Getenv(Home)) //nolint:forbidigo // likewise
	for range a.garbage {
		_, _ = fmt.Fprintln(os.Stdout, "Loading \x1b[31mplugins\x1b[0m …")
	}
	a.out = os.Stdout
	a.conn = acp.NewAgentSideConnection(a, os.Stdout, os.Stdin) // which may hand a request over before it is returned
	close(a.connected)
	<-a.conn.Done()
	if a.stays {
		<-time.After(time.Hour)
	}
	return true
}

type agent struct {
	conn      *acp.AgentSideConnection
	connected chan struct{} // closed when there is conn

	out     io.Writer
	home    string
	parts   [][]string
	can     map[string]bool
	modes   []string
	models  []string
	knows   []string
	version int
	hang    string
	garbage int
	stays   bool

	mu      sync.Mutex
	cancels map[acp.SessionId]chan struct{}
}

func (a *agent) connection() *acp.AgentSideConnection {
	<-a.connected
	return a.conn
}

func newAgent(script, home string) *agent {
	a := &agent{home: home, connected: make(chan struct{}), can: map[string]bool{}, version: acp.ProtocolVersionNumber, cancels: map[acp.SessionId]chan struct{}{}}
	var part []string
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if rest, about := strings.CutPrefix(line, "!"); about {
			a.describe(strings.Fields(rest))
			continue
		}
		if line == "--" {
			a.parts, part = append(a.parts, part), nil
		} else if line != "" {
			part = append(part, line)
		}
	}
	a.parts = append(a.parts, part)
	return a
}

func (a *agent) describe(words []string) {
	switch words[0] {
	case "version":
		a.version, _ = strconv.Atoi(words[1])
	case "hang":
		a.hang = words[1]
	case "garbage":
		a.garbage, _ = strconv.Atoi(words[1])
	case "stay":
		a.stays = true
	case "stderr":
		fmt.Fprintln(os.Stderr, strings.Join(words[1:], " "))
	case "modes":
		a.modes = words[1:]
	case "models":
		a.models = words[1:]
	case "knows":
		a.knows = words[1:]
	default:
		a.can[words[0]] = true
	}
}

func (a *agent) waitIn(ctx context.Context, method string) {
	if a.hang == method {
		<-ctx.Done()
	}
}

// Initialize implements [acp.Agent].
func (a *agent) Initialize(ctx context.Context, r acp.InitializeRequest) (acp.InitializeResponse, error) {
	a.waitIn(ctx, "initialize")
	if r.ProtocolVersion != acp.ProtocolVersionNumber || !r.ClientCapabilities.Terminal || !r.ClientCapabilities.Fs.WriteTextFile {
		return acp.InitializeResponse{}, fmt.Errorf("unexpected client %+v", r)
	}
	can := acp.AgentCapabilities{LoadSession: a.can["load"]}
	if a.can["resume"] {
		can.SessionCapabilities.Resume = &acp.SessionResumeCapabilities{}
	}
	if a.can["fork"] {
		can.SessionCapabilities.Fork = &acp.SessionForkCapabilities{}
	}
	return acp.InitializeResponse{
		ProtocolVersion: acp.ProtocolVersion(a.version), AgentCapabilities: can,
		AgentInfo:   &acp.Implementation{Name: "scripted", Version: "0.1"},
		AuthMethods: []acp.AuthMethod{{Agent: &acp.AuthMethodAgent{Id: "key", Name: "Key"}}},
	}, nil
}

// Authenticate implements [acp.Agent].
func (a *agent) Authenticate(_ context.Context, r acp.AuthenticateRequest) (acp.AuthenticateResponse, error) {
	a.can["auth"] = a.can["auth"] && r.MethodId != "key"
	return acp.AuthenticateResponse{}, nil
}

// NewSession implements [acp.Agent].
func (a *agent) NewSession(ctx context.Context, r acp.NewSessionRequest) (acp.NewSessionResponse, error) {
	a.waitIn(ctx, "session/new")
	if a.can["auth"] {
		return acp.NewSessionResponse{}, &acp.RequestError{Code: -32000, Message: "Authentication required"}
	}
	for n := 1; ; n++ {
		id := fmt.Sprintf("sess-%d", n)
		if a.readTurns(id) >= 0 {
			continue
		}
		servers, _ := json.Marshal(r.McpServers)
		a.saveTurns(id, 0)
		_ = os.WriteFile(filepath.Join(a.home, "servers"), servers, 0o600)
		opened := acp.NewSessionResponse{SessionId: acp.SessionId(id)}
		opened.Modes, opened.Models = a.choices()
		return opened, nil
	}
}

func (a *agent) choices() (modes *acp.SessionModeState, models *acp.SessionModelState) {
	if len(a.modes) > 0 {
		modes = &acp.SessionModeState{CurrentModeId: acp.SessionModeId(a.modes[0])}
		for _, id := range a.modes {
			modes.AvailableModes = append(modes.AvailableModes, acp.SessionMode{Id: acp.SessionModeId(id), Name: id})
		}
	}
	if len(a.models) > 0 {
		models = &acp.SessionModelState{CurrentModelId: acp.ModelId(a.models[0])}
		for _, id := range a.models {
			models.AvailableModels = append(models.AvailableModels, acp.ModelInfo{ModelId: acp.ModelId(id), Name: id})
		}
	}
	return modes, models
}

// readTurns returns how many prompts a session had; -1: there is none.
func (a *agent) readTurns(id string) int {
	b, err := os.ReadFile(filepath.Join(a.home, filepath.Base(id)))
	if err != nil {
		return -1
	}
	n, _ := strconv.Atoi(string(b))
	return n
}

func (a *agent) saveTurns(id string, n int) {
	_ = os.WriteFile(filepath.Join(a.home, filepath.Base(id)), []byte(strconv.Itoa(n)), 0o600)
}

// LoadSession implements [acp.AgentLoader]: it repeats what was said.
func (a *agent) LoadSession(ctx context.Context, r acp.LoadSessionRequest) (acp.LoadSessionResponse, error) {
	if a.readTurns(string(r.SessionId)) < 0 {
		return acp.LoadSessionResponse{}, &acp.RequestError{Code: -32002, Message: "Resource not found"}
	}
	err := a.tell(ctx, r.SessionId, acp.UpdateAgentMessageText("what was said before"))
	for _, id := range a.knows {
		if id, late := strings.CutPrefix(id, "."); late {
			err = errors.Join(err, a.tell(ctx, r.SessionId, acp.UpdateToolCall(acp.ToolCallId(id), acp.WithUpdateStatus(acp.ToolCallStatusCompleted), acp.WithUpdateRawOutput("done"))))
			continue
		}
		id, begun := strings.CutSuffix(id, "?")
		id, edits := strings.CutSuffix(id, "^")
		id, asks := strings.CutSuffix(id, "@")
		id, failed := strings.CutSuffix(id, "!")
		id, feigned := strings.CutSuffix(id, "~")
		if feigned {
			err = errors.Join(err, a.tell(ctx, r.SessionId, acp.StartToolCall(acp.ToolCallId(id), "Doing "+id, acp.WithStartStatus(acp.ToolCallStatusCompleted),
				acp.WithStartRawInput(map[string]any{"command": id}))))
			continue
		}
		title, input := "Doing "+id, map[string]any{"command": id}
		if asks {
			title, input = "notify_parent (parent MCP Server)", map[string]any{"message": id, "priority": "question"}
		}
		err = errors.Join(err, a.tell(ctx, r.SessionId, acp.StartToolCall(acp.ToolCallId(id), title, acp.WithStartStatus(acp.ToolCallStatusPending),
			acp.WithStartRawInput(input), acp.WithStartContent([]acp.ToolCallContent{acp.ToolContent(acp.TextBlock("what it is for"))}))))
		status := acp.ToolCallStatusCompleted
		if failed {
			status = acp.ToolCallStatusFailed
		}
		if edits {
			err = errors.Join(err, a.tell(ctx, r.SessionId, acp.UpdateToolCall(acp.ToolCallId(id), acp.WithUpdateContent([]acp.ToolCallContent{acp.ToolDiffContent("b.txt", "new")}))))
		}
		if !begun {
			err = errors.Join(err, a.tell(ctx, r.SessionId, acp.UpdateToolCall(acp.ToolCallId(id), acp.WithUpdateStatus(status), acp.WithUpdateRawOutput("done"))))
		}
	}
	return acp.LoadSessionResponse{}, err
}

// ResumeSession implements [acp.Agent].
func (a *agent) ResumeSession(_ context.Context, r acp.ResumeSessionRequest) (acp.ResumeSessionResponse, error) {
	if a.readTurns(string(r.SessionId)) < 0 {
		return acp.ResumeSessionResponse{}, &acp.RequestError{Code: -32002, Message: "Resource not found"}
	}
	return acp.ResumeSessionResponse{}, nil
}

// UnstableForkSession is part of [acp.AgentExperimental].
func (a *agent) UnstableForkSession(_ context.Context, r acp.UnstableForkSessionRequest) (acp.UnstableForkSessionResponse, error) {
	n := a.readTurns(string(r.SessionId))
	if n < 0 {
		return acp.UnstableForkSessionResponse{}, &acp.RequestError{Code: -32002, Message: "Resource not found"}
	}
	id := string(r.SessionId) + "-fork"
	a.saveTurns(id, n)
	return acp.UnstableForkSessionResponse{SessionId: acp.SessionId(id)}, nil
}

// SetSessionMode implements [acp.Agent].
func (a *agent) SetSessionMode(_ context.Context, r acp.SetSessionModeRequest) (acp.SetSessionModeResponse, error) {
	return acp.SetSessionModeResponse{}, os.WriteFile(filepath.Join(a.home, "mode"), []byte(r.ModeId), 0o600)
}

// UnstableSetSessionModel is part of [acp.AgentExperimental].
func (a *agent) UnstableSetSessionModel(_ context.Context, r acp.UnstableSetSessionModelRequest) (acp.UnstableSetSessionModelResponse, error) {
	return acp.UnstableSetSessionModelResponse{}, os.WriteFile(filepath.Join(a.home, "model"), []byte(r.ModelId), 0o600)
}

// SetSessionConfigOption implements [acp.Agent].
func (*agent) SetSessionConfigOption(context.Context, acp.SetSessionConfigOptionRequest) (acp.SetSessionConfigOptionResponse, error) {
	return acp.SetSessionConfigOptionResponse{}, nil
}

// ListSessions implements [acp.Agent].
func (*agent) ListSessions(context.Context, acp.ListSessionsRequest) (acp.ListSessionsResponse, error) {
	return acp.ListSessionsResponse{}, nil
}

// CloseSession implements [acp.Agent].
func (*agent) CloseSession(context.Context, acp.CloseSessionRequest) (acp.CloseSessionResponse, error) {
	return acp.CloseSessionResponse{}, nil
}

// Cancel implements [acp.Agent].
func (a *agent) Cancel(_ context.Context, r acp.CancelNotification) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.cancels[r.SessionId]; c != nil && !a.can["silent"] {
		close(c)
		delete(a.cancels, r.SessionId)
	}
	return nil
}

// Prompt implements [acp.Agent]: it plays the part of the script that is the session's next.
func (a *agent) Prompt(_ context.Context, r acp.PromptRequest) (acp.PromptResponse, error) {
	n := a.readTurns(string(r.SessionId))
	a.saveTurns(string(r.SessionId), n+1)
	if file, err := os.OpenFile(filepath.Join(a.home, "prompts"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		for _, b := range r.Prompt {
			if b.Text != nil {
				_, _ = fmt.Fprintf(file, "%s: %s\n", r.SessionId, b.Text.Text)
			}
		}
		_ = file.Close()
	}
	cancelled := make(chan struct{})
	a.mu.Lock()
	a.cancels[r.SessionId] = cancelled
	a.mu.Unlock()
	ctx := context.Background() //nolint:forbidigo // it ends with its process
	p := &player{agent: a, ctx: ctx, session: r.SessionId, cancelled: cancelled, stop: acp.StopReasonEndTurn}
	for _, line := range a.parts[min(max(0, n), len(a.parts)-1)] {
		select {
		case <-cancelled:
			return acp.PromptResponse{StopReason: acp.StopReasonCancelled}, nil
		default:
		}
		if err := p.play(line); err != nil {
			return acp.PromptResponse{}, err
		}
	}
	select {
	case <-cancelled:
		p.stop = acp.StopReasonCancelled
	default:
	}
	return acp.PromptResponse{StopReason: p.stop, Usage: p.usage}, nil
}

func (a *agent) tell(ctx context.Context, id acp.SessionId, u acp.SessionUpdate) error {
	return a.connection().SessionUpdate(ctx, acp.SessionNotification{SessionId: id, Update: u})
}

// player plays a part of the script.
type player struct {
	agent     *agent
	ctx       context.Context //nolint:containedctx // of one prompt
	session   acp.SessionId
	cancelled chan struct{}
	stop      acp.StopReason
	usage     *acp.Usage
}

func (p *player) tell(u acp.SessionUpdate) error { return p.agent.tell(p.ctx, p.session, u) }

func (p *player) say(format string, args ...any) error {
	return p.tell(acp.UpdateAgentMessageText(fmt.Sprintf(format, args...)))
}

func (p *player) play(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	first, second, _ := strings.Cut(rest, " ")
	switch verb {
	case "say":
		return p.say("%s", rest)
	case "think":
		return p.tell(acp.UpdateAgentThoughtText(rest))
	case "plan":
		var entries []acp.PlanEntry
		for i, text := range strings.Split(rest, ", ") {
			status := acp.PlanEntryStatusPending
			if i == 0 {
				status = acp.PlanEntryStatusCompleted
			}
			entries = append(entries, acp.PlanEntry{Content: text, Priority: acp.PlanEntryPriorityMedium, Status: status})
		}
		return p.tell(acp.UpdatePlan(entries...))
	case "call":
		kind, input := toolOf(second)
		return p.tell(acp.StartToolCall(acp.ToolCallId(first), "Doing "+first, acp.WithStartKind(kind), acp.WithStartStatus(acp.ToolCallStatusPending), acp.WithStartRawInput(input)))
	case "update":
		status, text, _ := strings.Cut(second, " ")
		return p.tell(acp.UpdateToolCall(acp.ToolCallId(first), acp.WithUpdateStatus(acp.ToolCallStatus(status)),
			acp.WithUpdateContent([]acp.ToolCallContent{acp.ToolContent(acp.TextBlock(text))})))
	case "diff":
		path, text, _ := strings.Cut(second, " ")
		return p.tell(acp.UpdateToolCall(acp.ToolCallId(first), acp.WithUpdateStatus(acp.ToolCallStatusCompleted),
			acp.WithUpdateContent([]acp.ToolCallContent{acp.ToolDiffContent(path, text)})))
	case "ask":
		return p.ask(first, second)
	case "read", "write", "run":
		return p.useClient(verb, first, second)
	case "usage":
		return p.tellUsage(strings.Fields(rest))
	case "tokens":
		in, _ := strconv.Atoi(first)
		out, _ := strconv.Atoi(second)
		p.usage = &acp.Usage{InputTokens: in, OutputTokens: out, TotalTokens: in + out}
	case "raw":
		_, err := fmt.Fprintln(p.agent.out, rest)
		return err
	case "forever":
		go func() {
			for {
				_, _ = fmt.Fprintln(p.agent.out, rest)
			}
		}()
	case "await":
		for {
			if _, err := os.Stat(rest); err == nil {
				return nil
			}
			<-time.After(5 * time.Millisecond)
		}
	case "touch":
		return os.WriteFile(rest, nil, 0o600)
	case "cancelled":
		<-p.cancelled
	case "stop":
		p.stop = acp.StopReason(rest)
	case "fail":
		code, _ := strconv.Atoi(first)
		return &acp.RequestError{Code: code, Message: second}
	case "die":
		code, _ := strconv.Atoi(rest)
		os.Exit(code)
	case "hang":
		<-time.After(time.Hour)
	default:
		return fmt.Errorf("no such line: %s", line)
	}
	return nil
}

func toolOf(text string) (acp.ToolKind, any) {
	kind, input, _ := strings.Cut(text, " ")
	var v any
	_ = json.Unmarshal([]byte(input), &v)
	return acp.ToolKind(kind), v
}

func (p *player) ask(id, about string) error {
	kind, input := toolOf(about)
	title := "Doing " + id
	r, err := p.agent.connection().RequestPermission(p.ctx, acp.RequestPermissionRequest{
		SessionId: p.session, ToolCall: acp.ToolCallUpdate{ToolCallId: acp.ToolCallId(id), Title: &title, Kind: &kind, RawInput: input},
		Options: []acp.PermissionOption{
			{Kind: acp.PermissionOptionKindAllowAlways, Name: "Always", OptionId: "always"},
			{Kind: acp.PermissionOptionKindAllowOnce, Name: "Yes", OptionId: "yes"},
			{Kind: acp.PermissionOptionKindRejectOnce, Name: "No", OptionId: "no"},
		},
	})
	switch {
	case err != nil:
		return err
	case r.Outcome.Selected == nil:
		return p.say("[cancelled]")
	}
	return p.say("[%s]", r.Outcome.Selected.OptionId)
}

func (p *player) useClient(verb, first, second string) error {
	c := p.agent.connection()
	var err error
	switch verb {
	case "read":
		var r acp.ReadTextFileResponse
		if r, err = c.ReadTextFile(p.ctx, acp.ReadTextFileRequest{SessionId: p.session, Path: first}); err == nil {
			return p.say("[%s]", r.Content)
		}
	case "write":
		if _, err = c.WriteTextFile(p.ctx, acp.WriteTextFileRequest{SessionId: p.session, Path: first, Content: second}); err == nil {
			return p.say("[written]")
		}
	case "run":
		var t acp.CreateTerminalResponse
		if t, err = c.CreateTerminal(p.ctx, acp.CreateTerminalRequest{SessionId: p.session, Command: "/bin/sh", Args: []string{"-c", second}, Cwd: &first}); err == nil {
			return p.awaitTerminal(t.TerminalId)
		}
	}
	return p.say("[refused: %v]", err)
}

func (p *player) awaitTerminal(id string) error {
	c := p.agent.connection()
	end, err := c.WaitForTerminalExit(p.ctx, acp.WaitForTerminalExitRequest{SessionId: p.session, TerminalId: id})
	if err != nil {
		return err
	}
	out, err := c.TerminalOutput(p.ctx, acp.TerminalOutputRequest{SessionId: p.session, TerminalId: id})
	if err != nil {
		return err
	}
	if _, err := c.ReleaseTerminal(p.ctx, acp.ReleaseTerminalRequest{SessionId: p.session, TerminalId: id}); err != nil {
		return err
	}
	code := -1
	if end.ExitCode != nil {
		code = *end.ExitCode
	}
	return p.say("[%s: %d]", strings.TrimSpace(out.Output), code)
}

func (p *player) tellUsage(words []string) error {
	used, _ := strconv.Atoi(words[0])
	size, _ := strconv.Atoi(words[1])
	usd, _ := strconv.ParseFloat(words[2], 64)
	return p.tell(acp.SessionUpdate{UsageUpdate: &acp.SessionUsageUpdate{SessionUpdate: "usage_update", Used: used, Size: size, Cost: &acp.Cost{Amount: usd, Currency: "USD"}}})
}
