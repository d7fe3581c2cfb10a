package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/backup"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// backupOptions are the settings of backup and restore.
type backupOptions struct {
	store    string
	noStore  bool
	force    bool
	replicas int
}

func (o *backupOptions) addFlags(flags *pflag.FlagSet, store string) {
	storeFlag(flags, &o.store, store)
	flags.BoolVar(&o.noStore, "no-store", false, "leave the recorder's store out, such as a PostgreSQL database")
}

func (a fileVerbs) backupCommand() *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy streams, buckets and the recorder's store into a folder",
		Long: `Copy streams, buckets and the recorder's store into a new folder, while everything
runs or nothing does. If no server runs on the data directory and none is named, one
is started on it for as long as it takes. A PostgreSQL database is copied by pg_dump,
before; then give --no-store.`,
		ValidArgsFunction: completeDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.takeBackup(cmd.Context(), args[0], o)
		},
	}
	o.addFlags(cmd.Flags(), "the recorder's `store`, a SQLite file (default: DIR/recorder.db of the data directory)")
	return cmd
}

func completeDir(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func (a fileVerbs) takeBackup(ctx context.Context, dir string, o backupOptions) error {
	meter := a.newMeter("backup", unitBytes)
	copyStore, err := a.copyStore(o, meter)
	if err != nil {
		return err
	}
	nc, stop, err := a.serverOrOwn(ctx)
	if err != nil {
		return err
	}
	defer stop()
	begun := time.Now()
	m, err := backup.Take(ctx, nc, a.names, dir, copyStore, meter.start().notePart)
	meter.eraseLine()
	if err != nil {
		return err
	}
	return a.printBackup("backed up", m, time.Since(begun))
}

// storePath returns the file of the recorder's store, or "" if it is left out.
func (a fileVerbs) storePath(o backupOptions) (string, error) {
	if o.noStore {
		return "", nil
	}
	path, err := recorder.File(o.store)
	if err != nil {
		return "", usageError("`pg_dump` it before and `pg_restore` it after, and give --no-store", "--store: %w", err)
	}
	path = cmp.Or(path, filepath.Join(a.server.DataDir, "recorder.db"))
	return path, nil
}

func (a fileVerbs) copyStore(o backupOptions, m *meter) (backup.CopyStore, error) {
	path, err := a.storePath(o)
	if err != nil || path == "" {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, usageError("name it with --store, or give --no-store", "the recorder's store: %w", err)
	}
	return func(ctx context.Context, to string) (wire.Position, error) {
		stop := m.follow("recorder.db", to, info.Size())
		defer stop()
		return recorder.Copy(ctx, path, to)
	}, nil
}

// serverOrOwn connects to the server that is named or runs on the data directory,
// or else to one of its own there, which stop ends.
func (a fileVerbs) serverOrOwn(ctx context.Context) (nc *nats.Conn, stop func(), err error) {
	nc, err = a.connectServer(ctx)
	if err == nil {
		return nc, nc.Close, nil
	}
	dir := filepath.Join(a.server.DataDir, "nats")
	known, ok := errors.AsType[*service.Error](err)
	if !ok || known.Code != service.CodeUnreachable || a.server.URL != "" || a.server.Context != "" {
		return nil, nil, err
	}
	if _, statErr := os.Stat(dir); errors.Is(statErr, fs.ErrNotExist) {
		return nil, nil, err
	}
	lock, err := service.LockDir(a.server.DataDir)
	if err != nil {
		return nil, nil, err
	}
	nc, end, err := a.ownServer(ctx, embeddedConfig{Dir: dir})
	if err != nil {
		return nil, nil, errors.Join(err, lock.Unlock())
	}
	return nc, func() {
		end()
		_ = lock.Unlock() // the end of the process does it, too
	}, nil
}

// ownServer starts a server on a folder that is locked, and connects to it.
func (a fileVerbs) ownServer(ctx context.Context, c embeddedConfig) (nc *nats.Conn, stop func(), err error) {
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, nil, err
	}
	c.Listen, c.Names = "127.0.0.1", a.names
	server, err := startServer(ctx, c, a.log)
	if err != nil {
		return nil, nil, err
	}
	if nc, err = a.inProcess(ctx, server, server.creds); err != nil {
		server.stop()
		return nil, nil, err
	}
	return nc, func() {
		nc.Close()
		server.stop()
	}, nil
}

func (a fileVerbs) printBackup(done string, m backup.Manifest, took time.Duration) error {
	var size int64
	var messages uint64
	for _, s := range m.Streams {
		count, _, err := s.Messages()
		if err != nil {
			return err
		}
		size, messages = size+s.Bytes, messages+count
	}
	store := "without the recorder's store"
	if m.Store != nil {
		store = fmt.Sprintf("the recorder's store up to position %d", m.Store.Position.Seq)
		size += m.Store.Bytes
	}
	return a.printAnswer(m, fmt.Sprintf("%s: %d streams with %d messages, %s; %s in %s",
		done, len(m.Streams), messages, store, bytesText(uint64(size)), took.Round(time.Millisecond)))
}
