package keeper

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/internal/keeper/guard"
	"code.wake.dev/wake/internal/process"
)

// Probe returns the strongest fence that this host allows, by trying them: a keeper
// with a program that ends at once.
func Probe(ctx context.Context) (Fence, error) {
	var last error
	for _, f := range Fences() {
		if last = Try(ctx, f, Groups{}); last == nil {
			return f, nil
		}
	}
	return "", last
}

// ProbeGroups returns the control groups that this host allows with a fence, by trying them.
func ProbeGroups(ctx context.Context, f Fence) Groups {
	for _, g := range guard.Candidates("/") {
		if Try(ctx, f, g) == nil {
			return g
		}
	}
	return Groups{}
}

// probeMemory is the bound with which a keeper is tried.
const probeMemory = 1 << 30

// Try reports why a fence, with control groups, can't be had here; nil: it can.
func Try(ctx context.Context, f Fence, g Groups) error {
	dir, err := os.MkdirTemp("", "wake-keeper")
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	now := process.Uptime()
	c := Config{Dir: filepath.Join(dir, "k"), Fence: f, Groups: g, Freeze: now + time.Minute, Kill: now + time.Minute}
	if g.Memory != "" {
		c.Memory = probeMemory
	}
	k, err := Open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = k.Quit(0) }()
	p, err := k.Start(process.Config{Argv: []string{"/bin/sh", "-c", "exit 7"}, KeepStderr: true})
	if err != nil {
		return err
	}
	exit, err := p.Wait(ctx)
	if err == nil && exit.Code != 7 {
		err = fmt.Errorf("keeper: a program in it ended with %d %s", exit.Code, exit.Signal)
	}
	return err
}

// outsidePid returns the id that this process knows a process by which has pid in a
// namespace below the keeper's; 0 if it can't be told.
func outsidePid(keeper, pid int) int {
	if keeper == 0 {
		return 0
	}
	entries, err := process.Table()
	if err != nil {
		return 0
	}
	for _, e := range process.Descendants(entries, keeper) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.Pid))
		if err != nil {
			continue
		}
		for line := range bytes.Lines(b) {
			ids, ok := strings.CutPrefix(string(line), "NSpid:")
			if !ok {
				continue
			}
			fields := strings.Fields(ids)
			if n, err := strconv.Atoi(fields[len(fields)-1]); err == nil && n == pid && (len(fields) > 1 || n == e.Pid) {
				return e.Pid
			}
		}
	}
	return 0
}
