package acp

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/pkg/wire"
)

// goOn asks the program for what comes next, if it has answered all that it was asked: one thing after the other, until its
// turns are over.
func (s *session) goOn() {
	f := s.f
	if s.replaying || f.Over {
		return
	}
	if f.Failure != nil || s.IsHalting() && !s.inTurn() {
		s.closeInput()
		return
	}
	if len(f.Sent) > 0 {
		return
	}
	r := s.request
	switch mode := f.mode; {
	case !f.Initialized:
		s.ask(acp.AgentMethodInitialize, acp.InitializeRequest{
			ProtocolVersion: acp.ProtocolVersionNumber, ClientInfo: &acp.Implementation{Name: "wake", Version: "1"},
			ClientCapabilities: acp.ClientCapabilities{Fs: acp.FileSystemCapabilities{ReadTextFile: true, WriteTextFile: true}, Terminal: true},
		}, request{})
	case r.Options.Auth != "" && !f.Authenticated:
		s.ask(acp.AgentMethodAuthenticate, acp.AuthenticateRequest{MethodId: r.Options.Auth}, request{})
	case !f.Opened:
		s.openSession()
	case mode != bypass && !f.Moded && slices.Contains(f.Modes, mode):
		s.ask(acp.AgentMethodSessionSetMode, acp.SetSessionModeRequest{SessionId: acp.SessionId(f.Session), ModeId: acp.SessionModeId(mode)}, request{})
	case !f.Moded && !isOurMode(mode):
		f.fail(wire.ErrorStartFailed, fmt.Sprintf("permissionMode %q is no mode of the agent; there are bypassPermissions, approval%s", mode, listText(f.Modes)), nil)
		s.closeInput()
	case r.Options.Model != "" && !f.Modelled && r.Options.Model != f.Model:
		s.chooseModel(r.Options.Model)
	case !f.Prompted:
		s.sendPrompt()
	default:
		s.sendMessage()
	}
}

// isOurMode reports whether a mode is one that wake itself keeps to.
func isOurMode(mode string) bool { return mode == bypass || mode == "approval" || mode == "default" }

func listText(of []string) string {
	if len(of) == 0 {
		return ""
	}
	return ", " + strings.Join(of, ", ")
}

// ask sends a request to the program.
func (s *session) ask(method string, params any, x request) {
	f := s.f
	f.NextID++
	x.Method, x.At = method, nowMillis()
	line, err := json.Marshal(params)
	if err != nil {
		f.fail(wire.ErrorStartFailed, fmt.Sprintf("%s can't be asked: %v", method, err), nil)
		s.closeInput()
		return
	}
	id := strconv.FormatInt(f.NextID, 10)
	s.noteSent(id, x)
	s.put(rpcMessage{JSONRPC: "2.0", ID: json.RawMessage(id), Method: method, Params: line})
}

// noteSent notes a request that the program is given, or was.
func (s *session) noteSent(id string, x request) {
	s.f.Sent[id] = x
	s.asked = time.Now()
	switch x.Method {
	case acp.AgentMethodSessionNew:
		s.f.Afresh = true
	case acp.AgentMethodSessionPrompt:
		s.f.Prompted, s.f.Cancelled = true, false
	}
}

// openSession opens the session: the one to go on with if the agent can, else a new one where that is allowed.
func (s *session) openSession() {
	f, r := s.f, s.request
	dir, servers := r.Options.Cwd, s.mcpServers()
	dirs := s.folders()
	before := acp.SessionId(r.SessionID)
	switch {
	case f.Afresh:
		s.ask(acp.AgentMethodSessionNew, acp.NewSessionRequest{
			Cwd: dir, McpServers: servers, AdditionalDirectories: dirs, Meta: map[string]any{originKey: origin{Renewed: f.Renewed}},
		}, request{})
	case r.ForkOf != "" && r.ForkAt == "" && r.ForkOf != r.SessionID && f.Can.Fork:
		s.ask(acp.AgentMethodSessionFork, acp.LoadSessionRequest{SessionId: acp.SessionId(r.ForkOf), Cwd: dir, McpServers: servers, AdditionalDirectories: dirs}, request{})
	case r.ForkOf != "":
		s.loseSession(agent.ErrorForkPointNotFound, "the agent can't go back to a point of its session, or fork it")
	case f.Can.Resume && (!f.Can.Load || len(r.Facts) == 0 && !f.Aligned): // what it loads it repeats, which shows what it, or the log, lacks
		s.ask(acp.AgentMethodSessionResume, acp.ResumeSessionRequest{SessionId: before, Cwd: dir, McpServers: servers, AdditionalDirectories: dirs}, request{})
	case f.Can.Load:
		s.ask(acp.AgentMethodSessionLoad, acp.LoadSessionRequest{SessionId: before, Cwd: dir, McpServers: servers, AdditionalDirectories: dirs}, request{})
	default:
		s.loseSession(wire.ErrorSessionNotFound, "the agent can't go on with sessions of processes that are gone")
	}
}

func (s *session) loseSession(kind, message string) {
	s.f.at = nowMillis()
	s.f.loseSession(kind, message, nil)
	s.goOn()
}

