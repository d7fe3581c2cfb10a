package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wake/services/alerter"
)

// newAlerter makes an alerter that prints its alerts to out, which may be nil.
func newAlerter(out io.Writer) constructor {
	return func(_ context.Context, p *process) (runnable, error) {
		return alerter.New(alerter.Config{Out: out}, p.log, p.logger("alerter"))
	}
}

func (a *app) alerterCommand() *cobra.Command {
	return a.serviceCommand("alerter", "Tell what deserves attention", func(*pflag.FlagSet) {}, newAlerter(a.out))
}
