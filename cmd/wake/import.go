package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/internal/eventlog"
	"wake/internal/export"
	"wake/internal/timeline"
	"wake/pkg/wire"
)

func (a *app) importCommand() *cobra.Command {
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
		Args: arguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := a.input(args)
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }() // it was only read
			return a.importRun(cmd.Context(), in)
		},
	}
}

func (a *app) importRun(ctx context.Context, in io.Reader) error {
	file, done, err := seekable(in)
	if err != nil {
		return err
	}
	defer done()
	log, err := a.openLog(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	m := a.newMeter("imported", "events")
	var im export.Import
	err = writing(ctx, log, func() error {
		im, err = export.Restore(ctx, log, file, func(n, of int) {
			m.n = n
			m.show(fmt.Sprintf(" of %d", of))
		})
		return err
	})
	m.end()
	if err != nil {
		return importError(ctx, im, err)
	}
	if a.json {
		return a.printJSON(im)
	}
	line := fmt.Sprintf("%s: %d events, %d new", im.RunID, im.Events, im.Added)
	if _, err = fmt.Fprintln(a.out, timeline.Line(line, maxMessage)); err == nil {
		a.noteRemoved(ctx, log, im.RunID)
	}
	return err
}

// noteRemoved says that a run was deleted here once, and so isn't recorded again. If
// nobody answers there is nothing to say.
func (a *app) noteRemoved(ctx context.Context, log *eventlog.Log, runID string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := api.Call[wire.StatusResponse](ctx, log.Conn(), a.names, wire.VerbStatus, wire.StatusRequest{Run: runID})
	if e, ok := errors.AsType[*wire.APIError](err); ok && e.Code == wire.CodeRunNotFound && strings.Contains(e.Message, "was deleted") {
		a.note("note: %s; the recorder doesn't record it again: `wake replay` and `wake export` read the stream\n", timeline.Line(e.Message, maxMessage))
	}
}

func importError(ctx context.Context, im export.Import, err error) error {
	fault, isFault := errors.AsType[*export.FileError](err)
	switch {
	case isFault:
		return failure(string(wire.CodeCorruptedData), "nothing was imported; export the run again", "import: %w", fault)
	case errors.Is(err, export.ErrAnother):
		return failure(codeRunExists, "wake status "+im.RunID, "import: run %s: %w", im.RunID, err)
	case errors.Is(err, eventlog.ErrFenced):
		return failure(codeFailed, "import the file again", "import: somebody else is writing run %s: %w", im.RunID, err)
	case ctx.Err() != nil:
		return failure(codeInterrupt, "import the file again: what is there isn't added twice", "interrupted")
	}
	return err
}

// seekable returns the input as what can be read twice: itself, or a copy of it
// that done removes.
func seekable(in io.Reader) (file io.ReadSeeker, done func(), err error) {
	if f, is := in.(*os.File); is {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return f, func() {}, nil
		}
	}
	f, err := os.CreateTemp("", "wake-import-*")
	if err != nil {
		return nil, nil, fmt.Errorf("import: %w", err)
	}
	done = func() {
		_ = f.Close() // nobody needs it any more
		_ = os.Remove(f.Name())
	}
	if _, err = io.Copy(f, in); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("import: read the input: %w", err)
	}
	return f, done, nil
}
