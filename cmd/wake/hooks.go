package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/internal/service"
	sessions "code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/internal/settings"
)

// reportHook is what Claude Code calls. It fails silently: a session goes on as without it.
func reportHook(file string) int {
	by := os.Getenv("CLAUDE_CODE_ENTRYPOINT")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	_ = report.Hook{File: file, In: os.Stdin, Out: os.Stdout, Parent: os.Getppid, Program: by != "" && by != "cli"}.Run(ctx) // see above
	return 0
}

// hooksOptions say which settings are meant: the user's, or a project's.
type hooksOptions struct {
	user    bool
	project string
	dryRun  bool
}

func (o *hooksOptions) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.user, "user", false, "those of the user: CLAUDE_CONFIG_DIR, or ~/.claude (default)")
	flags.StringVar(&o.project, "project", "", "those of the project in this `folder` that aren't checked in: .claude/settings.local.json")
}

// settingsFile is the file that is meant.
func (o *hooksOptions) settingsFile() (string, error) {
	if o.user && o.project != "" {
		return "", usageError("give one of them", "--user and --project are two files")
	}
	if o.project != "" {
		dir, err := filepath.Abs(o.project)
		if info, statErr := os.Stat(dir); err == nil && (statErr != nil || !info.IsDir()) {
			err = fmt.Errorf("%s is no folder", dir)
		}
		if err != nil {
			return "", usageError("name the folder of the project", "--project: %w", err)
		}
		return filepath.Join(dir, ".claude", "settings.local.json"), nil
	}
	folders, err := sessions.Folders(nil, os.LookupEnv)
	if err != nil {
		return "", usageError("set CLAUDE_CONFIG_DIR", "%w", err)
	}
	return filepath.Join(folders[0], "settings.json"), nil
}

func (a hostVerbs) hooksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hooks",
		Short: "Have Claude Code's hooks report who waits for a person, and answer from here",
		Long: `Have Claude Code's hooks report to wake up on this machine who waits for a person, what
was asked and answered, and that a session has ended. A permission that a terminal asks
for is then in the console and in wake approvals, and wake approve, wake deny and the
console answer it; the terminal does as before, and the first answer counts. These are
Claude Code's own hooks, of the sessions that people have; hooks of a flow are others.

    wake hooks install                   for all sessions of this user
    wake hooks install --project .       for those in a project
    wake hooks uninstall                 the file is as it was

They report to the console of the wake up whose --data-dir is the same. While that is
away, sessions go on as without hooks.`,
	}
	cmd.AddCommand(a.hooksInstall(), a.hooksUninstall(), a.hooksStatus())
	return cmd
}

