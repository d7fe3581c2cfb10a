package alerter

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// commits finds commits to git, of agents and of nodes that are commands. Those of
// about the same time are told together, at the latest when the node ends.
type commits struct {
	Agents map[string]agentCommits `json:"agents,omitempty"`
	Exec   map[string]bool         `json:"exec,omitempty"` // nodes that are commands which may commit
}

// agentCommits is what an agent has committed and what isn't told yet.
type agentCommits struct {
	Node     string   `json:"node"`
	Exec     string   `json:"exec,omitempty"`
	First    uint64   `json:"first"` // position; 0: nothing to tell
	Until    int64    `json:"until"`
	Count    int      `json:"count"`
	Messages []string `json:"messages,omitempty"` // at most maxCommits, and the latest
	Branch   string   `json:"branch,omitempty"`   // of a commit of which the program told only this
	Notices  int      `json:"notices,omitempty"`  // of the program, about commits of calls that haven't ended
	Calls    int      `json:"calls,omitempty"`    // commits of calls, about which its notice may follow
}

// vcsNotice ends the name of the program's word for a change of a repository.
const vcsNotice = "/vcs_state_changed"

// maxCommits bounds the messages that are listed.
const maxCommits = 3

// detect is a [timedDetector].
func (s commits) detect(in input) (commits, []finding, int64) {
	var found []finding
	if in.Event == nil {
		s, found = s.flushChosen(func(k agentCommits) bool { return k.Until <= in.At })
	} else {
		node := in.Event.Node()
		switch p := in.Event.Payload.(type) {
		case *wire.AgentTool:
			s = s.addCall(in, p)
		case *wire.RawMessage:
			if strings.HasSuffix(p.Name, vcsNotice) && p.Data.TextAt("kind") == "commit" {
				s = s.addNotice(in, p.Data.TextAt("branch"))
			}
		case *wire.ExecStart:
			if gitCommit().MatchString(clipText(p.Command, maxCommand)) {
				s.Exec = withKey(s.Exec, node, true)
			}
		case *wire.NodeComplete:
			if s.Exec[node] {
				s = s.addPrintedCommits(in, p.Output.TextAt("stdout"))
			}
			s, found = s.endNode(in, node)
		case *wire.NodeError, *wire.NodeCancelled, *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted:
			s, found = s.endNode(in, node)
		case *wire.FlowComplete, *wire.FlowAborted:
			s, found = s.flushChosen(func(agentCommits) bool { return true })
		}
	}
	return s, found, earliestTime(s.Agents, func(k agentCommits) int64 { return k.Until })
}

// addCall looks for commits in what a call has done. Only one that succeeded counts.
func (s commits) addCall(in input, p *wire.AgentTool) commits {
	agent := agentOf(in.Event)
	k := s.Agents[agent]
	messages := commitsOf(p)
	if p.Error == "" && len(messages) == 0 && k.Notices > 0 && gitCommit().MatchString(p.ToolInput.TextAt("command")) {
		messages = []string{messageOf(p.ToolInput.TextAt("command"))}
	}
	notices := k.Notices
	k.Notices = 0
	for i, m := range messages {
		k = k.addCommit(in, m)
		if i >= notices {
			k.Calls++
		}
	}
	if len(messages) == 0 {
		for range notices {
			k = k.addCommit(in, "")
		}
	}
	if len(messages) > 0 || notices > 0 {
		s.Agents = withKey(s.Agents, agent, k)
	}
	return s
}

// addNotice takes the program's word for a commit. It may come before the result of
// the call that made it, or after.
func (s commits) addNotice(in input, branch string) commits {
	agent := agentOf(in.Event)
	k := s.Agents[agent]
	if k.Calls > 0 {
		k.Calls--
	} else {
		k.Notices++
		k.Branch = nameLine(branch)
	}
	if k.Node == "" {
		k.Node, k.Exec = in.Event.Node(), in.Event.ExecID
	}
	s.Agents = withKey(s.Agents, agent, k)
	return s
}

// addPrintedCommits adds the commits that a command's output tells of.
func (s commits) addPrintedCommits(in input, output string) commits {
	agent := agentOf(in.Event)
	for _, message := range headersIn(output) {
		s.Agents = withKey(s.Agents, agent, s.Agents[agent].addCommit(in, message))
	}
	return s
}

// endNode tells the commits of a node that has ended, and forgets the node.
func (s commits) endNode(in input, node string) (commits, []finding) {
	s, found := s.addNoticedCommits(in).flushChosen(func(k agentCommits) bool { return k.Node == node })
	s.Agents, s.Exec = withoutNode(s.Agents, node), withoutKey(s.Exec, node)
	return s, found
}

