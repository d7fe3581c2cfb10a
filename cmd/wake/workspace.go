package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/wire"
)

// workspaceOptions say which snapshot of a folder is wanted, and what is to be done with it.
type workspaceOptions struct{ at, diff, out string }

func (a viewVerbs) workspaceCommand() *cobra.Command {
	var o workspaceOptions
	cmd := &cobra.Command{
		Use:   "workspace RUN",
		Short: "Show or restore the folder of a run, now or as of a point",
		Long: `Show what is in the folder of a run as it was last kept, now or at an earlier point,
compare it with that of another point, or restore it into a folder of your own. The
run isn't touched. A point has the last snapshot at or before it.`,
		Example: `    wake workspace @last                      what is in it
    wake workspace @last --at sfp-3           as of a point, see wake bookmarks
    wake workspace @last --at 41 --diff 97    what has changed since
    wake workspace @last --at sfp-3 -o before restored`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showWorkspace(cmd.Context(), args[0], o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.at, "at", "", "the `point`: a label, sfp-N, NODE#1:start or a position of the log (default: the present)")
	flags.StringVar(&o.diff, "diff", "", "another `point`: print what differs there")
	flags.StringVarP(&o.out, "output", "o", "", "`folder` to restore it into: one that isn't there yet, or is empty")
	completeFlag(cmd, "at", a.completeBookmark)
	completeFlag(cmd, "diff", a.completeBookmark)
	completeFlag(cmd, "output", completeDir)
	return cmd
}

func (a viewVerbs) showWorkspace(ctx context.Context, ref string, o workspaceOptions) error {
	if o.diff != "" && o.out != "" {
		return usageError("one after the other", "--diff and --output don't go together")
	}
	s, run, err := a.openRun(ctx, ref)
	if err != nil {
		return err
	}
	defer s.close()
	log, err := a.readerOn(ctx, s.conn)
	if err != nil {
		return err
	}
	packs, err := workspace.NewReader(log.Names(), log.Keys(), log.Pack)
	if err != nil {
		return err
	}
	kept, err := s.folderAt(ctx, log, run, o.at)
	if err != nil {
		return err
	}
	switch {
	case o.diff != "":
		other, err := s.folderAt(ctx, log, run, o.diff)
		if err != nil {
			return err
		}
		return a.showChanges(ctx, packs, kept.Snapshot, other.Snapshot)
	case o.out != "":
		return a.restoreWorkspace(ctx, packs, kept, o.out)
	}
	if err := kept.List(ctx, packs); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(kept)
	}
	return a.printFolder(kept)
}

// folderAt returns the folder as of a point; "": the present.
func (s *verbSession) folderAt(ctx context.Context, log *feed.Reader, run, at string) (history.Folder, error) {
	state, err := s.stateAt(ctx, run, at)
	if err != nil {
		return history.Folder{}, err
	}
	f, err := history.FolderOf(ctx, log, state)
	f.At = at
	return f, err
}

func (a viewVerbs) restoreWorkspace(ctx context.Context, packs *workspace.Reader, kept history.Folder, dir string) error {
	path, err := filepath.Abs(dir)
	if err != nil {
		return usageError("name a folder", "--output: %w", err)
	}
	if list, err := os.ReadDir(path); err == nil && len(list) > 0 {
		return usageError("name one that isn't there yet", "--output: %s isn't empty", path)
	}
	content, err := packs.List(ctx, kept.Snapshot.ID)
	if err != nil {
		return history.FolderError(err)
	}
	if _, err := packs.Restore(ctx, kept.Snapshot.ID, path); err != nil {
		return history.FolderError(err)
	}
	kept.Tree, kept.Restored = content.Tree, path
	if a.json {
		return a.printJSON(kept)
	}
	p := printer{w: a.out}
	p.printLine("%s: %d files, %s, as of position %d", path, kept.Snapshot.Files, bytesText(uint64(kept.Snapshot.Bytes)), kept.Snapshot.Position) // bytes aren't negative
	p.printLeftOut(kept.Snapshot)
	return p.err
}

func (a viewVerbs) printFolder(k history.Folder) error {
	p := printer{w: a.out}
	p.printLine("snapshot  at position %d, at work of %s", k.Snapshot.Position, k.Snapshot.Node)
	p.printLine("holds     %d files, %s", k.Snapshot.Files, bytesText(uint64(k.Snapshot.Bytes))) // bytes aren't negative
	p.printLine("tree      %s", k.Tree)
	if len(k.Working) > 0 {
		p.printLine("working   %s: what they had written may be in it", strings.Join(k.Working, ", "))
	}
	if k.Snapshot.Unstable {
		p.printLine("unstable  files changed whenever they were read")
	}
	p.printLeftOut(k.Snapshot)
	if len(k.Content) == 0 {
		return p.err
	}
	p.printLine("")
	t := newTable(a.out, "MODE", "SIZE", "PATH")
	for _, f := range k.Content {
		t.addRow(fileCells(&f)...)
	}
	p.printTable(t)
	return p.err
}

// fileCells are mode, size and path of a file.
func fileCells(f *workspace.File) []string {
	switch f.Type {
	case "folder":
		return []string{f.Mode, "-", f.Path + "/"}
	case "link":
		return []string{"link", "-", f.Path + " → " + f.Target}
	}
	return []string{f.Mode, bytesText(uint64(f.Size)), f.Path} // sizes aren't negative
}

func (p *printer) printLeftOut(f *wire.FolderSnapshot) {
	for _, l := range f.LeftOut {
		p.printLine("left out  %s", l)
	}
	if f.Omitted > 0 {
		p.printLine("left out  %d more", f.Omitted)
	}
}

func (a viewVerbs) showChanges(ctx context.Context, packs *workspace.Reader, from, to *wire.FolderSnapshot) error {
	d, err := history.CompareFolders(ctx, packs, from, to)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(d)
	}
	p := printer{w: a.out}
	if len(d.Changes) == 0 {
		p.printLine("the same")
	}
	for _, c := range d.Changes {
		p.printLine("%s", changeText(c))
	}
	return p.err
}

func changeText(c workspace.Change) string {
	f := c.B
	if f == nil {
		f = c.A
	}
	cells := fileCells(f)
	about := cells[1]
	switch {
	case c.A == nil || c.B == nil:
	case c.A.Type != c.B.Type:
		about = c.A.Type + " → " + c.B.Type
	case c.A.Mode != c.B.Mode:
		about = c.A.Mode + " → " + c.B.Mode
	case c.A.Size != c.B.Size:
		about = fileCells(c.A)[1] + " → " + cells[1]
	}
	return strings.TrimSpace(fmt.Sprintf("%-8s %s  %s", c.Change, cells[2], strings.TrimPrefix(about, "-")))
}

// compareFolders compares the folders of two runs as they were last kept; nil if there is nothing to compare.
func (a viewVerbs) compareFolders(ctx context.Context, log *feed.Reader, from, to *wire.State) (*history.FolderChanges, error) {
	kept, err := history.LastFolder(ctx, log, from, from.Position.Seq)
	if err != nil {
		return nil, err
	}
	other, err := history.LastFolder(ctx, log, to, to.Position.Seq)
	if err != nil || kept == nil || other == nil || kept.Refused+other.Refused != "" || kept.ID == other.ID {
		return nil, err
	}
	packs, err := workspace.NewReader(log.Names(), log.Keys(), log.Pack)
	if err != nil {
		return nil, err
	}
	d, err := history.CompareFolders(ctx, packs, kept, other)
	return &d, err
}
