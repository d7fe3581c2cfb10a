package alerter

import (
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// nodePolicy is what a flow says about errors of a node.
type nodePolicy struct {
	Continue    bool `json:"continue,omitempty"` // an error is one of its outcomes
	MaxAttempts int  `json:"maxAttempts,omitempty"`
}

// nodePolicies returns the policies of a flow's nodes, and its node if that is the only
// one. A definition that can't be read has none: then every error counts.
func nodePolicies(definition wire.Raw) (all map[string]nodePolicy, only string) {
	var d struct {
		Nodes []struct {
			ID     string `json:"id"`
			Policy struct {
				ContinueOnError bool `json:"continueOnError"`
				Retry           struct {
					MaxAttempts int `json:"maxAttempts"`
				} `json:"retry"`
			} `json:"policy"`
		} `json:"nodes"`
	}
	if wire.Unmarshal(definition, &d) != nil {
		return nil, ""
	}
	if len(d.Nodes) == 1 {
		only = d.Nodes[0].ID
	}
	for _, n := range d.Nodes {
		p := nodePolicy{Continue: n.Policy.ContinueOnError, MaxAttempts: n.Policy.Retry.MaxAttempts}
		if p == (nodePolicy{}) {
			continue
		}
		if all == nil {
			all = map[string]nodePolicy{}
		}
		all[n.ID] = p
	}
	return all, only
}

// nodePolicy returns the policy of a node. Items of a forEach have that of their
// node.
func (r run) nodePolicy(node string) nodePolicy {
	if p, ok := r.Policies[node]; ok {
		return p
	}
	if i := strings.LastIndexByte(node, '/'); i > 0 {
		return r.Policies[node[:i]]
	}
	return nodePolicy{}
}