// addNoticedCommits adds the commits that only the program has told of, when their agent ends.
func (s commits) addNoticedCommits(in input) commits {
	for _, agent := range sortedKeys(s.Agents) {
		k := s.Agents[agent]
		if k.Node != in.Event.Node() || k.Notices == 0 {
			continue
		}
		for range k.Notices {
			k = k.addCommit(in, "")
		}
		k.Notices = 0
		s.Agents = withKey(s.Agents, agent, k)
	}
	return s
}

func (k agentCommits) addCommit(in input, message string) agentCommits {
	if k.First == 0 {
		k.Node, k.Exec, k.First = in.Event.Node(), in.Event.ExecID, in.Pos
		k.Until = in.At + max(in.Limits.Commit.Window.Milliseconds(), 1)
	}
	k.Count++
	if message = timeline.Line(message, maxError); len(k.Messages) < maxCommits {
		k.Messages = append(slices.Clip(k.Messages), message)
	} else {
		k.Messages = append(k.Messages[:maxCommits:maxCommits], message)
	}
	return k
}

var (
	gitCommit = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\bgit\b[^\n]*\b(?:commit|cherry-pick|revert|merge|am)\b`)
	})
	commitHeader = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)^\[(?:detached HEAD|[^\s\]]+)(?: \(root-commit\))? ([0-9a-f]{7,40})\] (.*)$`)
	})
)

// commitsOf returns the messages of the commits that a call has made.
func commitsOf(p *wire.AgentTool) []string {
	if p.Error != "" || p.Denied {
		return nil
	}
	input := p.ToolInput.TextAt("command")
	sha := p.Structured.TextAt("gitOperation", "commit", "sha")
	if sha == "" && !gitCommit().MatchString(input) {
		return nil
	}
	messages := headersIn(outputOf(p))
	if len(messages) == 0 && (sha != "" || commitsQuietly(input)) {
		messages = []string{messageOf(input)}
	}
	return messages
}

var (
	quotedText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'`) })
	// A letter behind -m, -C and the like is the option's argument.
	quietCommit = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^git\s+(?:-[cC]\s+\S+\s+|-\S+\s+)*commit\s(?:.*\s)?(?:--quiet|-[abenopsvz]*q\w*)(?:\s|$)`)
	})
)

// commitsQuietly reports whether a command that has succeeded has made a commit without printing it. A command
// behind || may not have been run.
func commitsQuietly(input string) bool {
	if strings.Contains(input, "||") {
		return false
	}
	return slices.ContainsFunc(simpleCommands(input), func(c string) bool {
		return quietCommit().MatchString(quotedText().ReplaceAllString(c, "x")) && !strings.Contains(c, "--dry-run")
	})
}

// headersIn returns the messages of the commits that an output tells of.
func headersIn(output string) (messages []string) {
	for _, m := range commitHeader().FindAllStringSubmatch(clipText(output, maxOutput), -1) {
		messages = append(messages, m[2])
	}
	return messages
}

// given finds the message among a command's arguments, also where a
// here-document holds it.
var given = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)(?:\s-\w*m|--message)[\s=]+(?:"\$\(cat <<-?\s*['"]?\w+['"]?\n(.*?)\n|"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+))`)
})

func messageOf(input string) string {
	m := given().FindStringSubmatch(clipText(input, maxCommand))
	if m == nil {
		return ""
	}
	return firstLine(strings.Join(m[1:], ""))
}

func (s commits) flushChosen(chosen func(agentCommits) bool) (commits, []finding) {
	var found []finding
	for _, agent := range sortedKeys(s.Agents) {
		k := s.Agents[agent]
		if k.First == 0 || !chosen(k) {
			continue
		}
		f := k.finding()
		if slices.ContainsFunc(found, func(other finding) bool { return other.Armed == f.Armed }) { // of another agent, told by the same event
			f.Level = nameLine(agent[strings.IndexByte(agent, '\n')+1:])
		}
		found = append(found, f)
		s.Agents = withKey(s.Agents, agent, agentCommits{Node: k.Node, Exec: k.Exec, Calls: k.Calls})
	}
	return s, found
}

func (k agentCommits) finding() finding {
	latest := k.Messages[len(k.Messages)-1]
	f := finding{
		Kind: kindCommit, Severity: wire.SeverityInfo, NodeID: k.Node, ExecID: k.Exec, Armed: k.First,
		Data: map[string]any{"message": latest, "count": k.Count},
	}
	switch {
	case k.Count == 1 && latest == "":
		f.Text = fmt.Sprintf(textCommittedOn, cmp.Or(k.Branch, "a branch"))
	case k.Count == 1:
		f.Text = fmt.Sprintf(textCommitted, quoteText(latest))
	case k.Count <= maxCommits:
		all := make([]string, len(k.Messages))
		for i, m := range k.Messages {
			all[i] = quoteText(m)
		}
		f.Text, f.Data["messages"] = fmt.Sprintf(textCommits, k.Count, strings.Join(all, ", ")), k.Messages
	default:
		f.Text = fmt.Sprintf(textManyCommits, k.Count, quoteText(latest))
	}
	return f
}
