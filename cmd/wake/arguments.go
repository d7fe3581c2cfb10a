package main

import (
	"strings"

	"github.com/spf13/cobra"
)

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
