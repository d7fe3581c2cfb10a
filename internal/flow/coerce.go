package flow

import (
	"errors"
	"fmt"
	"slices"

	"code.wake.dev/wake/pkg/wire"
)

// textFields are the fields of an input that are text for the worker that executes the node.
// A binding may have made anything of them.
var textFields = map[NodeType][]string{
	TypeAgent: {"prompt", "model", "fallbackModel", "cwd", "permissionMode", "systemPrompt", "appendSystemPrompt"},
	TypeExec:  {"command", "cwd"},
	TypeAsk:   {"prompt"},
}

// coerceInput makes text of what has to be text: lists and objects become JSON, as
// within a text. What a node can't do without must not be bound to nothing.
func coerceInput(t NodeType, input map[string]any) error {
	for _, name := range textFields[t] {
		if v, ok := input[name]; ok {
			input[name] = toText(v)
		}
	}
	if env, ok := input["env"].(map[string]any); ok {
		for name, v := range env {
			if env[name] = toText(v); env[name] == nil {
				delete(env, name)
			}
		}
	}
	for _, name := range []string{"addDirs", "allowedTools", "disallowedTools"} {
		if list, ok := input[name].([]any); ok {
			input[name] = presentTexts(list)
		}
	}
	return checkComplete(t, input)
}

var errNoPrompt = errors.New("input.prompt is bound to nothing")

// checkComplete checks that prompt and command are there.
func checkComplete(t NodeType, input map[string]any) error {
	prompted := t == TypeAgent && input["messages"] == nil || t == TypeAsk
	if prompted && input["prompt"] == nil {
		return errNoPrompt
	}
	words, _ := input["command"].([]any)
	if i := slices.Index(words, nil); i >= 0 && t == TypeExec {
		return fmt.Errorf("input.command[%d] is bound to nothing", i)
	}
	return nil
}

// toText is a value as text; a list stays one, of texts. Nothing is nil.
func toText(v any) any {
	switch v := v.(type) {
	case nil, string:
		return v
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = toText(item)
		}
		return out
	case wire.Raw:
		if v.Any() == nil {
			return nil
		}
		return v.Plain()
	}
	raw, err := wire.Marshal(v)
	if err != nil {
		return nil
	}
	return raw.Plain()
}

func presentTexts(list []any) []any {
	var out []any
	for _, v := range list {
		if text := toText(v); text != nil {
			out = append(out, text)
		}
	}
	return out
}

// elementsOf takes a list apart.
func elementsOf(list wire.Raw) []wire.Raw {
	var out []wire.Raw
	if !isList(list) || wire.Unmarshal(list, &out) != nil {
		return nil
	}
	return out
}
