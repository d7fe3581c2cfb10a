package flow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/internal/schema"
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

// checkInput checks the input of a node by its type. Values that hold a binding are
// known only when the node is scheduled.
func (r *flowReader) checkInput(n *Node, t *document.Value, path string) {
	o := r.openObject(t.Get("input"), path+".input")
	if o.t.At == (document.Place{}) {
		o.t.At = t.At
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
	case TypeSleep:
		r.waitInput(o, TypeSleep, "for")
	case TypeAt:
		r.waitInput(o, TypeAt, "time")
	case TypeFlow:
		r.flowInput(o)
	default:
		return
	}
	o.checkUnknown()
}

func (r *flowReader) agentInput(o *fields) {
	if s, ok := o.takeField("provider").AsText(); ok && !hasBinding(s) && !slices.Contains(Providers, s) {
		r.Add(o.t.Get("provider").At, o.fieldName("provider"), "%q is unknown; it is one of %s%s",
			s, strings.Join(Providers, ", "), document.SuggestName(s, Providers))
	}
	prompt, messages := o.takeField("prompt"), o.takeField("messages")
	switch {
	case prompt == nil && messages == nil:
		r.Add(o.t.At, o.fieldName("prompt"), "is required, or messages")
	case prompt != nil && messages != nil:
		r.Add(messages.At, o.fieldName("messages"), "can't be there beside prompt")
	case prompt != nil && prompt.Kind != document.Scalar:
		r.Add(prompt.At, o.fieldName("prompt"), "must be a text, not %s", prompt.KindName())
	}
	for _, name := range agentFields {
		o.takeField(name)
	}
	r.checkNumber(o, "maxBudgetUsd")
	for _, name := range []string{"maxTurns", "maxTokens", "contextWindow"} {
		r.checkInteger(o, name, 1)
	}
	r.checkInteger(o, "retries", 0)
	r.nativeInput(o)
	r.mcpServers(o)
	r.checkPrices(o)
	for _, name := range []string{"allowedTools", "disallowedTools", "requireApproval", "addDirs"} {
		r.checkKind(o, name, document.List, "a list")
	}
	r.checkEnv(o)
	r.agentCommand(o)
	r.checkKind(o, "outputSchema", document.Object, "an object")
	if s, ok := o.t.Get("blocks").AsText(); ok && !hasBinding(s) {
		o.takeOneOf("blocks", "fallback", "always", "never")
	}
}

// The permission modes of wake's own agent.
const (
	NativeAuto     = "auto"     // every call is allowed; the default
	NativeApproval = "approval" // every call waits until it is approved
	NativeReadonly = "readonly" // only tools that change nothing are allowed
)

// NativeModes says what a permission mode means to wake's own agent: its own, and those of Claude Code that mean the same.
var NativeModes = map[string]string{
	NativeAuto: NativeAuto, NativeApproval: NativeApproval, NativeReadonly: NativeReadonly,
	"bypassPermissions": NativeAuto, "default": NativeApproval, "plan": NativeReadonly,
}

// nativeInput checks what only wake's own agent takes.
func (r *flowReader) nativeInput(o *fields) {
	if s, ok := o.t.Get("provider").AsText(); !ok || s != starter {
		return
	}
	if s, ok := o.t.Get("permissionMode").AsText(); ok && s != "" && !hasBinding(s) && NativeModes[s] == "" {
		own := []string{NativeAuto, NativeApproval, NativeReadonly}
		r.Add(o.t.Get("permissionMode").At, o.fieldName("permissionMode"), "%q is unknown; it is one of %s%s",
			s, strings.Join(own, ", "), document.SuggestName(s, own))
	}
	if t := o.t.Get("thinking"); !t.IsAbsent() && !isThinking(t) {
		r.Add(t.At, o.fieldName("thinking"), "must be adaptive or a number of tokens, not %s", t.KindName())
	}
}

func isThinking(t *document.Value) bool {
	n, isInteger := t.AsInteger()
	if s, ok := t.AsText(); ok {
		if s == "adaptive" || hasBinding(s) {
			return true
		}
		var err error
		n, err = strconv.ParseInt(s, 10, 64)
		isInteger = err == nil
	}
	return isInteger && n > 0
}

// agentCommand checks the program of an agent, which no value may choose.
func (r *flowReader) agentCommand(o *fields) {
	command := o.t.Get("command")
	switch {
	case command.IsAbsent():
	case command.Kind == document.List && len(command.List) > 0:
		r.checkWords(command.List, o.fieldName("command"))
	default:
		r.Add(command.At, o.fieldName("command"), "must be a list of words, such as [my-agent, acp], not %s", command.KindName())
	}
}

func (r *flowReader) checkEnv(o *fields) {
	r.checkKind(o, "env", document.Object, "an object")
	r.secretRefs(o.t.Get("env"), o.fieldName("env"))
}

func (r *flowReader) mcpServers(o *fields) {
	r.checkKind(o, "mcpServers", document.Object, "an object")
	servers := o.t.Get("mcpServers")
	if servers == nil {
		return
	}
	for _, server := range servers.Fields {
		for _, name := range []string{"env", "headers"} {
			r.secretRefs(server.Value.Get(name), o.fieldName("mcpServers")+"."+server.Name+"."+name)
		}
	}
}

