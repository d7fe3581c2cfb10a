package flow

import (
	"fmt"
	"slices"
	"strings"
)

// Providers are the kinds of agents that a flow can name; one that names none
// gets the first. Recorded agents take their place by `wake run --fixtures`.
var Providers = []string{"claude", "native", "acp", "codex"}

// agentFields are the options of an agent, besides provider, prompt and messages.
var agentFields = []string{
	"model", "fallbackModel", "cwd", "maxTurns", "maxBudgetUsd", "permissionMode", "systemPrompt", "appendSystemPrompt",
	"allowedTools", "disallowedTools", "addDirs", "outputSchema", "env", "fork", "blocks",
	"requireApproval", "maxTokens", "contextWindow", "thinking", "effort", "retries", "mcpServers", "prices",
	"command", "agent", "auth", "newSession",
}

// priceFields are those of a price of a model.
var priceFields = []string{"input", "output", "cacheWrite5m", "cacheWrite1h", "cacheRead"}

// checkInput checks the input of a node by its type. Values that hold a binding are
// known only when the node is scheduled.
func (r *reader) checkInput(n *Node, t *tree, path string) {
	o := r.openObject(t.get("input"), path+".input")
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
	o.checkUnknown()
}

func (r *reader) agentInput(o *fields) {
	if s, ok := o.takeField("provider").asText(); ok && !hasBinding(s) && !slices.Contains(Providers, s) {
		r.addProblem(o.t.get("provider").at, o.fieldName("provider"), "%q is unknown; it is one of %s%s",
			s, strings.Join(Providers, ", "), suggestName(s, Providers))
	}
	prompt, messages := o.takeField("prompt"), o.takeField("messages")
	switch {
	case prompt == nil && messages == nil:
		r.addProblem(o.t.at, o.fieldName("prompt"), "is required, or messages")
	case prompt != nil && messages != nil:
		r.addProblem(messages.at, o.fieldName("messages"), "can't be there beside prompt")
	case prompt != nil && prompt.kind != scalar:
		r.addProblem(prompt.at, o.fieldName("prompt"), "must be a text, not %s", prompt.kindName())
	}
	for _, name := range agentFields {
		o.takeField(name)
	}
	r.checkNumber(o, "maxTurns")
	r.checkNumber(o, "maxBudgetUsd")
	r.checkNumber(o, "maxTokens")
	r.checkNumber(o, "contextWindow")
	r.mcpServers(o)
	r.checkPrices(o)
	for _, name := range []string{"allowedTools", "disallowedTools", "requireApproval", "addDirs"} {
		r.checkKind(o, name, list, "a list")
	}
	r.checkEnv(o)
	r.agentCommand(o)
	r.checkKind(o, "outputSchema", object, "an object")
	if s, ok := o.t.get("blocks").asText(); ok && !hasBinding(s) {
		o.takeOneOf("blocks", "fallback", "always", "never")
	}
}

// agentCommand checks the program of an agent, which no value may choose.
func (r *reader) agentCommand(o *fields) {
	command := o.t.get("command")
	switch {
	case command.isAbsent():
	case command.kind == list && len(command.list) > 0:
		r.checkWords(command.list, o.fieldName("command"))
	default:
		r.addProblem(command.at, o.fieldName("command"), "must be a list of words, such as [my-agent, acp], not %s", command.kindName())
	}
}

func (r *reader) checkEnv(o *fields) {
	r.checkKind(o, "env", object, "an object")
	r.secretRefs(o.t.get("env"), o.fieldName("env"))
}

func (r *reader) mcpServers(o *fields) {
	r.checkKind(o, "mcpServers", object, "an object")
	servers := o.t.get("mcpServers")
	if servers == nil {
		return
	}
	for _, server := range servers.fields {
		for _, name := range []string{"env", "headers"} {
			r.secretRefs(server.tree.get(name), o.fieldName("mcpServers")+"."+server.name+"."+name)
		}
	}
}

// checkKind checks the kind of a value that isn't bound.
func (r *reader) checkKind(o *fields, name string, want kind, what string) {
	t := o.t.get(name)
	if s, ok := t.asText(); t.isAbsent() || t.kind == want || ok && hasBinding(s) {
		return
	}
	r.addProblem(t.at, o.fieldName(name), "must be %s, not %s", what, t.kindName())
}

