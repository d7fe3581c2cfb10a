package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wake/internal/redact"
)

// redactFlag adds the flag of processes that write events of agents.
func (a *app) redactFlag(flags *pflag.FlagSet) {
	flags.StringVar(&a.redact, "redact", string(redact.Known),
		"which `secrets` are taken out of events: "+redactLevels()+"; known are this process's own and well-known forms, all what is assigned to names like password, too")
}

// completeRedact completes the flag of a command.
func completeRedact(cmd *cobra.Command) {
	if cmd.Flags().Lookup("redact") != nil {
		completeFlag(cmd, "redact", cobra.FixedCompletions(strings.Split(redactLevels(), ", "), cobra.ShellCompDirectiveNoFileComp))
	}
}

func redactLevels() string {
	var levels []string
	for _, l := range redact.Levels() {
		levels = append(levels, string(l))
	}
	return strings.Join(levels, ", ")
}

// secrets returns what is taken out of events that this process writes.
func (a *app) secrets() (*redact.Set, error) {
	s, err := redact.New(redact.Level(a.redact), redact.Environ(os.Environ()))
	if err != nil {
		return nil, usage("the levels are "+redactLevels(), "--redact: there is no level %q", a.redact)
	}
	return s, nil
}
