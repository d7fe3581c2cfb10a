package flow

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// checkOverride are the options of agents that a resumption or a fork may set, and what
// each has to be.
func checkOverride(option string, v any) (known, ok bool) {
	switch option {
	case "model", "fallbackModel", "permissionMode", "systemPrompt", "appendSystemPrompt":
		_, ok = v.(string)
		return true, ok
	case "maxTurns":
		return true, isWhole(v)
	case "maxBudgetUsd":
		return true, isNumber(v)
	case "prices":
		return true, arePrices(v)
	case "allowedTools", "disallowedTools":
		return true, isTexts(v)
	}
	return false, false
}

// isLimit reports whether an override is a limit of the run, which nothing would keep to.
func isLimit(option string) bool { return option == "limits" || strings.HasPrefix(option, "limits.") }

// isNumber reports whether v is one that isn't negative; 0 lifts a limit.
func isNumber(v any) bool {
	switch n := v.(type) {
	case int64:
		return n >= 0
	case int:
		return n >= 0
	case float64:
		return n >= 0
	case uint64:
		return true
	}
	return false
}

func isWhole(v any) bool {
	f, isFloat := v.(float64)
	return isNumber(v) && (!isFloat || f == math.Trunc(f))
}

func arePrices(v any) bool {
	models, ok := v.(map[string]any)
	for _, price := range models {
		fields, isObject := price.(map[string]any)
		ok = ok && isObject && isNumber(fields["input"]) && isNumber(fields["output"])
		for name, usd := range fields {
			ok = ok && isNumber(usd) && slices.Contains(priceFields, name)
		}
	}
	return ok
}

func isTexts(v any) bool {
	all, ok := v.([]any)
	return ok && !slices.ContainsFunc(all, func(v any) bool { _, isText := v.(string); return !isText })
}

var errLimit = errors.New("limits of a run are given at its start and can't be changed; set maxTurns or maxBudgetUsd, which agents keep to")

// CheckOverrides fails unless overrides are options with values, or nodes of the
// run with such options. def is nil if the run has no flow.
func CheckOverrides(def *Definition, overrides wire.Raw) error {
	if len(overrides) == 0 || string(overrides) == string(wire.Null) {
		return nil
	}
	fields, ok := overrides.Any().(map[string]any)
	if !ok {
		return errors.New("overrides is no object of options")
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name == "workspace" {
			if err := checkWorkspace(def, fields[name]); err != nil {
				return err
			}
			continue
		}
		if isLimit(name) && (def == nil || def.Node(name) == nil) {
			return fmt.Errorf("overrides: %w", errLimit)
		}
		if known, ok := checkOverride(name, fields[name]); known {
			if !ok {
				return fmt.Errorf("overrides: the value of %s can't be used", name)
			}
			continue
		}
		options, isObject := fields[name].(map[string]any)
		if !isObject || def == nil || def.Node(name) == nil {
			return fmt.Errorf("overrides: %q is neither an option of agents nor a node with options", name)
		}
		if t := def.Node(name).Type; t != TypeAgent {
			return fmt.Errorf("overrides: node %s is of type %s, and only agents have options", name, t)
		}
		for _, option := range slices.Sorted(maps.Keys(options)) {
			if isLimit(option) {
				return fmt.Errorf("overrides of node %s: %w", name, errLimit)
			}
			if known, ok := checkOverride(option, options[option]); !known || !ok {
				return fmt.Errorf("overrides: %s of node %s can't be set so", option, name)
			}
		}
	}
	return nil
}

// checkWorkspace fails unless a value is a folder in which the whole run can
// work.
func checkWorkspace(def *Definition, v any) error {
	dir, _ := v.(string)
	switch {
	case !filepath.IsAbs(dir):
		return errors.New("overrides: workspace is no absolute path of a folder")
	case def != nil && def.Workspace != "" && def.Workspace != "run" && def.Workspace != "shared":
		return errors.New("overrides: workspace can't be set: the nodes of the run have folders of their own")
	}
	return nil
}

// priceFields are those of a price of a model.
var priceFields = []string{"input", "output", "cacheWrite5m", "cacheWrite1h", "cacheRead"}
