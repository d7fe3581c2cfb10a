package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/budget"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a runVerbs) budgetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "budget",
		Short: "Bound what runs spend together, by label and by day",
		Long: `Bound what runs spend together, by label and by day. Runners keep to it, all of them to the
same sums, which are those of wake stats. Budgets are the installation's: where the server has
users, the one with the credentials of init sets them. What a single run may spend is set by its flow,
or by wake run --budget-usd.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.budgetSetCommand(), a.budgetListCommand(), a.budgetRemoveCommand())
	return cmd
}

func (a runVerbs) budgetSetCommand() *cobra.Command {
	var given wire.SharedBudget
	var labels []string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set a budget, or change one",
		Long: `Set a budget, or change the one of this name, from now on.

    wake budget set core --label team=core --per day --usd 50
    wake budget set core --usd 80                              # grants more; the rest stays as it is
    wake budget set all --usd 1000 --then abort

It is told at 50, 80 and 100 %. Runs that it covers pause when it is spent, those that begin later too,
and go on by themselves when there is more: the next day (UTC), or when more is set.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(labels) > 1 {
				return usageError("wake budget set --help", "a budget is of one label: give --label once")
			}
			given.Label = strings.Join(labels, "")
			return withStore(cmd.Context(), a, budget.Open, func(ctx context.Context, store *budget.Store) error {
				b, err := store.Edit(ctx, args[0], func(b *wire.SharedBudget) { giveBudget(b, given, cmd.Flags()) })
				if _, invalid := errors.AsType[*budget.InvalidError](err); invalid {
					return usageError("wake budget set --help", "%w", err)
				}
				if err != nil {
					return err
				}
				return a.printAnswer(b, fmt.Sprintf("set budget %s: %s", b.Name, budgetTerms(b)))
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&labels, "label", nil, "of runs with this label, `key=value`; '': of all runs (default: as it is, else of all runs)")
	flags.StringVar(&given.Per, "per", "", "anew each `day`, UTC; '': of all time (default: as it is, else of all time)")
	flags.Float64Var(&given.Usd, "usd", 0, "what they may cost, in US `dollars`; 0: no bound (default: as it is)")
	flags.Int64Var(&given.Tokens, "tokens", 0, "how many `tokens` they may use, those of the cache included; 0: no bound (default: as it is)")
	flags.StringVar(&given.Then, "then", "", "what follows when that is spent: `pause` or abort (default: as it is, else pause)")
	completeFlag(cmd, "per", cobra.FixedCompletions([]string{wire.BudgetPerDay}, cobra.ShellCompDirectiveNoFileComp))
	completeFlag(cmd, "then", cobra.FixedCompletions([]string{wire.BudgetPause, wire.BudgetAbort}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// giveBudget changes what flags have given of a budget, and nothing else.
func giveBudget(b *wire.SharedBudget, given wire.SharedBudget, flags *pflag.FlagSet) {
	for name, give := range map[string]func(){
		"label":  func() { b.Label = given.Label },
		"per":    func() { b.Per = given.Per },
		"usd":    func() { b.Usd = given.Usd },
		"tokens": func() { b.Tokens = given.Tokens },
		"then":   func() { b.Then = given.Then },
	} {
		if flags.Changed(name) {
			give()
		}
	}
	b.Then = cmp.Or(b.Then, wire.BudgetPause)
}

// budgetTerms says what a budget bounds, and what follows.
func budgetTerms(b wire.SharedBudget) string {
	var bounds []string
	if b.Usd > 0 {
		bounds = append(bounds, fmt.Sprintf("$%.2f", b.Usd))
	}
	if b.Tokens > 0 {
		bounds = append(bounds, fmt.Sprintf("%d tokens", b.Tokens))
	}
	of := "all runs"
	if b.Label != "" {
		of = "runs with " + timeline.Line(b.Label, maxMessage)
	}
	if b.Per != "" {
		of += " per " + b.Per
	}
	return fmt.Sprintf("%s for %s, then %s", strings.Join(bounds, " or "), of, b.Then)
}

func (a runVerbs) budgetListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List budgets, and what is spent of them",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showAnswer(cmd.Context(), a.app, wire.VerbBudgets, wire.BudgetsRequest{}, func(answer wire.BudgetsResponse) error {
				return printBudgets(a.out, answer.Budgets, time.Now())
			})
		},
	}
}

func printBudgets(w io.Writer, all []wire.SharedBudget, now time.Time) error {
	if len(all) == 0 {
		_, err := io.WriteString(w, "there are no budgets\n")
		return err
	}
	t := newTable(w, "NAME", "OF", "PER", "USD", "TOKENS", "SPENT", "THEN")
	for _, b := range all {
		usd, tokens := fmt.Sprintf("%.2f", b.Spent.Usd), fmt.Sprint(b.Spent.Tokens)
		if b.Usd > 0 {
			usd += fmt.Sprintf(" of %.2f", b.Usd)
		}
		if b.Tokens > 0 {
			tokens += fmt.Sprintf(" of %d", b.Tokens)
		}
		share, _ := budget.Share(b, now)
		of := cmp.Or(b.Label, "all runs")
		t.addRow(b.Name, timeline.Line(of, maxMessage), b.Per, usd, tokens, fmt.Sprintf("%.0f %%", math.Floor(share*100+1e-6)), b.Then)
	}
	return t.flush()
}

func (a runVerbs) budgetRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a budget; runs that it has paused go on",
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd.Context(), a, budget.Open, func(ctx context.Context, store *budget.Store) error {
				if err := store.Remove(ctx, args[0]); errors.Is(err, budget.ErrNone) {
					return serviceError(string(wire.CodeNotFound), "wake budget list", "there is no budget %q", args[0])
				} else if err != nil {
					return err
				}
				return a.printAnswer(map[string]any{"name": args[0], "removed": true}, "removed budget "+args[0])
			})
		},
	}
}
