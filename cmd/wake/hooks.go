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
	remove  bool // the hooks are taken out
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
	folders, err := sessionFolders("")
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
Some are added only if the claude in PATH is 2.1.197 or newer: an older one may leave out
the whole file, or wait for them at each call. It says which are left out, and why. Those
that the file has stay, unless that claude is older.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limited, stop := context.WithTimeout(cmd.Context(), 10*time.Second)
			version, doubt := claudeVersion(limited)
			stop()
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			return a.changeHooks(o, func(text []byte) ([]byte, *leftOut, error) {
				var found []settings.Hook
				var err error
				if text != nil {
					if found, err = settings.Find(text, isOurHook); err != nil {
						return nil, nil, err
					}
				}
				events, left := chooseEvents(version, doubt, found)
				wanted, err := a.wantedHooks(events)
				if err != nil || areSame(found, wanted) {
					return text, left, err
				}
				if len(found) > 0 {
					if text, err = settings.Remove(text, isOurHook); err != nil {
						return nil, nil, err
					}
				}
				text, err = settings.Add(text, wanted)
				return text, left, err
			}, "installed: sessions report to wake up with --data-dir "+a.server.DataDir, "they are installed already")
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show the change, and don't write it")
	return cmd
}

func (a hostVerbs) hooksUninstall() *cobra.Command {
	o := hooksOptions{remove: true}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take the hooks out again, and show the change",
		RunE: func(*cobra.Command, []string) error {
			return a.changeHooks(o, func(text []byte) ([]byte, *leftOut, error) {
				if text == nil {
					return nil, nil, nil
				}
				text, err := settings.Remove(text, isOurHook)
				return text, nil, err
			}, "uninstalled", "there are none")
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show the change, and don't write it")
	return cmd
}

// wantedHooks are those that report to this data directory, with some of the newer events. Claude Code waits for none of them, but for
// the one that waits beside a dialog, and the one of its end, behind which nothing would run: so 2.1.197 and 2.1.330 were seen to take
// async; an older one may wait for all of them. They are commands: for a hook of type http that finds no server, Claude Code shows an
// error at each event, and while the server hangs it waits at each call.
func (a hostVerbs) wantedHooks(newer []string) ([]settings.Hook, error) {
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
		report.SessionStart, report.SessionEnd, report.Notification, report.Stop, report.SubagentStart, report.SubagentStop, report.PreCompact,
	}
	var wanted []settings.Hook
	for _, event := range append(events, newer...) {
		wanted = append(wanted, settings.Hook{Event: event, Command: command, Timeout: soon, Async: event != report.SessionEnd})
	}
	return append(wanted, settings.Hook{Event: report.PermissionRequest, Command: command, Timeout: days}), nil
}

// newerSince is the oldest version of Claude Code with which the newer events were tried.
const newerSince = "2.1.197"

// newerEvents are those that an older version doesn't know, so that it leaves out the whole file (2.0.76), and the ends of calls, at each
// of which one that doesn't know async would wait.
func newerEvents() []string {
	return []string{report.PostToolUse, report.PostToolUseFailure, report.Elicitation, report.StopFailure, report.PostCompact}
}

// leftOut are the events of which sessions don't report.
type leftOut struct {
	events []string
	why    string
}

// chooseEvents says which of the newer events are wanted: all of a version that has them, none of an older one. Of one that isn't known
// those that the file has stay.
func chooseEvents(version []int, doubt string, found []settings.Hook) ([]string, *leftOut) {
	since := parseVersion(newerSince)
	if version != nil && slices.Compare(version, since) >= 0 {
		return newerEvents(), nil
	}
	left := &leftOut{why: doubt}
	if version != nil {
		left.why = fmt.Sprintf("the claude in PATH is %d.%d.%d, older than %s", version[0], version[1], version[2], newerSince)
	}
	var events []string
	for _, event := range newerEvents() {
		if version == nil && hasEvent(found, event) {
			events = append(events, event)
		} else {
			left.events = append(left.events, event)
		}
	}
	if len(left.events) == 0 {
		return events, nil
	}
	return events, left
}

