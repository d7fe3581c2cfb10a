package claude

import (
	"fmt"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// RestEvery sets how often the host is told of a resting point; 1: always.
func (p *Provider) RestEvery(d time.Duration) { p.restEvery = d }

// StateVersion is the version of what a session leaves at a resting point, and State its type.
const StateVersion = stateVersion

type State = state

// BenchState returns what encodes the state of a normalizer after calls.
func BenchState(calls int) func() int {
	n := NewNormalizer(NormalizerOptions{SessionID: "s1", Started: true})
	for i := range calls {
		id := fmt.Sprint("toolu_01ABCDEFGHIJKLMNOP", i)
		n.Line(1, fmt.Appendf(nil, `{"type":"assistant","uuid":"a%[2]d-0944-493c-b405-cabe78d7414b","session_id":"s1","message":{"id":"m%[2]d","content":[{"type":"tool_use","id":%[1]q,"name":"Bash","input":{}}],"usage":{"input_tokens":1}}}`, id, i))
		n.Line(2, fmt.Appendf(nil, `{"type":"user","uuid":"b%[2]d-0944-493c-b405-cabe78d7414b","session_id":"s1","message":{"content":[{"type":"tool_result","tool_use_id":%[1]q,"content":"x"}]}}`, id, i))
	}
	return func() int {
		if !n.isResting() {
			panic("not resting")
		}
		data, err := wire.Marshal(state{Version: stateVersion, Normalizer: n.captureState()})
		if err != nil {
			panic(err)
		}
		return len(data)
	}
}

// MergeLinesWithin is [MergeLines] with another bound of a line.
var MergeLinesWithin = mergeLines
