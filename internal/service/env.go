package service

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// EnvName is the environment variable that stands for a flag: nats-url is
// WAKE_NATS_URL.
func EnvName(flag string) string {
	return "WAKE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// FromEnv gives every flag that isn't set the value of its environment
// variable. A variable that is empty counts as not set. The errors name the
// variables, not the flags; flags set by FromEnv count as changed.
func FromEnv(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var problems []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		value, ok := lookup(EnvName(f.Name))
		if !ok || value == "" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			problems = append(problems, fmt.Errorf("%s=%q: %w", EnvName(f.Name), value, BadValue(f, err)))
		}
	})
	if len(problems) == 0 {
		return nil
	}
	return &Error{Code: CodeUsage, Err: errors.Join(problems...)}
}

// BadValue says what is wrong with the value that a flag has refused, in words
// for the user who has typed it. Flags of other than the usual types say it themselves.
func BadValue(f *pflag.Flag, refusal error) error {
	switch f.Value.Type() {
	case "int", "int64":
		return errors.New("it is no whole number")
	case "uint64":
		return errors.New("it is no whole number from 0 on")
	case "float64":
		return errors.New("it is no number")
	case "duration":
		return errors.New("it is no span of time, such as 500ms, 90s or 5m")
	case "bool":
		return errors.New("it is neither true nor false")
	}
	if cause := errors.Unwrap(refusal); cause != nil {
		return cause
	}
	return refusal
}