// checkNumber checks a positive number.
func (r *reader) checkNumber(o *fields, name string) {
	t := o.t.get(name)
	if s, ok := t.asText(); t.isAbsent() || ok && hasBinding(s) {
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
	r.addProblem(t.at, o.fieldName(name), "must be a positive number, not %s", t.kindName())
}

// checkPrices checks what models cost.
func (r *reader) checkPrices(o *fields) {
	r.checkKind(o, "prices", object, "an object of models")
	models := o.t.get("prices")
	if models.isAbsent() {
		return
	}
	for _, model := range models.fields {
		path := o.fieldName("prices") + "." + model.name
		price := r.openObject(model.tree, path)
		for _, name := range priceFields {
			t := price.takeField(name)
			if name == "input" || name == "output" {
				t = price.needField(name)
			}
			if s, ok := t.asText(); ok && hasBinding(s) {
				continue
			}
			if t != nil && !isNumber(t.value) {
				r.addProblem(t.at, price.fieldName(name), "must be a number of US dollars per million tokens, not %s", t.kindName())
			}
		}
		price.checkUnknown()
	}
}

// execInput refuses a binding in a command line: what an agent has put out would
// become a part of the command.
func (r *reader) execInput(o *fields) {
	command := o.needField("command")
	o.takeField("cwd")
	o.takeField("env")
	r.checkEnv(o)
	switch {
	case command == nil:
	case command.kind == list && len(command.list) > 0:
		r.checkWords(command.list, o.fieldName("command"))
	case command.kind != scalar:
		r.addProblem(command.at, o.fieldName("command"), "must be a text or a list of words, not %s", command.kindName())
	default:
		s, ok := command.asText()
		if !ok || strings.TrimSpace(s) == "" {
			r.addProblem(command.at, o.fieldName("command"), "must be a text or a list of words, not %s", command.kindName())
		}
		r.noSecretRef(command, o.fieldName("command"))
		if hasBinding(strings.ReplaceAll(s, `\{{`, "")) {
			r.addProblem(command.at, o.fieldName("command"), "a binding would let a value run commands of its own; "+
				"write the command as a list of words, or bind a variable in env and use \"$NAME\"")
		}
	}
}

func (r *reader) checkWords(words []*tree, field string) {
	for i, w := range words {
		s, ok := w.asText()
		if !ok {
			r.addProblem(w.at, fmt.Sprintf("%s[%d]", field, i), "must be a text, not %s", w.kindName())
		}
		r.noSecretRef(w, fmt.Sprintf("%s[%d]", field, i))
		if i == 0 && hasBinding(s) {
			r.addProblem(w.at, fmt.Sprintf("%s[%d]", field, i), "a binding would let a value choose the program")
		}
	}
}

func (r *reader) setInput(o *fields) {
	set, merge, output := o.takeField("set"), o.takeField("merge"), o.takeField("output")
	if set == nil && merge == nil && output == nil {
		r.addProblem(o.t.at, o.path, "a set node has set, merge or output")
	}
	for _, f := range []treeField{{name: "set", tree: set}, {name: "merge", tree: merge}} {
		if f.tree != nil && f.tree.kind != object {
			r.addProblem(f.tree.at, o.fieldName(f.name), "must be an object of dotted paths and values, not %s", f.tree.kindName())
		}
	}
}

func (r *reader) askInput(o *fields) {
	o.needField("prompt")
	o.takeField("choices")
	o.takeField("schema")
	r.checkKind(o, "choices", list, "a list")
	r.checkKind(o, "schema", object, "an object")
}

// flowInput checks a child run; the child itself is a file until
// [Definition.Embed] has put it in.
func (r *reader) flowInput(o *fields) {
	child := o.needField("flow")
	o.takeField("input")
	o.takeField("state")
	o.takeField("labels")
	r.checkKind(o, "state", object, "an object")
	r.checkKind(o, "labels", object, "an object")
	if child != nil {
		r.checkEmbeddable(child, o.fieldName("flow"))
	}
}
