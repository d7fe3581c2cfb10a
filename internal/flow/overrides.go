package flow

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"wake/pkg/wire"
)

// overridable are the options of agents that a resumption or a fork may set,
// beside limits.*, and what each has to be.
func overridable(option string, v any) (known, ok bool) {
	switch option {
	case "model", "fallbackModel", "permissionMode", "systemPrompt", "appendSystemPrompt":
		_, ok = v.(string)
		return true, ok
	case "maxTurns":
		return true, isWhole(v)
	case "maxBudgetUsd":
		return true, isNumber(v)
	case "allowedTools", "disallowedTools":
		return true, isTexts(v)
	case "limits":
		limits, isObject := v.(map[string]any)
		return true, isObject && allNumbers(maps.Values(limits))
	}
	if strings.HasPrefix(option, "limits.") {
		return true, isNumber(v)
	}
	return false, false
}

func allNumbers(values iter.Seq[any]) bool {
	for v := range values {
		if !isNumber(v) {
			return false
		}
	}
	return true
}

func isNumber(v any) bool {
	switch v.(type) {
	case int64, uint64, float64, int:
		return true
	}
	return false
}

func isWhole(v any) bool {
	f, isFloat := v.(float64)
	return isNumber(v) && (!isFloat || f == math.Trunc(f))
}

func isTexts(v any) bool {
	all, ok := v.([]any)
	return ok && !slices.ContainsFunc(all, func(v any) bool { _, isText := v.(string); return !isText })
}

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
		if known, ok := overridable(name, fields[name]); known {
			if !ok {
				return fmt.Errorf("overrides: the value of %s can't be used", name)
			}
			continue
		}
		options, isObject := fields[name].(map[string]any)
		if !isObject || def == nil || def.Node(name) == nil {
			return fmt.Errorf("overrides: %q is neither an option of agents nor a node with options", name)
		}
		for _, option := range slices.Sorted(maps.Keys(options)) {
			if known, ok := overridable(option, options[option]); !known || !ok {
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