func hasEvent(hooks []settings.Hook, event string) bool {
	return slices.ContainsFunc(hooks, func(h settings.Hook) bool { return h.Event == event })
}

// claudeVersion asks the Claude Code of this machine for its version; if that stays unknown, it says why.
func claudeVersion(ctx context.Context) (version []int, doubt string) {
	cmd := exec.CommandContext(ctx, "claude", "--version")
	cmd.WaitDelay = time.Second // a process that a wrapper has left behind may keep its stdout
	said, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, "no claude is in PATH"
	case ctx.Err() != nil:
		return nil, "claude --version gave no answer in time"
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // which has its answer
		return nil, fmt.Sprintf("claude --version failed: %v", err)
	}
	if version = parseVersion(string(said)); version == nil {
		return nil, fmt.Sprintf("claude --version says %.40q, which is no version", said)
	}
	return version, ""
}

// parseVersion reads the version that a text begins with; nil if it doesn't.
func parseVersion(text string) []int {
	v := make([]int, 3)
	if n, _ := fmt.Sscanf(text, "%d.%d.%d", &v[0], &v[1], &v[2]); n != len(v) { // n says how many it has
		return nil
	}
	return v
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
func (a hostVerbs) changeHooks(o hooksOptions, change func([]byte) ([]byte, *leftOut, error), done, same string) error {
	file, err := o.settingsFile()
	if err != nil {
		return err
	}
	before, err := settings.Load(file)
	if err != nil {
		return a.refusedError(err, o.remove)
	}
	after, left, err := change(before)
	if err != nil {
		return a.refusedError(fmt.Errorf("%s: %w: nothing is written", file, err), o.remove)
	}
	changed := !bytes.Equal(before, after) || (before == nil) != (after == nil)
	if changed && !o.dryRun {
		if err := settings.Save(file, before, after); err != nil {
			return a.refusedError(err, o.remove)
		}
	}
	off := settings.HooksOff(after) && !o.remove
	if a.json {
		told := map[string]any{"file": file, "changed": changed && !o.dryRun, "off": off}
		if left != nil {
			told["leftOut"], told["why"] = left.events, left.why
		}
		return a.printJSON(told)
	}
	switch {
	case !changed:
		_, err = fmt.Fprintf(a.out, "%s: %s\n", file, same)
	case o.dryRun:
		_, err = fmt.Fprintf(a.out, "%s\n%snothing was written\n", file, lineChanges(before, after))
	default:
		_, err = fmt.Fprintf(a.out, "%s\n%s%s\n", file, lineChanges(before, after), done)
	}
	if err == nil && left != nil {
		_, err = fmt.Fprintf(a.out, "left out: %s: %s; with %s or newer: wake hooks install\n", strings.Join(left.events, ", "), left.why, newerSince)
	}
	if err == nil && off {
		_, err = fmt.Fprintf(a.out, "none of them is asked: %s\n", hooksOff)
	}
	return err
}

// hooksOff is why no hook of a settings file is asked.
const hooksOff = "the file has disableAllHooks: true"

// refusedError says what to do about settings that aren't changed, or of which hooks aren't taken out.
func (a hostVerbs) refusedError(err error, remove bool) error {
	hint := "mend the file, or name another one: --project DIR"
	if remove {
		return serviceError(service.CodeUsage, hint+"; or take out by hand what has \"hooks report\" in its command", "%w", err)
	}
	if wanted, wantedErr := a.wantedHooks(nil); wantedErr == nil {
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
			return a.refusedError(fmt.Errorf("%s: %w", file, err), false)
		}
	}
	newer, _ := chooseEvents(nil, "", found) // those that the file has
	wanted, err := a.wantedHooks(newer)
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
		return a.printJSON(map[string]any{"file": file, "installed": installed, "off": settings.HooksOff(text), "hooks": len(found), "listening": listenErr == nil})
	}
	state := "not installed: wake hooks install"
	switch {
	case installed && settings.HooksOff(text):
		state = "installed, and none of them is asked: " + hooksOff
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