func (a hostVerbs) hooksInstall() *cobra.Command {
	var o hooksOptions
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Add the hooks to the settings of Claude Code, and show the change",
		Long: `Add the hooks to the settings of Claude Code, and show the change. Everything else in
the file stays as it is, byte by byte. Sessions that are open take them over at once.
Those that only newer versions of Claude Code know are added if the claude in PATH is one
(from 2.1.197): an older one would leave out the whole file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := a.wantedHooks(areNewerKnown(cmd.Context()))
			if err != nil {
				return err
			}
			return a.changeHooks(o, func(text []byte) ([]byte, error) {
				if text == nil {
					return settings.Add(nil, wanted)
				}
				found, err := settings.Find(text, isOurHook)
				if err != nil || areSame(found, wanted) {
					return text, err
				}
				if text, err = settings.Remove(text, isOurHook); err != nil {
					return nil, err
				}
				return settings.Add(text, wanted)
			}, "installed: sessions report to wake up with --data-dir "+a.server.DataDir, "they are installed already")
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show the change, and don't write it")
	return cmd
}

func (a hostVerbs) hooksUninstall() *cobra.Command {
	var o hooksOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take the hooks out again, and show the change",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.changeHooks(o, func(text []byte) ([]byte, error) {
				if text == nil {
					return nil, nil
				}
				return settings.Remove(text, isOurHook)
			}, "uninstalled", "there are none")
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show the change, and don't write it")
	return cmd
}

// wantedHooks are those that report to this data directory. Claude Code waits for none of them, but for the one that waits beside a
// dialog, and the one of its end, behind which nothing would run. They are commands: for a hook of type http that finds no
// server, Claude Code shows an error at each event, and for one whose server hangs it waits at each call. A version of Claude Code
// that doesn't know an event leaves out the whole file: without newer, 2.0.76 knows all of them.
func (a hostVerbs) wantedHooks(newer bool) ([]settings.Hook, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return nil, err
	}
	command := shellQuote(program) + " hooks report " + shellQuote(report.FileIn(dir))
	const soon, days = 5, 7 * 24 * 3600
	events := []string{
		report.SessionStart, report.SessionEnd, report.Notification, report.PostToolUse, report.PostToolUseFailure,
		report.Stop, report.SubagentStart, report.SubagentStop, report.PreCompact,
	}
	if newer {
		events = append(events, report.Elicitation, report.StopFailure, report.PostCompact)
	}
	var wanted []settings.Hook
	for _, event := range events {
		wanted = append(wanted, settings.Hook{Event: event, Command: command, Timeout: soon, Async: event != report.SessionEnd})
	}
	return append(wanted, settings.Hook{Event: report.PermissionRequest, Command: command, Timeout: days}), nil
}

// areNewerKnown reports whether the Claude Code of this machine is a version that knows the newer events. Where none is found, it isn't.
func areNewerKnown(ctx context.Context) bool {
	limited, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	said, err := exec.CommandContext(limited, "claude", "--version").Output()
	version := make([]int, 3)
	n, _ := fmt.Sscanf(string(said), "%d.%d.%d", &version[0], &version[1], &version[2]) // n says how many it has
	return err == nil && n == len(version) && slices.Compare(version, []int{2, 1, 197}) >= 0
}

// areSame reports whether the hooks are the same, in whatever order the file has their events.
func areSame(found, wanted []settings.Hook) bool {
	byEvent := func(a, b settings.Hook) int { return strings.Compare(a.Event, b.Event) }
	return slices.Equal(slices.SortedFunc(slices.Values(found), byEvent), slices.SortedFunc(slices.Values(wanted), byEvent))
}

// isOurHook reports whether a command is one that install adds, of whatever program and data directory.
func isOurHook(command string) bool {
	_, file, ok := strings.Cut(command, " hooks report ")
	return ok && filepath.Base(strings.Trim(file, "'")) == filepath.Base(report.FileIn(""))
}

// shellQuote is a text as a shell takes it for one word.
func shellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// changeHooks changes the settings that are meant, and shows how.
func (a hostVerbs) changeHooks(o hooksOptions, change func([]byte) ([]byte, error), done, same string) error {
	file, err := o.settingsFile()
	if err != nil {
		return err
	}
	before, err := settings.Load(file)
	if err != nil {
		return a.refusedError(err)
	}
	after, err := change(before)
	if err != nil {
		return a.refusedError(fmt.Errorf("%s: %w: nothing is written", file, err))
	}
	changed := !bytes.Equal(before, after) || (before == nil) != (after == nil)
	if changed && !o.dryRun {
		if err := settings.Save(file, before, after); err != nil {
			return a.refusedError(err)
		}
	}
	if a.json {
		return a.printJSON(map[string]any{"file": file, "changed": changed && !o.dryRun})
	}
	switch {
	case !changed:
		_, err = fmt.Fprintf(a.out, "%s: %s\n", file, same)
	case o.dryRun:
		_, err = fmt.Fprintf(a.out, "%s\n%snothing was written\n", file, lineChanges(before, after))
	default:
		_, err = fmt.Fprintf(a.out, "%s\n%s%s\n", file, lineChanges(before, after), done)
	}
	return err
}

// refusedError says what to do about settings that aren't changed.
func (a hostVerbs) refusedError(err error) error {
	hint := "mend the file, or name another one: --project DIR"
	if wanted, wantedErr := a.wantedHooks(false); wantedErr == nil {
		if text, addErr := settings.Add(nil, wanted); addErr == nil {
			hint += "; or add to it by hand:\n" + string(text)
		}
	}
	return serviceError(service.CodeUsage, hint, "%w", err)
}

// lineChanges shows the lines that go and those that come: what is changed stands in one place or in a few near ones.
func lineChanges(before, after []byte) string {
	old, now := splitLines(before), splitLines(after)
	head := 0
	for head < min(len(old), len(now)) && old[head] == now[head] {
		head++
	}
	tail := 0
	for tail < min(len(old), len(now))-head && old[len(old)-1-tail] == now[len(now)-1-tail] {
		tail++
	}
	var b strings.Builder
	for _, line := range old[head : len(old)-tail] {
		b.WriteString("- " + line + "\n")
	}
	for _, line := range now[head : len(now)-tail] {
		b.WriteString("+ " + line + "\n")
	}
	return b.String()
}

func splitLines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (a hostVerbs) hooksStatus() *cobra.Command {
	var o hooksOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether the hooks are installed, and whether wake up hears them",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			file, err := o.settingsFile()
			if err != nil {
				return err
			}
			return a.tellHooks(file)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (a hostVerbs) tellHooks(file string) error {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var found []settings.Hook
	if err == nil {
		if found, err = settings.Find(text, isOurHook); err != nil {
			return a.refusedError(fmt.Errorf("%s: %w", file, err))
		}
	}
	wanted, err := a.wantedHooks(slices.ContainsFunc(found, func(h settings.Hook) bool { return h.Event == report.StopFailure }))
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return err
	}
	address, listenErr := report.ReadAddress(report.FileIn(dir))
	installed := areSame(found, wanted)
	if a.json {
		return a.printJSON(map[string]any{"file": file, "installed": installed, "hooks": len(found), "listening": listenErr == nil})
	}
	state := "not installed: wake hooks install"
	switch {
	case installed:
		state = "installed"
	case len(found) > 0:
		state = "of another program, data directory or version: wake hooks install"
	}
	heard := "no wake up hears them: wake up --data-dir " + a.server.DataDir
	if listenErr == nil {
		heard = "wake up hears them at " + address.URL
	}
	_, err = fmt.Fprintf(a.out, "%s: %s\n%s\n", file, state, heard)
	return err
}
