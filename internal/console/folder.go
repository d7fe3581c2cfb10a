package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/wire"
)

// folderQuery is what a URL says of the files of a run.
type folderQuery struct {
	Run, At, Since, Dir string
}

func readFolderQuery(r *http.Request, run string) folderQuery {
	return folderQuery{Run: run, At: r.FormValue("at"), Since: r.FormValue("since"), Dir: r.FormValue("dir")}
}

// Below is the address of what is in a folder.
func (q folderQuery) Below(dir string) string {
	return runAddress(q.Run) + "/files?" + encodeQuery("at", q.At, "dir", dir)
}

// File is the address of a file, with what has changed in it if a position is given since when.
func (q folderQuery) File(name, since string) string {
	return runAddress(q.Run) + "/file?" + encodeQuery("at", q.At, "since", since, "path", name)
}

// files are those of a run at a position: of the whole folder, with what has changed, or of a folder in it.
type files struct {
	history.Folder

	Query   folderQuery
	Rows    []fileRow
	More    int // rows that aren't shown
	Since   *wire.FolderSnapshot
	Changes []workspace.Change
	Left    int // changes that aren't shown

	Beginning uint64 // position at which the run began
	Before    uint64 // position right before the snapshot
}

// fileRow is a file, folder or link of a folder.
type fileRow struct {
	workspace.File

	Name string
}

// What is shown of files.
const (
	maxFiles   = 300     // of one folder
	maxChanges = 200     //
	maxPicture = 1 << 20 // bytes
)

// folderAt returns the folder of a run at a position; "": the present.
func folderAt(ctx context.Context, l *link, run, at string) (history.Folder, error) {
	pos, err := positionOf(at)
	if err != nil {
		return history.Folder{}, err
	}
	if at != "" {
		pos = max(pos, 1) // 0 would be the present
	}
	state, err := stateAt(ctx, l, run, pos)
	if err != nil {
		return history.Folder{}, err
	}
	f, err := history.FolderOf(ctx, l.reader, state)
	f.At = at
	return f, err
}

// readFolder returns what is in the folder of a run at a position, as `wake workspace --at` does, or what differs in that of
// another position.
func readFolder(r *http.Request, l *link, run string) (any, error) {
	f, err := folderAt(r.Context(), l, run, r.FormValue("at"))
	if err != nil {
		return nil, err
	}
	to := r.FormValue("diff")
	if to == "" {
		return &f, f.List(r.Context(), l.packs)
	}
	other, err := folderAt(r.Context(), l, run, to)
	if err != nil {
		return nil, err
	}
	return history.CompareFolders(r.Context(), l.packs, f.Snapshot, other.Snapshot)
}

// readFiles returns what is in a folder of a run at a position.
func readFiles(r *http.Request, l *link, run string) (any, error) {
	ctx, q := r.Context(), readFolderQuery(r, run)
	f := files{Query: q}
	var err error
	if f.Folder, err = folderAt(ctx, l, q.Run, q.At); err != nil {
		return f, err
	}
	if err = f.List(ctx, l.packs); err != nil {
		return f, err
	}
	for _, file := range f.Content {
		dir, name := path.Split(file.Path)
		if strings.TrimSuffix(dir, "/") == q.Dir {
			f.Rows = append(f.Rows, fileRow{file, name})
		}
	}
	f.More = max(0, len(f.Rows)-maxFiles)
	f.Rows = f.Rows[:len(f.Rows)-f.More]
	if q.Since == "" {
		return f, nil
	}
	since, err := folderAt(ctx, l, q.Run, q.Since)
	if err != nil {
		return f, err
	}
	changes, err := history.CompareFolders(ctx, l.packs, since.Snapshot, f.Snapshot)
	if err != nil {
		return f, err
	}
	if f.Beginning, err = firstPosition(ctx, l, q.Run); err != nil {
		return f, err
	}
	f.Before = max(f.Beginning, f.Snapshot.Position-1)
	f.Since, f.Changes = since.Snapshot, slices.DeleteFunc(changes.Changes, isFolderChange)
	f.Left = max(0, len(f.Changes)-maxChanges)
	f.Changes = f.Changes[:len(f.Changes)-f.Left]
	return f, nil
}

// isFolderChange reports whether a change is of a folder alone: what is in it is told, too.
func isFolderChange(c workspace.Change) bool {
	return (c.A == nil || c.A.Type == "folder") && (c.B == nil || c.B.Type == "folder")
}

// shownFile is a file of a run at a position.
type shownFile struct {
	workspace.File

	Text    string
	Cut     bool // only the first part is shown
	Binary  bool
	Picture template.URL
	Diff    []diffLine // since another position
	Same    bool       // it was the same there
	Was     bool       // it was there
}

// readFile returns a file of a run at a position, or what has changed in it.
func readFile(r *http.Request, l *link, run string) (any, error) {
	ctx, q, name := r.Context(), readFolderQuery(r, run), r.FormValue("path")
	content, f, err := readContent(ctx, l, q.Run, q.At, name)
	gone := errors.Is(err, fs.ErrNotExist)
	if gone && q.Since == "" {
		return f, &wire.APIError{Code: wire.CodeNotFound, Message: fmt.Sprintf("there is no file %.200q at that point", name)}
	}
	if err != nil && !gone {
		return f, err
	}
	if !f.Cut {
		f.Picture = pictureOf(content)
	}
	f.Binary = !isText(content)
	if f.Binary || f.Type == "link" {
		return f, nil
	}
	f.Text = string(content)
	if q.Since == "" {
		return f, nil
	}
	before, was, err := readContent(ctx, l, q.Run, q.Since, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	f.Was = err == nil
	f.Same = f.Was && bytes.Equal(before, content)
	if isText(before) && !was.Cut && !f.Cut {
		f.Diff = diffLines(string(before), f.Text)
	}
	return f, nil
}

// readContent returns a file of a run at a position, and the beginning of its content.
func readContent(ctx context.Context, l *link, run, at, name string) ([]byte, shownFile, error) {
	var f shownFile
	folder, err := folderAt(ctx, l, run, at)
	if err != nil {
		return nil, f, err
	}
	var content []byte
	f.File, content, err = l.packs.File(ctx, folder.Snapshot.ID, name, maxPicture)
	f.Cut = int64(len(content)) < f.Size
	return content, f, history.FolderError(err)
}

// isText reports whether a content can be read by people. Its end may be cut off.
func isText(content []byte) bool {
	if bytes.IndexByte(content, 0) >= 0 {
		return false
	}
	for range utf8.UTFMax {
		if utf8.Valid(content) {
			return true
		}
		content = content[:len(content)-1]
	}
	return false
}
