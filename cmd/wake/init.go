package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/internal/topology"
)

func (a hostVerbs) initCommand() *cobra.Command {
	var c topology.Config
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create or update the streams, buckets and consumers on a server",
		Long: `Create or update the streams, buckets and consumers on a server. Nothing else
does. It may be run again: what isn't given stays as it is. ` + "`wake up`" + ` does it on
its own server.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			nc, err := a.connectServer(cmd.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			c.Names = a.names
			var report topology.Report
			err = a.retryUntil(cmd.Context(), "JetStream", func(ctx context.Context) (err error) {
				report, err = initTopology(ctx, nc, c)
				return err
			})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(report)
			}
			return printReport(a.out, report)
		},
	}
	topologyFlags(cmd.Flags(), &c)
	a.waitFlag(cmd.Flags())
	return cmd
}

// topologyFlags adds the settings of streams to a set of flags.
func topologyFlags(flags *pflag.FlagSet, c *topology.Config) {
	flags.IntVar(&c.Replicas, "replicas", 0, "`number` of servers that keep each stream (default: as it is, else 1)")
	flags.DurationVar(&c.MaxAge, "max-age", 0, "`how long` events are kept in the stream; -1ns for ever (default: as it is, else for ever)")
	flags.Var((*byteSize)(&c.MaxBytes), "max-bytes", "`size` of the stream of events, such as 20GB; -1 for no limit (default: as it is, else no limit)")
	flags.DurationVar(&c.LeaseTTL, "lease-ttl", 0, "`how long` a lease lives without being renewed (default: as it is, else 10s)")
}

func initTopology(ctx context.Context, nc *nats.Conn, c topology.Config) (topology.Report, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return topology.Report{}, err
	}
	report, err := topology.Init(ctx, js, c)
	return report, explainMismatch(err)
}

// explainMismatch says what the operator can do where streams aren't as they should be.
func explainMismatch(err error) error {
	if mismatch, ok := errors.AsType[*topology.Mismatch](err); ok {
		return serviceError(codeNotInitialized, mismatch.Remedy, "%s", strings.Join(mismatch.Problems, "; "))
	}
	return err
}

func printReport(w io.Writer, r topology.Report) error {
	p := printer{w: w}
	if !r.Changed() {
		p.printLine("all %d streams, buckets and consumers are as they should be", len(r.Items))
		return p.err
	}
	for _, item := range r.Items {
		var changes []string
		for _, c := range item.Changes {
			changes = append(changes, fmt.Sprintf("%s %s → %s", c.Field, c.Old, c.New))
		}
		line := fmt.Sprintf("%-10s%s %s %s", item.Action, item.Kind, item.Name, strings.Join(changes, ", "))
		p.printLine("%s", timeline.Line(line, 400))
	}
	return p.err
}

// explainServer says why the log of a server could not be opened, and what the operator can do.
func (a *app) explainServer(ctx context.Context, nc *nats.Conn, err error) error {
	js, jsErr := jetstream.New(nc)
	if jsErr != nil {
		return err
	}
	if problem := topology.Verify(ctx, js, a.names); problem != nil {
		err = problem
	}
	return explainMismatch(err)
}

// byteSize is a flag's number of bytes: 1024, 20MB, 1.5GiB.
type byteSize int64

func (b *byteSize) String() string { return strconv.FormatInt(int64(*b), 10) }

func (b *byteSize) Type() string { return "size" }

func (b *byteSize) Set(s string) error {
	n, err := flow.ParseSize(s)
	if err != nil {
		return err
	}
	*b = byteSize(n)
	return nil
}
