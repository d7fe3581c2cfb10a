package flow

import (
	"fmt"
	"slices"
	"strings"
)

// Providers are the kinds of agents that a flow can name; one that names none
// gets the first. Recorded agents take their place by `wake run --fixtures`.
var Providers = []string{"claude", "native"}

// agentFields are the options of an agent, besides provider, prompt and messages.
var agentFields = []string{
	"model", "fallbackModel", "cwd", "maxTurns", "maxBudgetUsd", "permissionMode", "systemPrompt", "appendSystemPrompt",
	"allowedTools", "disallowedTools", "addDirs", "outputSchema", "env", "fork", "blocks",
	"requireApproval", "maxTokens", "contextWindow", "thinking", "effort", "retries", "mcpServers", "prices",
}

// priceFields are those of a price of a model.
var priceFields = []string{"input", "output", "cacheWrite5m", "cacheWrite1h", "cacheRead"}

// input checks the input of a node by its type. Values that hold a binding are
// known only when the node is scheduled.
func (r *reader) input(n *Node, t *tree, path string) {
	o := r.object(t.get("input"), path+".input")
	if o.t.at == (place{}) {
		o.t.at = t.at
	}
	switch n.Type {
	case TypeAgent:
		r.agentInput(o)
	case TypeExec:
		r.execInput(o)
	case TypeSet:
		r.setInput(o)
	case TypeAsk:
		r.askInput(o)
	case TypeFlow:
		r.flowInput(o)
	default:
		return
	}
	o.done()
}

func (r *reader) agentInput(o *fields) {
	if s, ok := o.take("provider").text(); ok && !bound(s) && !slices.Contains(Providers, s) {
		r.add(o.t.get("provider").at, o.field("provider"), "%q is unknown; it is one of %s%s",
			s, strings.Join(Providers, ", "), suggest(s, Providers))
	}
	prompt, messages := o.take("prompt"), o.take("messages")
	switch {
	case prompt == nil && messages == nil:
		r.add(o.t.at, o.field("prompt"), "is required, or messages")
	case prompt != nil && messages != nil:
		r.add(messages.at, o.field("messages"), "can't be there beside prompt")
	case prompt != nil && prompt.kind != scalar:
		r.add(prompt.at, o.field("prompt"), "must be a text, not %s", prompt.what())
	}
	for _, name := range agentFields {
		o.take(name)
	}
	r.number(o, "maxTurns")
	r.number(o, "maxBudgetUsd")
	r.number(o, "maxTokens")
	r.number(o, "contextWindow")
	r.mcpServers(o)
	r.prices(o)
	for _, name := range []string{"allowedTools", "disallowedTools", "requireApproval", "addDirs"} {
		r.unbound(o, name, list, "a list")
	}
	r.env(o)
	r.unbound(o, "outputSchema", object, "an object")
	if s, ok := o.t.get("blocks").text(); ok && !bound(s) {
		o.oneOf("blocks", "fallback", "always", "never")
	}
}

func (r *reader) env(o *fields) {
	r.unbound(o, "env", object, "an object")
	r.secretRefs(o.t.get("env"), o.field("env"))
}

func (r *reader) mcpServers(o *fields) {
	r.unbound(o, "mcpServers", object, "an object")
	servers := o.t.get("mcpServers")
	if servers == nil {
		return
	}
	for _, server := range servers.fields {
		for _, name := range []string{"env", "headers"} {
			r.secretRefs(server.tree.get(name), o.field("mcpServers")+"."+server.name+"."+name)
		}
	}
}

func bound(s string) bool { return strings.Contains(s, "{{") }

// unbound checks the kind of a value that isn't bound.
func (r *reader) unbound(o *fields, name string, want kind, what string) {
	t := o.t.get(name)
	if s, ok := t.text(); t.absent() || t.kind == want || ok && bound(s) {
		return
	}
	r.add(t.at, o.field(name), "must be %s, not %s", what, t.what())
}

// number checks a positive number.
func (r *reader) number(o *fields, name string) {
	t := o.t.get(name)
	if s, ok := t.text(); t.absent() || ok && bound(s) {
		return
	}
	switch v := t.value.(type) {
	case int64:
		if v > 0 {
			return
		}
	case float64:
		if v > 0 {
			return
		}
	}
	r.add(t.at, o.field(name), "must be a positive number, not %s", t.what())
}

// prices checks what models cost.
func (r *reader) prices(o *fields) {
	r.unbound(o, "prices", object, "an object of models")
	models := o.t.get("prices")
	if models.absent() {
		return
	}
	for _, model := range models.fields {
		path := o.field("prices") + "." + model.name
		price := r.object(model.tree, path)
		for _, name := range priceFields {
			t := price.take(name)
			if name == "input" || name == "output" {
				t = price.need(name)
			}
			if s, ok := t.text(); ok && bound(s) {
				continue
			}
			if t != nil && !isNumber(t.value) {
				r.add(t.at, price.field(name), "must be a number of US dollars per million tokens, not %s", t.what())
			}
		}
		price.done()
	}
}

// execInput refuses a binding in a command line: what an agent has put out would
// become a part of the command.
func (r *reader) execInput(o *fields) {
	command := o.need("command")
	o.take("cwd")
	o.take("env")
	r.env(o)
	switch {
	case command == nil:
	case command.kind == list && len(command.list) > 0:
		r.words(command.list, o.field("command"))
	case command.kind != scalar:
		r.add(command.at, o.field("command"), "must be a text or a list of words, not %s", command.what())
	default:
		s, ok := command.text()
		if !ok || strings.TrimSpace(s) == "" {
			r.add(command.at, o.field("command"), "must be a text or a list of words, not %s", command.what())
		}
		r.noSecretRef(command, o.field("command"))
		if bound(strings.ReplaceAll(s, `\{{`, "")) {
			r.add(command.at, o.field("command"), "a binding would let a value run commands of its own; "+
				"write the command as a list of words, or bind a variable in env and use \"$NAME\"")
		}
	}
}

func (r *reader) words(words []*tree, field string) {
	for i, w := range words {
		s, ok := w.text()
		if !ok {
			r.add(w.at, fmt.Sprintf("%s[%d]", field, i), "must be a text, not %s", w.what())
		}
		r.noSecretRef(w, fmt.Sprintf("%s[%d]", field, i))
		if i == 0 && bound(s) {
			r.add(w.at, fmt.Sprintf("%s[%d]", field, i), "a binding would let a value choose the program")
		}
	}
}

func (r *reader) setInput(o *fields) {
	set, merge, output := o.take("set"), o.take("merge"), o.take("output")
	if set == nil && merge == nil && output == nil {
		r.add(o.t.at, o.path, "a set node has set, merge or output")
	}
	for _, f := range []treeField{{name: "set", tree: set}, {name: "merge", tree: merge}} {
		if f.tree != nil && f.tree.kind != object {
			r.add(f.tree.at, o.field(f.name), "must be an object of dotted paths and values, not %s", f.tree.what())
		}
	}
}

func (r *reader) askInput(o *fields) {
	o.need("prompt")
	o.take("choices")
	o.take("schema")
	r.unbound(o, "choices", list, "a list")
	r.unbound(o, "schema", object, "an object")
}

// flowInput checks a child run; the child itself is a file until
// [Definition.Embed] has put it in.
func (r *reader) flowInput(o *fields) {
	child := o.need("flow")
	o.take("input")
	o.take("state")
	o.take("labels")
	r.unbound(o, "state", object, "an object")
	r.unbound(o, "labels", object, "an object")
	if child != nil {
		r.embeddable(child, o.field("flow"))
	}
}
