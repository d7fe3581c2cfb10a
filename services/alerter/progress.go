package alerter

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// circles finds agents that work and get nowhere: equal calls that are answered alike while
// nothing changes, a file that is edited back and forth, and an error that returns in other words.
type circles struct {
	Agents map[string]circle `json:"agents,omitempty"` // by node and sub-agent
}

// circle is what one agent has done last.
type circle struct {
	Calls  uint64           `json:"calls,omitempty"`  // that have ended, so far
	Failed bool             `json:"failed,omitempty"` // the last of them
	Equal  map[string]again `json:"equal,omitempty"`  // by call
	Flips  map[string]again `json:"flips,omitempty"`  // by file and the two texts
	Errors map[string]again `json:"errors,omitempty"` // by tool and words
}

// again is something that an agent has done before.
type again struct {
	Count int        `json:"count"`
	Last  uint64     `json:"last"`            // the number of the call that did it last
	State string     `json:"state,omitempty"` // of a call its answer, of an edit which text it left
	Pos   uint64     `json:"pos"`             // of the first time
	At    int64      `json:"at"`              // of the first time, Unix ms
	Spent wire.Spent `json:"spent"`           // by the run until then
}

// Bounds of what is remembered of an agent, and of how far apart what repeats may be, in calls.
const (
	maxAgain    = 24
	errorWindow = 15
)

// detect is a [detector].
func (s circles) detect(in input) (circles, []finding) {
	e := in.Event
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		if !p.Resumed {
			s.Agents = withoutNode(s.Agents, e.Node())
		}
	case *wire.UserMessage:
		if e.Parent == "" {
			s.Agents = withoutNode(s.Agents, e.Node()) // it has something else to do
		}
	case *wire.AgentTool:
		if e.CallID != "" {
			s.Agents = withoutKey(s.Agents, e.Node()+"\n"+e.CallID)
		}
		k, found := s.Agents[agentOf(e)].addCall(in, p)
		s.Agents = withKey(s.Agents, agentOf(e), k)
		return s, found
	case *wire.NodeComplete, *wire.NodeError, *wire.NodeCancelled:
		s.Agents = withoutNode(s.Agents, e.Node())
	}
	return s, nil
}

// addCall takes a call that has ended.
func (k circle) addCall(in input, p *wire.AgentTool) (circle, []finding) {
	if !hasOutcome(p) || p.ToolName == unknownTool {
		return k, nil
	}
	k.Calls++
	l := in.Limits.Progress
	if p.Error != "" {
		return k.addError(in, p)
	}
	k.Failed = false
	if texts, left, ok := editOf(p); ok {
		var x again
		x, k.Flips = k.repeat(k.Flips, in, texts, left, func(old again) bool { return old.State != left })
		if isDue(x.Count-1, l.Flips) {
			return k, []finding{x.finding(in, p, "edit", textFlips, x.Count-1, l.Flips)}
		}
	}
	if isWaitingCall(p) {
		return k, nil
	}
	call, answer := hashOf(p.ToolName, string(p.ToolInput)), hashOf(string(p.ToolOutput))
	if _, known := k.Equal[call]; !known && !onlyReads(p.ToolName) {
		k.Equal = nil // something else than before, which may have changed what the others are answered
	}
	var x again
	x, k.Equal = k.repeat(k.Equal, in, call, answer, func(old again) bool { return old.State == answer })
	if isDue(x.Count, l.Calls) {
		return k, []finding{x.finding(in, p, "call", textCircle, x.Count, l.Calls)}
	}
	return k, nil
}

// addError takes a call that has failed. Failures in a row are one: they have an alert of their own.
func (k circle) addError(in input, p *wire.AgentTool) (circle, []finding) {
	k.Equal = withoutKey(k.Equal, hashOf(p.ToolName, string(p.ToolInput))) // it isn't answered alike
	words, inRow := plainWords(p.Error), k.Failed
	if k.Failed = true; inRow || len(words) < shortWords { // such as an exit code alone
		return k, nil
	}
	var x again
	x, k.Errors = k.repeat(k.Errors, in, hashOf(p.ToolName, words), "", func(old again) bool { return k.Calls-old.Last <= errorWindow })
	if l := in.Limits.Progress; isDue(x.Count, l.Errors) {
		return k, []finding{x.finding(in, p, "error", textReturns, x.Count, l.Errors)}
	}
	return k, nil
}

