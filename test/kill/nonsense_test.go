//go:build kill && agents

package kill_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// nonsenseBound is how long an agent that gets nonsense from its model may try, and nonsenseSilence after which silence it is told of.
const nonsenseBound, nonsenseSilence = 40 * time.Second, 10 * time.Second

// TestAgentsNonsense gives each real agent a model whose API is out of its mind, in several ways. Whatever the agent makes of it: its node ends
// within its policy's bound, and an agent that is silent until then is told of before.
func TestAgentsNonsense(t *testing.T) {
	bin := agentsFolder(t)
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			l := newLabOf(t, lab.Config{TTL: 2 * time.Second, Limit: 30 * time.Minute, Rules: fmt.Sprintf("detectors: {stuck: {after: %s}}\n", nonsenseSilence)})
			l.Prog.Claude = filepath.Join(bin, "claude")
			api := NewNonsense(t)
			l.agentRunner(p, bin, api.URL)
			for _, kind := range NonsenseKinds() {
				l.askNonsense(p, api, kind)
			}
		})
	}
}

// askNonsense runs a node of an agent whose model answers with a kind of nonsense.
func (l *bench) askNonsense(p program, api *Nonsense, kind string) {
	l.Helper()
	api.Say(kind)
	before := api.Asked()
	src := fmt.Sprintf("name: nonsense\nnodes:\n  - {id: a, type: agent, policy: {timeoutMs: %d}, input: {%s, prompt: \"$ true\"}}\n", nonsenseBound.Milliseconds(), p.input)
	l.Flow(kind, src)
	l.Until(kind+" has ended", nonsenseBound+agentPatience, func() bool {
		s := l.State(kind)
		return s != nil && s.Status == wire.RunComplete
	})
	took := l.State(kind).EndedAt - l.State(kind).StartedAt
	var told []string
	l.Until("the end is told of", agentPatience, func() bool {
		told = nil
		for line := range strings.Lines(l.Wake("alerts", kind, "--json")) {
			var a wire.Alert
			l.Must(json.Unmarshal([]byte(line), &a))
			told = append(told, a.Kind)
		}
		return slices.Contains(told, "error") || slices.Contains(told, "completion")
	})
	end := ""
	for _, x := range l.Stored(kind) {
		switch p := x.E.Payload.(type) {
		case *wire.AgentComplete:
			end = "complete: " + p.Result
		case *wire.AgentError:
			end = fmt.Sprintf("%s %s: %s", p.Severity, p.ErrorType, p.Message)
		}
	}
	l.Logf("%s gets %s: ends after %d ms, alerts %v; %.200q", p.name, kind, took, told, end)
	switch byItself := took < nonsenseBound.Milliseconds(); {
	case api.Asked() == before:
		l.Errorf("%s hasn't asked its model", p.name)
	case !byItself && !slices.Contains(told, "stuck"):
		l.Errorf("%s gets %s: it was at work for %d ms, and nothing told so: %v", p.name, kind, took, told)
	case strings.Contains(end, ModelDone):
		l.Errorf("%s gets %s and says %q", p.name, kind, end)
	}
}
