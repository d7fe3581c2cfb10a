package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"code.wake.dev/wake/flows"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/pkg/subjects"
)

// runDemo runs the demo flow with its recorded agents, shows what becomes of it,
// and tells what to try next. On a terminal everything then stays up.
func (a hostVerbs) runDemo(ctx context.Context, p *process) error {
	runID, err := a.playDemo(ctx, p)
	if err != nil {
		return err
	}
	stay := service.IsTerminal(a.out)
	a.printText("\nNext:\n\n")
	for _, command := range a.nextCommands(runID, stay) {
		a.printText("    %s\n", command)
	}
	if !stay {
		return nil
	}
	a.printText("\nCtrl-C stops wake; nothing is lost.\n")
	<-ctx.Done()
	return nil
}

func (a hostVerbs) playDemo(ctx context.Context, p *process) (runID string, err error) {
	dir := filepath.Join(p.dir, "flow")
	if err := os.RemoveAll(dir); err != nil { // of an older wake
		return "", fmt.Errorf("demo: %w", err)
	}
	if err := os.CopyFS(dir, flows.FS); err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	o := runOptions{fixtures: filepath.Join(dir, "demo.fixtures"), labels: []string{"name=demo"}}
	r, err := a.buildRequest(filepath.Join(dir, "demo.yaml"), o)
	if err != nil {
		return "", err
	}
	a.printText("the demo flow, with recorded agents\n\n")
	log, err := a.readerOn(ctx, p.nc)
	if err != nil {
		return "", err
	}
	last, err := a.submitAndWatch(ctx, log, r)
	if err != nil {
		return "", err
	}
	return r.RunID, errors.Join(outcomeError(r.RunID, last), a.showResults(ctx, p, log, r.RunID))
}

// showResults prints what the services have made of a run.
func (a hostVerbs) showResults(ctx context.Context, p *process, log *feed.Reader, runID string) error {
	if err := p.caughtUp(ctx); err != nil {
		return err
	}
	a.printText("\nAlerts:\n\n")
	if err := a.eachAlert(ctx, log, runID, false, a.printAlert); err != nil {
		return err
	}
	s, err := a.askSnapshot(ctx, p.nc, runID)
	if err != nil {
		return err
	}
	a.printText("\nSnapshot:\n\n")
	return printSnapshot(a.out, s)
}

// printText writes to a terminal or a log, where the caller could do nothing about an
// error.
func (a hostVerbs) printText(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }

// nextCommands are commands that work as they are printed.
func (a hostVerbs) nextCommands(runID string, up bool) []string {
	wake := "wake"
	if filepath.Base(os.Args[0]) != os.Args[0] {
		wake = os.Args[0] // as it was called: ./bin/wake
	}
	dir := ""
	if a.server.DataDir != service.DefaultDataDir {
		dir = " --data-dir " + a.server.DataDir
	}
	if !up {
		return []string{
			wake + " up" + dir + " &                       # everything is still there",
			wake + " replay " + runID + " --speed 5" + dir,
			wake + " log " + runID + " --type tool" + dir,
		}
	}
	return []string{
		wake + " watch" + dir + "                        # your own sessions of Claude Code, live",
		wake + " status @last" + dir,
		wake + " replay " + runID + " --speed 5" + dir,
		wake + " log " + runID + " --type tool" + dir,
	}
}

// caughtUp waits until the services have read all that is stored.
func (p *process) caughtUp(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, durable := range []string{subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer} {
		for {
			c, err := p.log.JetStream().Consumer(limited, p.app.names.EventsStream(), durable)
			if err != nil {
				return fmt.Errorf("%s: %w", durable, err)
			}
			if info := c.CachedInfo(); info.NumPending == 0 && info.NumAckPending == 0 {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-limited.Done():
				return fmt.Errorf("%s: %w", durable, errors.Join(errBehind, ctx.Err()))
			}
		}
	}
	return nil
}

var errBehind = errors.New("it is behind the log")