// repeat counts what is done under a key once more if it goes on what was done before, and else
// begins to count. What was done longest ago is forgotten.
func (k circle) repeat(all map[string]again, in input, key, state string, goesOn func(again) bool) (again, map[string]again) {
	x, known := all[key]
	switch {
	case !known || !goesOn(x):
		x = again{Count: 1, Pos: in.Pos, At: in.At, Spent: in.Spent}
	default:
		x.Count++
	}
	x.Last, x.State = k.Calls, state
	all = withKey(all, key, x)
	if len(all) > maxAgain {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b string) int {
			return cmp.Or(cmp.Compare(all[a].Last, all[b].Last), cmp.Compare(a, b))
		})
		delete(all, oldest)
	}
	return x, all
}

// isDue reports whether a count is worth an alert: at the threshold, and at four times that.
func isDue(count, threshold int) bool {
	return threshold > 0 && (count == threshold || count == 4*threshold)
}

func (x again) finding(in input, p *wire.AgentTool, what, text string, count, threshold int) finding {
	activity, _ := timeline.Activity(in.Event, "")
	activity = timeline.Line(cmp.Or(activity, p.ToolName), maxName)
	usd, tokens := max(0, in.Spent.Usd-x.Spent.Usd), max(0, in.Spent.Tokens-x.Spent.Tokens)
	cost := ""
	switch {
	case usd > 0:
		cost = " (" + ledger.DollarsText(usd) + ")"
	case tokens > 0:
		cost = " (" + formatCount(tokens, "token") + ")"
	}
	text = fmt.Sprintf(text, activity, count, formatSpan(time.Duration(in.At-x.At)*time.Millisecond), cost)
	f := in.finding(kindProgress, wire.SeverityWarning, text, map[string]any{
		"what": what, "count": count, "since": x.At, "toolName": nameLine(p.ToolName), "activity": activity, "costUsd": usd, "tokens": tokens,
	})
	f.Armed, f.Level = x.Pos, what
	if p.Error != "" {
		f.Data["lastError"] = timeline.Line(p.Error, maxError)
	}
	if count > threshold {
		f.Severity, f.Level = wire.SeverityError, what+"-again"
	}
	return f
}

// editOf returns what an edit goes back and forth on, which is the file and the two texts that it
// exchanges, in whichever direction, and which it leaves.
func editOf(p *wire.AgentTool) (key, left string, ok bool) {
	field := func(names ...string) string {
		for _, name := range names {
			if s := p.ToolInput.TextAt(name); s != "" {
				return s
			}
		}
		return ""
	}
	file := field("file_path", "path", "filePath")
	before, after := field("old_string", "oldString"), field("new_string", "newString")
	if file == "" || before == after {
		return "", "", false
	}
	a, b := hashOf(before), hashOf(after)
	return hashOf(file, min(a, b), max(a, b)), b, true
}

// onlyReads reports whether a tool changes nothing but the agent's own list.
func onlyReads(tool string) bool {
	switch tool {
	case "Read", "Grep", "Glob", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoRead", "TodoWrite", "TaskList", "TaskGet", "TaskCreate", "TaskUpdate",
		"read", "grep", "glob", "list", "read_file", "list_directory", "search_file_content":
		return true
	}
	return false
}

// isWaitingCall reports whether a call is there to wait, which agents do again and again.
func isWaitingCall(p *wire.AgentTool) bool {
	switch p.ToolName {
	case "BashOutput", "TaskOutput", "AgentOutput", "AgentOutputTool", "Monitor", "Sleep", "Wait", "wait", "ScheduleWakeup":
		return true
	}
	command := p.ToolInput.TextAt("command")
	return strings.Contains(command, "sleep ") || strings.Contains(command, "wait ")
}

// Of an error its beginning counts, and fewer letters than shortWords say nothing of it.
const (
	maxWords   = 600
	shortWords = 24
)

// changing is what errors differ by that are the same: quoted texts, paths, and words with digits.
var changing = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`|\\S*/\\S*|\\S*[0-9]\\S*")
})

// plainWords are the words of an error without what differs from one time to the next.
func plainWords(problem string) string {
	problem = strings.ToLower(timeline.Line(problem, maxWords))
	words := strings.FieldsFunc(changing().ReplaceAllString(problem, " "), func(r rune) bool { return r < 'a' || r > 'z' && r < 0x80 })
	return strings.Join(words, " ")
}

// hashOf tells texts apart, which may be large.
func hashOf(parts ...string) string {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write([]byte(p))
		_, _ = h.Write([]byte{0})
	}
	return strconv.FormatUint(h.Sum64(), 36)
}
