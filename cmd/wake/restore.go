package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/backup"
	"code.wake.dev/wake/internal/durable"
	"code.wake.dev/wake/internal/service"
)

func (a fileVerbs) restoreCommand() *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use:   "restore DIR",
		Short: "Make streams, buckets and the recorder's store what they were in a backup",
		Long: `Make streams, buckets and the recorder's store what they were in a backup, when no
service runs. The backup is checked before anything is touched. If no server runs on
the data directory and none is named, one is started on it for as long as it takes;
then start wake up.

Events that runners on other machines keep in their spools, and stores of other
recorders, are of a time that hasn't been: remove them.`,
		ValidArgsFunction: completeDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.restoreBackup(cmd.Context(), args[0], o)
		},
	}
	flags := cmd.Flags()
	o.addFlags(flags, "where the recorder's `store` shall be, a SQLite file (default: DIR/recorder.db of the data directory)")
	flags.BoolVar(&o.force, "force", false, "remove streams and a store that are there")
	flags.IntVar(&o.replicas, "replicas", 0, "`number` of servers that keep each stream (default: as in the backup)")
	return cmd
}

// codeExists is said if a restore would replace something.
const codeExists = "EXISTS"

func (a fileVerbs) restoreBackup(ctx context.Context, dir string, o backupOptions) error {
	begun := time.Now()
	meter := a.newMeter("restore", unitBytes).start()
	defer meter.eraseLine()
	m, err := backup.Open(ctx, dir, meter.notePart)
	if errors.Is(err, fs.ErrNotExist) {
		return usageError("a backup is a folder that `wake backup` has made", "%w", err)
	}
	if err != nil {
		return err
	}
	path, err := a.storePath(o)
	if err != nil {
		return err
	}
	if m.Store == nil {
		path = ""
	}
	if _, err := os.Stat(path); err == nil && !o.force {
		return serviceError(codeExists, "--force replaces it", "%s is there", path)
	}
	for _, held := range []string{a.server.DataDir, filepath.Join(a.server.DataDir, "recorder"), filepath.Join(a.server.DataDir, "runner")} {
		lock, err := service.LockDir(held)
		if err != nil {
			return err
		}
		defer func() { _ = lock.Unlock() }() // the end of the process does it, too
	}
	if err := a.restoreAll(ctx, dir, m, path, o, meter); err != nil {
		return err
	}
	meter.eraseLine()
	return a.printBackup("restored", m, time.Since(begun))
}

// restoreAll restores what is on the server, and the recorder's store to its path. All of it is on disk when it returns.
func (a fileVerbs) restoreAll(ctx context.Context, dir string, m backup.Manifest, path string, o backupOptions, meter *meter) error {
	nc, stop, err := a.emptyServer(ctx)
	if err != nil {
		return err
	}
	files := func() error { return a.restoreFiles(dir, m, path) }
	err = backup.Restore(ctx, nc, a.names, dir, m, backup.Options{Force: o.force, Replicas: o.replicas, Files: files}, meter.notePart)
	if exists, ok := errors.AsType[*backup.ExistsError](err); ok {
		err = serviceError(codeExists, "--force removes them, with all they hold", "%w", exists)
	}
	return errors.Join(err, stop())
}

// emptyServer connects to a server on which no service of the installation is at
// work: the one that is named, or one of its own on the data directory, which is
// locked. That syncs its folder when it is stopped, not each message: a restoration that is interrupted is begun again.
func (a fileVerbs) emptyServer(ctx context.Context) (nc *nats.Conn, stop func() error, err error) {
	if a.server.URL == "" && a.server.Context == "" {
		folder := filepath.Join(a.server.DataDir, "nats")
		nc, end, err := a.ownServer(ctx, embeddedConfig{Dir: folder, Later: true})
		if err != nil {
			return nil, nil, err
		}
		return nc, func() error {
			end()
			return syncFolder(folder)
		}, nil
	}
	if nc, err = a.connectServer(ctx); err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	var running []string
	for _, c := range (doctor{nc: nc, js: js, names: a.names}).checkServices(ctx) {
		if c.Verdict == fine {
			running = append(running, c.Name)
		}
	}
	if len(running) > 0 {
		nc.Close()
		return nil, nil, serviceError(service.CodeInUse, "stop all services, and wait a minute if one was killed", "at work: %s", strings.Join(running, ", "))
	}
	return nc, func() error { nc.Close(); return nil }, nil
}

// syncFolder has everything in a folder, and its names, be on disk.
func syncFolder(folder string) error {
	return filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return durable.Sync(path)
	})
}

// restoreFiles puts the recorder's store in its place, and out of the way what waits in the spool, and in keepers, and which events were
// set aside: it is of a time that hasn't been, and goes on where the log doesn't. What was restored may be of another key: the next wake up makes one for it.
func (a fileVerbs) restoreFiles(dir string, m backup.Manifest, path string) error {
	before := ".before-" + time.Now().UTC().Format("20060102T150405.000")
	for _, name := range []string{"spool", "keepers", "runner/keepers", "trial"} { // those of wake runner, too
		path := filepath.Join(a.server.DataDir, name)
		if err := os.Rename(path, path+before); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := os.Remove(stampFile(a.server.DataDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if path == "" {
		return durable.Sync(a.server.DataDir)
	}
	for _, suffix := range []string{"-wal", "-shm", ""} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the recorder's store: %w", err)
		}
	}
	if err := copyFile(filepath.Join(dir, m.Store.Name), path); err != nil {
		return fmt.Errorf("the recorder's store: %w", err)
	}
	return errors.Join(durable.Sync(a.server.DataDir), durable.Sync(filepath.Dir(path)))
}

// copyFile makes a file that is whole or isn't there.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}