// checkKind checks the kind of a value that isn't bound.
func (r *flowReader) checkKind(o *fields, name string, want document.Kind, what string) {
	t := o.t.Get(name)
	if s, ok := t.AsText(); t.IsAbsent() || t.Kind == want || ok && hasBinding(s) {
		return
	}
	r.Add(t.At, o.fieldName(name), "must be %s, not %s", what, t.KindName())
}

// checkNumber checks a positive number.
func (r *flowReader) checkNumber(o *fields, name string) {
	t := o.t.Get(name)
	if s, ok := t.AsText(); t.IsAbsent() || ok && hasBinding(s) {
		return
	}
	switch v := t.Scalar.(type) {
	case int64:
		if v > 0 {
			return
		}
	case float64:
		if v > 0 {
			return
		}
	}
	r.Add(t.At, o.fieldName(name), "must be a positive number, not %s", t.KindName())
}

// checkInteger checks a whole number that is at least low.
func (r *flowReader) checkInteger(o *fields, name string, low int64) {
	t := o.t.Get(name)
	if s, ok := t.AsText(); t.IsAbsent() || ok && hasBinding(s) {
		return
	}
	if n, ok := t.AsInteger(); !ok || t.Kind != document.Scalar || n < low {
		r.Add(t.At, o.fieldName(name), "must be an integer of at least %d, not %s", low, t.KindName())
	}
}

// checkPrices checks what models cost.
func (r *flowReader) checkPrices(o *fields) {
	r.checkKind(o, "prices", document.Object, "an object of models")
	models := o.t.Get("prices")
	if models.IsAbsent() {
		return
	}
	for _, model := range models.Fields {
		path := o.fieldName("prices") + "." + model.Name
		price := r.openObject(model.Value, path)
		for _, name := range priceFields {
			t := price.takeField(name)
			if name == "input" || name == "output" {
				t = price.needField(name)
			}
			if s, ok := t.AsText(); ok && hasBinding(s) {
				continue
			}
			if t != nil && !isNumber(t.Scalar) {
				r.Add(t.At, price.fieldName(name), "must be a number of US dollars per million tokens, not %s", t.KindName())
			}
		}
		price.checkUnknown()
	}
}

// execInput refuses a binding in a command line: what an agent has put out would
// become a part of the command.
func (r *flowReader) execInput(o *fields) {
	command := o.needField("command")
	o.takeField("cwd")
	o.takeField("env")
	r.checkEnv(o)
	switch {
	case command == nil:
	case command.Kind == document.List && len(command.List) > 0:
		r.checkWords(command.List, o.fieldName("command"))
	case command.Kind != document.Scalar:
		r.Add(command.At, o.fieldName("command"), "must be a text or a list of words, not %s", command.KindName())
	default:
		s, ok := command.AsText()
		if !ok || strings.TrimSpace(s) == "" {
			r.Add(command.At, o.fieldName("command"), "must be a text or a list of words, not %s", command.KindName())
		}
		r.noSecretRef(command, o.fieldName("command"))
		if hasBinding(strings.ReplaceAll(s, `\{{`, "")) {
			r.Add(command.At, o.fieldName("command"), "a binding would let a value run commands of its own; "+
				"write the command as a list of words, or bind a variable in env and use \"$NAME\"")
		}
	}
}

func (r *flowReader) checkWords(words []*document.Value, field string) {
	for i, w := range words {
		s, ok := w.AsText()
		if !ok {
			r.Add(w.At, fmt.Sprintf("%s[%d]", field, i), "must be a text, not %s", w.KindName())
		}
		r.noSecretRef(w, fmt.Sprintf("%s[%d]", field, i))
		if i == 0 && hasBinding(s) {
			r.Add(w.At, fmt.Sprintf("%s[%d]", field, i), "a binding would let a value choose the program")
		}
	}
}

func (r *flowReader) setInput(o *fields) {
	set, merge, output := o.takeField("set"), o.takeField("merge"), o.takeField("output")
	if set == nil && merge == nil && output == nil {
		r.Add(o.t.At, o.path, "a set node has set, merge or output")
	}
	for _, f := range []document.Field{{Name: "set", Value: set}, {Name: "merge", Value: merge}} {
		if f.Value != nil && f.Value.Kind != document.Object {
			r.Add(f.Value.At, o.fieldName(f.Name), "must be an object of dotted paths and values, not %s", f.Value.KindName())
		}
	}
}

func (r *flowReader) askInput(o *fields) {
	o.needField("prompt")
	o.takeField("choices")
	r.checkKind(o, "choices", document.List, "a list")
	r.checkKind(o, "schema", document.Object, "an object")
	if rule := o.takeRaw("schema"); !hasBinding(string(rule)) {
		if err := schema.Check(rule); err != nil {
			r.Add(o.t.Get("schema").At, o.fieldName("schema"), "%v", err)
		}
	}
}

// flowInput checks a child run; the child itself is a file until
// [Definition.Embed] has put it in.
func (r *flowReader) flowInput(o *fields) {
	child := o.needField("flow")
	o.takeField("input")
	o.takeField("state")
	o.takeField("labels")
	r.checkKind(o, "state", document.Object, "an object")
	r.checkKind(o, "labels", document.Object, "an object")
	if child != nil {
		r.checkEmbeddable(child, o.fieldName("flow"))
	}
}
