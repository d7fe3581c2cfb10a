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
			problems = append(problems, fmt.Errorf("%s=%q: %w", EnvName(f.Name), value, errors.Unwrap(err)))
		}
	})
	if len(problems) == 0 {
		return nil
	}
	return &Error{Code: CodeUsage, Err: errors.Join(problems...)}
}