// folders are those besides the working folder.
func (s *session) folders() (dirs []string) {
	for _, dir := range s.request.Options.AddDirs {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(s.request.Options.Cwd, dir)
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// mcpServers are the servers of the agent's tools, that of its parent among them.
func (s *session) mcpServers() []acp.McpServer {
	servers := []acp.McpServer{}
	given := maps.Clone(s.request.Options.MCPServers)
	if own := s.provider.Parent; len(own) > 0 {
		if given == nil {
			given = map[string]agent.MCPServer{}
		}
		given[parent.Server] = agent.MCPServer{Command: own}
	}
	for _, name := range sortedKeys(given) {
		x := given[name]
		if x.URL != "" {
			h := acp.McpServerHttpInline{Type: "http", Name: name, Url: x.URL, Headers: []acp.HttpHeader{}}
			for _, key := range sortedKeys(x.Headers) {
				h.Headers = append(h.Headers, acp.HttpHeader{Name: key, Value: x.Headers[key]})
			}
			servers = append(servers, acp.McpServer{Http: &h})
			continue
		}
		if len(x.Command) == 0 {
			continue
		}
		c := acp.McpServerStdio{Name: name, Command: x.Command[0], Args: append([]string{}, x.Command[1:]...), Env: []acp.EnvVariable{}}
		for _, key := range sortedKeys(x.Env) {
			c.Env = append(c.Env, acp.EnvVariable{Name: key, Value: x.Env[key]})
		}
		servers = append(servers, acp.McpServer{Stdio: &c})
	}
	return servers
}

// chooseModel has the agent take another model, if it has that.
func (s *session) chooseModel(model string) {
	f, id := s.f, acp.SessionId(s.f.Session)
	f.Model = model
	switch {
	case !slices.Contains(f.Models, model):
		f.fail(wire.ErrorStartFailed, fmt.Sprintf("the agent has no model %q; it offers: %s", model, strings.Join(f.Models, ", ")), nil)
		s.closeInput()
	case f.Option != "":
		s.ask(acp.AgentMethodSessionSetConfigOption, acp.SetSessionConfigOptionRequest{ValueId: &acp.SetSessionConfigOptionValueId{
			SessionId: id, ConfigId: acp.SessionConfigId(f.Option), Value: acp.SessionConfigValueId(model),
		}}, request{})
	default:
		s.ask(acp.AgentMethodSessionSetModel, acp.UnstableSetSessionModelRequest{SessionId: id, ModelId: acp.UnstableModelId(model)}, request{})
	}
}

// sendPrompt gives the agent its prompt; a session that takes the place of one is told of it first.
func (s *session) sendPrompt() {
	prompt := s.prompt
	for _, text := range []string{s.describeLapse(), s.f.describeCut()} {
		if text != "" {
			prompt = append(slices.Clone(prompt), acp.TextBlock(text))
		}
	}
	if s.f.Renewed {
		summary, err := summarizePast(s.request)
		if err != nil {
			s.f.fail(wire.ErrorStartFailed, "what the log has of the session can't be read: "+err.Error(), nil)
			s.closeInput()
			return
		}
		prompt = append([]acp.ContentBlock{acp.TextBlock(summary)}, prompt...)
	}
	s.ask(acp.AgentMethodSessionPrompt, acp.PromptRequest{SessionId: acp.SessionId(s.f.Session), Prompt: prompt}, request{})
}

// describeLapse tells the agent what came behind the last call that its record has: it may have died before it wrote that.
func (s *session) describeLapse() string {
	facts := s.request.Facts
	if s.f.Afresh {
		return ""
	}
	for i, fact := range slices.Backward(facts) {
		if slices.Contains(s.f.Known, fact.Mark) {
			facts = facts[i+1:]
			break
		}
	}
	text, _ := s.request.Prompt.Text()
	return agent.DescribeLapse(facts, func(f agent.Fact) bool { return strings.Contains(text, f.Text) })
}

// maxCut bounds what the agent is told of calls that were cut off, in bytes.
const maxCut = 8 << 10

// describeCut tells the agent of calls of which only its own record told, without an end.
func (f *fold) describeCut() string {
	if len(f.Cut) == 0 {
		return ""
	}
	text := "You were interrupted while these calls of yours may have been running; their outcome is unknown. Check which effects they have had before you repeat them:\n\n" +
		strings.Join(f.Cut, "\n")
	return strings.ToValidUTF8(text[:min(len(text), maxCut)], "")
}

// sendMessage gives the agent the next message, or ends its input if there is none.
func (s *session) sendMessage() {
	m, ok := s.nextMessage()
	if !ok {
		return
	}
	if !m.Notice {
		s.noteAnswer(m.Answers)
	}
	from := origin{CommandID: m.CommandID, Content: m.Content, Answers: m.Answers, Notice: m.Notice}
	s.ask(acp.AgentMethodSessionPrompt, acp.PromptRequest{
		SessionId: acp.SessionId(s.f.Session), Prompt: []acp.ContentBlock{acp.TextBlock(m.Content)}, Meta: map[string]any{originKey: from},
	}, request{CommandID: m.CommandID, Content: m.Content})
}

// noteAnswer notes that a question to the parent is answered, or all if it is "".
func (s *session) noteAnswer(question string) {
	s.f.Asked = slices.DeleteFunc(s.f.Asked, func(id string) bool { return question == "" || id == question })
}

// originKey is where a request says where it comes from, for a reader of the journal.
const originKey = "wake"

// origin is where a prompt, or a new session, comes from.
type origin struct {
	CommandID string `json:"commandId,omitempty"`
	Content   string `json:"content,omitempty"`
	Answers   string `json:"answers,omitempty"` // see [agent.Message]
	Notice    bool   `json:"notice,omitempty"`
	Renewed   bool   `json:"renewed,omitempty"` // the session takes the place of one that can't be gone on with
}
