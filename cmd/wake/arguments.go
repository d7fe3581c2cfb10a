package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// runHelp is said by all verbs whose first argument is a run.
const runHelp = "RUN is an id, the beginning of one, the value of a label, a session id, or @last."

// completeVerb gives a verb, and those below it, what follows from its Use: how its arguments are checked, and what is
// said and completed of a run.
func (a *app) completeVerb(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		a.completeVerb(below)
	}
	if cmd.Args == nil && cmd.Runnable() {
		cmd.Args = checkArguments
	}
	if names := strings.Fields(cmd.Use)[1:]; len(names) > 0 && strings.HasPrefix(strings.Trim(names[0], "[{"), "RUN") {
		cmd.Long += "\n\n" + runHelp
		if cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = a.completeRun
		}
	}
}

// checkArguments checks the arguments of a verb by its Use, such as "send RUN MSG" or
// "tail [RUN]": those in brackets may be left out.
func checkArguments(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	switch {
	case len(args) > len(names):
		return usageError(cmd.Parent().CommandPath()+" "+cmd.Use, "%q is too much", args[len(names)])
	case len(args) < len(names) && !strings.HasPrefix(names[len(args)], "["):
		return usageError(cmd.Parent().CommandPath()+" "+cmd.Use, "%s is missing", names[len(args)])
	}
	return nil
}
