package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// alsoFlag adds the flag for the prefixes of further installations on the same server.
func alsoFlag(flags *pflag.FlagSet, also *[]string) {
	flags.StringSliceVar(also, "also", nil, "also those of the installations with these `prefixes`, on the same server; runs are then named PREFIX:RUN")
}

// askEach asks the installation of --prefix, and those of further prefixes. Of is what the ids of its runs are to begin with.
func (a *app) askEach(also []string, ask func(names subjects.Names, of string) error) error {
	if len(also) == 0 {
		return ask(a.names, "")
	}
	asked := []string{}
	for _, prefix := range append([]string{a.prefix}, also...) {
		names, err := subjects.New(prefix)
		if err != nil {
			return usageError("", "--also: %w", err)
		}
		if slices.Contains(asked, prefix) {
			continue
		}
		asked = append(asked, prefix)
		if err := ask(names, prefix+":"); err != nil {
			return fmt.Errorf("installation %s: %w", prefix, err)
		}
	}
	return nil
}

// lineFor is a verb for a run as it is named where several installations are shown.
func lineFor(verb, run string, several bool) string {
	prefix, id, _ := strings.Cut(run, ":")
	if !several {
		return fmt.Sprintf("wake %s %s", verb, ask.ShellWord(run))
	}
	return fmt.Sprintf("wake %s %s --prefix %s", verb, ask.ShellWord(id), prefix)
}

// hintPrefix has the error of a verb, that there is no run, say how to ask for one of another installation, as --also names them.
func (a *app) hintPrefix(cmd *cobra.Command, args []string, err error) error {
	e, unknown := errors.AsType[*wire.APIError](err)
	if unknown = unknown && e.Code == wire.CodeRunNotFound && len(args) > 0; !unknown {
		return err
	}
	prefix, run, cut := strings.Cut(args[0], ":")
	if _, bad := subjects.New(prefix); !cut || bad != nil || subjects.CheckID(run) != nil {
		return err
	}
	told := *e
	told.Hint = "of another installation: " + lineFor(strings.TrimPrefix(cmd.CommandPath(), "wake "), args[0], true)
	return &told
}
