package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/inlet"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a fileVerbs) importCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import [FILE|-]",
		Short: "Add a run that wake export wrote as jsonl",
		Long: `Add a run that wake export wrote as jsonl, from this or another server:

    wake export RUN -o run.jsonl
    wake import run.jsonl

The file is checked first: if a line was changed, lost, added or moved, it is named
and nothing is written. The events stay as they are, and the run says that it was
imported: it can be looked at in every way, and isn't executed. To import a file
again adds nothing.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "-"
			if len(args) > 0 {
				name = args[0]
			}
			in, err := a.openInput(name)
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }() // it was only read
			return a.importRun(cmd.Context(), in)
		},
	}
}

func (a fileVerbs) importRun(ctx context.Context, in io.Reader) error {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	m := a.newMeter("import", unitBytes)
	var im export.Import
	err = inlet.Send(ctx, nc, a.names, wire.IngestRequest{Format: string(inlet.Exported)}, a.newInput(in, sizeOf(in), m), &im)
	m.eraseLine()
	switch {
	case err != nil && ctx.Err() != nil:
		return serviceError(codeInterrupt, "import the file again: what is there isn't added twice", "interrupted")
	case err != nil:
		return err
	}
	removed := a.askRemoved(ctx, nc, im.RunID)
	if a.json {
		out := importedRun{Import: im}
		if removed != nil {
			out.RemovedAt = removed.RemovedAt
		}
		return a.printJSON(out)
	}
	line := fmt.Sprintf("%s: %d events, %d new", im.RunID, im.Events, im.Added)
	if _, err = fmt.Fprintln(a.out, timeline.Line(line, maxMessage)); err == nil && removed != nil {
		a.printNote("note: %s; the recorder doesn't record it again: `wake replay` and `wake export` read the stream\n", timeline.Line(removed.Message, maxMessage))
	}
	return err
}

// importedRun is what --json tells of an import.
type importedRun struct {
	export.Import

	RemovedAt int64 `json:"removedAt,omitempty"` // of a run that was deleted here, and isn't recorded again, Unix ms
}

// askRemoved asks whether a run was deleted here once, and so isn't recorded again. If
// no service answers, or the user may not ask, there is nothing to say.
func (a fileVerbs) askRemoved(ctx context.Context, nc *nats.Conn, runID string) *wire.APIError {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	removed, err := api.RunRemoved(ctx, nc, a.names, runID)
	if err != nil {
		return nil
	}
	return removed
}
