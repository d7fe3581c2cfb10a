package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	_ "time/tzdata" // quiet hours have time zones, also where the system has none

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/alerter"
)

type alerterOptions struct {
	rules string                     // file; "": defaults
	link  func(a *wire.Alert) string // by which an alert is answered; nil: by none
}

func alerterFlags(flags *pflag.FlagSet, o *alerterOptions) {
	flags.StringVar(&o.rules, "rules", "", "`file` that says what is an alert and where alerts go; read again when it changes (default: print them)")
}

// newAlerter makes an alerter that prints its alerts to out, which may be nil. With
// rules it delivers them instead, to terminals, too.
func newAlerter(out io.Writer, o *alerterOptions) constructor {
	return func(_ context.Context, p *process) (runnable, error) {
		if o.rules == "" {
			return alerter.New(alerter.Config{Out: out, Health: p.health, Trial: p.trial("alerter")}, p.log, p.serviceLogger("alerter"))
		}
		file, err := filepath.Abs(o.rules)
		if err != nil {
			return nil, err
		}
		src, rules, settings, err := readRules(file)
		if err != nil {
			return nil, err
		}
		a, err := alerter.New(alerter.Config{Settings: &settings, Health: p.health, Trial: p.trial("alerter")}, p.log, p.serviceLogger("alerter"))
		if err != nil {
			return nil, err
		}
		d := deliver.New(deliver.Config{Out: out, Link: o.link}, rules, p.log, p.serviceLogger("alerter"))
		p.metrics.MustRegister(d)
		p.keepPart("sinks", d.Run)
		p.keepPart("rules", func(ctx context.Context) error {
			return deliver.Watch(ctx, file, src, func(now []byte) { p.followRules(ctx, file, now, a, d) })
		})
		return a, nil
	}
}

// followRules makes an alerter follow rules that have changed. It goes on with the old
// ones if there is something wrong with the new.
func (p *process) followRules(ctx context.Context, file string, src []byte, a *alerter.Alerter, d *deliver.Deliverer) {
	rules, settings, err := parseRules(file, src)
	if err == nil {
		err = a.Set(settings)
	}
	const part = "alerter: rules"
	if err != nil {
		p.health.Set(part, fmt.Errorf("rules are refused, the old ones stay: %w", err))
		return
	}
	p.health.Set(part, nil)
	d.Replace(rules)
	p.serviceLogger("alerter").InfoContext(ctx, "rules are followed", "file", file)
}

func readRules(file string) (src []byte, rules *deliver.Rules, settings alerter.Settings, err error) {
	if src, err = os.ReadFile(file); err != nil {
		return nil, nil, settings, serviceError(codeRulesInvalid, "--rules names a YAML file; docs/alerts.md says what is in it", "rules: %w", err)
	}
	rules, settings, err = parseRules(file, src)
	return src, rules, settings, err
}

func parseRules(file string, src []byte) (*deliver.Rules, alerter.Settings, error) {
	settings := alerter.Defaults()
	rules, err := deliver.Parse(filepath.Base(file), src, os.LookupEnv, &settings)
	if err != nil {
		return nil, settings, serviceError(codeRulesInvalid, "docs/alerts.md says what is in the file", "%w", err)
	}
	return rules, settings, nil
}

func (a hostVerbs) alerterCommand() *cobra.Command {
	var o alerterOptions
	return a.serviceCommand("alerter", "Tell what deserves attention", func(flags *pflag.FlagSet) { alerterFlags(flags, &o) }, newAlerter(a.out, &o))
}

// openRules reads the rules that a verb needs.
func openRules(file string) (*deliver.Rules, alerter.Settings, error) {
	if file == "" {
		return nil, alerter.Settings{}, usageError("--rules FILE", "--rules is missing")
	}
	_, rules, settings, err := readRules(file)
	return rules, settings, err
}
