package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"code.wake.dev/wake/internal/keeper/guard"
	"code.wake.dev/wake/internal/process"
)

// local is the system that this process runs on: a keeper is a process, and so is its guard.
type local struct{}

func (local) launchInDir(dir string) (net.Conn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "keeper"), os.NewFile(uintptr(pair[1]), "runner")
	defer func() { _ = theirs.Close() }()
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	cmd := guard.SelfCommand(keeperVerb)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err == nil {
		cmd.Stderr = log
		defer func() { _ = log.Close() }()
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("keeper: start: %w", err), conn.Close())
	}
	go func() { _ = cmd.Wait() }() // it ends with the keeper
	return conn, nil
}

func (local) dialDir(ctx context.Context, folder string) (net.Conn, error) {
	dir, err := os.Open(folder)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	defer func() { _ = dir.Close() }()
	dialer := net.Dialer{Timeout: openWait}
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return conn, nil
}

func (local) prepareServer(s *server) (err error) {
	if s.Fence == Watchdogs {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("subreaper: %w", err)
		}
	}
	s.alarm = &guard.Alarm{}
	if s.deadline, err = newDeadline(s.freezeOverdue); err != nil {
		return err
	}
	if err := s.makeGroup(); err != nil {
		return err
	}
	if s.guard, err = guard.Start(s.Fence, s.group, s.handleReport); err != nil {
		return errors.Join(err, s.group.EndAll())
	}
	return nil
}

// acceptRunners opens the socket for runners to come. Its path is that of an open folder: a
// socket's address has 107 bytes at most.
func (local) acceptRunners(s *server) error {
	if !s.Listens {
		return nil
	}
	dir, err := os.Open(s.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName)) // nothing to wait for
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the address is gone by then
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.greetRunner(conn)
		}
	}()
	return os.Chmod(filepath.Join(s.Dir, socketName), 0o600)
}

func (local) hideSecrets() error { return process.Conceal() }

func (local) ofTree(s *server, peer net.Conn) bool {
	raw, err := peer.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	var who *unix.Ucred
	if e := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return true
	}
	entries, err := process.Table()
	if err != nil {
		return true
	}
	tree := process.Descendants(entries, s.guard.(*guard.Handle).Pid())
	return slices.ContainsFunc(tree, func(e process.Entry) bool { return e.Pid == int(who.Pid) })
}

func (local) endLeftovers(s *server) {
	if s.Fence != Watchdogs {
		return
	}
	process.EndDescendants(func() {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil || pid <= 0 {
				return
			}
		}
	})
}

func (local) keeperPid() int { return os.Getpid() }
