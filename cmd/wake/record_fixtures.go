package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/agent/fixture"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/pkg/wire"
)

func (a runVerbs) recordFixturesCommand() *cobra.Command {
	var o runOptions
	var flow, run, dir string
	cmd := &cobra.Command{
		Use:   "record-fixtures (--flow FLOW | --run RUN) --output DIR",
		Short: "Record the agents of a run, to be played again with run --fixtures",
		Long: `Run a flow and record its agents, or record those of a run that has ended, to be
played again with ` + "`wake run --fixtures DIR`" + `: a file per node, a call per execution.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dir == "":
				return usageError("wake record-fixtures --flow FLOW --output DIR", "--output: where to?")
			case (flow == "") == (run == ""):
				return usageError("wake record-fixtures --flow FLOW --output DIR", "either --flow or --run is needed")
			}
			return a.recordFixtures(cmd.Context(), flow, run, dir, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&flow, "flow", "", "run this flow `file`")
	flags.StringVar(&run, "run", "", "record this `run`, which has ended")
	flags.StringVar(&dir, "output", "", "`folder` to write to; files of the same nodes are replaced")
	flags.StringVar(&dir, "out", "", "the same as --output")
	flags.Lookup("out").Hidden = true
	runFlags(flags, &o)
	return cmd
}

func (a runVerbs) recordFixtures(ctx context.Context, flow, run, dir string, o runOptions) error {
	var request wire.RunRequest
	var err error
	if flow != "" {
		if request, err = a.buildRequest(flow, o); err != nil {
			return err
		}
		run = request.RunID
	}
	log, err := a.openReader(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	var failed error
	if flow != "" {
		last, err := a.submitAndWatch(ctx, log, request)
		if err != nil {
			return err
		}
		failed = outcomeError(run, last)
	} else if run, err = a.runID(ctx, log, run); err != nil {
		return err
	}
	files, err := recordedFixtures(ctx, log, run)
	if err != nil {
		return err
	}
	if err := writeFiles(dir, files); err != nil {
		return err
	}
	return errors.Join(failed, a.printAnswer(map[string]any{"runId": run, "files": slices.Sorted(maps.Keys(files))},
		fmt.Sprintf("recorded %d node(s) of run %s in %s", len(files), run, dir)))
}

// recordedFixtures returns the fixture files of a run.
func recordedFixtures(ctx context.Context, log *feed.Reader, run string) (map[string][]byte, error) {
	var r fixture.Recorder
	fenced := claims{}
	for entry, err := range log.Read(ctx, eventlog.Query{Run: run}) {
		if err != nil {
			return nil, err
		}
		if entry.Event == nil || fenced.isVoid(entry.Event) {
			continue
		}
		whole, err := log.Inline(ctx, entry.Event)
		if err != nil {
			return nil, err
		}
		if err := r.Observe(whole); err != nil {
			return nil, err
		}
	}
	return r.Files()
}

// writeFiles writes files below a folder. Their names come from node ids, which
// must not lead out of it.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return usageError("", "--output: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return usageError("", "--output: %w", err)
	}
	defer func() { _ = root.Close() }() // each file was written and closed
	for name, content := range files {
		if err := root.MkdirAll(path.Dir(name), 0o750); err != nil {
			return fmt.Errorf("record fixtures: %w", err)
		}
		if err := root.WriteFile(name, content, 0o640); err != nil {
			return fmt.Errorf("record fixtures: %w", err)
		}
	}
	return nil
}
