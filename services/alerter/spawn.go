package alerter

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// spawns finds agents that start sub-agents. Those that are started at about the
// same time are told together.
type spawns struct {
	Agents map[string]spawn `json:"agents,omitempty"`
}

// spawn are the sub-agents that an agent has started and that aren't told yet.
type spawn struct {
	Node   string   `json:"node"`
	Exec   string   `json:"exec,omitempty"`
	First  uint64   `json:"first"`
	Until  int64    `json:"until"`
	Count  int      `json:"count"`
	Tool   string   `json:"tool"`
	Team   string   `json:"team,omitempty"`
	Labels []string `json:"labels,omitempty"`
}

// maxSpawned bounds the labels in a line.
const maxSpawned = 3

// detect is a [timedDetector].
func (s spawns) detect(in input) (spawns, []finding, int64) {
	var found []finding
	if in.Event == nil {
		s, found = s.flushChosen(func(k spawn) bool { return k.Until <= in.At })
	} else {
		node := in.Event.Node()
		switch p := in.Event.Payload.(type) {
		case *wire.ToolIntent:
			if slices.Contains(in.Limits.Spawn.Tools, p.ToolName) {
				s = s.addSpawn(in, p)
			}
		case *wire.TurnEnd, *wire.NodeComplete, *wire.NodeError, *wire.AgentComplete, *wire.AgentPaused, *wire.AgentAborted:
			s, found = s.flushChosen(func(k spawn) bool { return k.Node == node })
		case *wire.FlowComplete, *wire.FlowAborted:
			s, found = s.flushChosen(func(spawn) bool { return true })
		}
	}
	return s, found, earliestTime(s.Agents, func(k spawn) int64 { return k.Until })
}

func (s spawns) addSpawn(in input, p *wire.ToolIntent) spawns {
	agent := agentOf(in.Event)
	k, ok := s.Agents[agent]
	if !ok {
		k = spawn{Node: in.Event.Node(), Exec: in.Event.ExecID, First: in.Pos, Until: in.At + max(in.Limits.Spawn.Gather.Milliseconds(), 1), Tool: p.ToolName}
	}
	k.Count++
	k.Team = cmp.Or(k.Team, nameLine(callArgument(p.ToolInput, "team_name")))
	if len(k.Labels) < maxSpawned {
		k.Labels = append(slices.Clip(k.Labels), spawnLabel(p.ToolInput))
	}
	s.Agents = withKey(s.Agents, agent, k)
	return s
}

// spawnLabel names a sub-agent by the most telling of its arguments.
func spawnLabel(input wire.Raw) string {
	for _, key := range []string{"name", "description", "subagent_type", "team_name"} {
		if s := nameLine(callArgument(input, key)); s != "" {
			return s
		}
	}
	for _, key := range []string{"prompt", "task"} {
		if s := nameLine(firstLine(callArgument(input, key))); s != "" {
			return s
		}
	}
	return ""
}

// callArgument returns a text argument of a call, also from input that is no object
// but the beginning of one as JSON.
func callArgument(input wire.Raw, key string) string {
	if s := input.TextAt(key); s != "" {
		return s
	}
	partial, ok := input.Text()
	if !ok {
		return ""
	}
	m := regexp.MustCompile(`"` + regexp.QuoteMeta(key) + `"\s*:\s*("(?:[^"\\]|\\.)*")`).FindStringSubmatch(clipText(partial, maxOutput))
	if m == nil {
		return ""
	}
	v, err := wire.RawFromJSON([]byte(m[1]))
	if err != nil {
		return ""
	}
	s, _ := v.Text()
	return s
}

func (s spawns) flushChosen(chosen func(spawn) bool) (spawns, []finding) {
	var found []finding
	for _, agent := range sortedKeys(s.Agents) {
		if k := s.Agents[agent]; chosen(k) {
			s.Agents, found = withoutKey(s.Agents, agent), append(found, k.finding())
		}
	}
	return s, found
}

func (k spawn) finding() finding {
	count := formatCount(int64(k.Count), "sub-agent")
	labels := slices.DeleteFunc(slices.Clone(k.Labels), func(l string) bool { return l == "" })
	listed := strings.Join(labels, ", ")
	if k.Count > len(k.Labels) && listed != "" {
		listed += ", …"
	}
	text := fmt.Sprintf(textSpawned, count)
	switch {
	case k.Team != "":
		text = fmt.Sprintf(textSpawnedTeam, count, k.Team)
	case listed != "":
		text = fmt.Sprintf(textSpawnedWhat, count, timeline.Line(listed, maxError))
	}
	data := map[string]any{"count": k.Count, "teamName": k.Team, "toolName": nameLine(k.Tool)}
	if len(labels) > 0 {
		data["label"] = labels[0]
	}
	return finding{
		Kind: kindSpawn, Severity: wire.SeverityInfo, NodeID: k.Node, ExecID: k.Exec, Armed: k.First,
		Text: text, Data: data,
	}
}
