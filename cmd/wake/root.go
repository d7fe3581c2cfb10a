package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/pkg/subjects"
)

// main runs the command line and returns the exit code.
func (a *app) main(ctx context.Context, args []string) int {
	signals := ctx
	ctx, a.denied = context.WithCancelCause(ctx)
	defer a.denied(nil)
	root := a.rootCommand()
	if len(args) > 0 && args[0] == cobra.ShellCompRequestCmd {
		plainUsage(root)
	}
	root.SetArgs(completeRerun(args))
	err := root.ExecuteContext(ctx)
	a.endTraces(ctx, err)
	if err == nil {
		return exitDone
	}
	if errors.Is(err, context.Canceled) {
		err = interruptError(signals, err) // wherever it was cut off
	}
	if denial, ok := errors.AsType[*service.Error](context.Cause(ctx)); ok {
		err = denial // which made a call time out
	}
	e := apiError(err)
	if !a.parsed && e.Code == codeFailed { // from cobra
		e = wrongUse(err, a.wrongVerb)
	}
	a.printError(e, a.json || wantsJSON(args))
	return exitCode(e.Code)
}

// plainUsage has flags described to a shell as in help, without the marks of what their values are called.
func plainUsage(cmd *cobra.Command) {
	plain := func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") }
	cmd.PersistentFlags().VisitAll(plain)
	cmd.Flags().VisitAll(plain)
	for _, below := range cmd.Commands() {
		plainUsage(below)
	}
}

// wantsJSON finds --json where the flags could not be parsed.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--json", "--json=true":
			return true
		case "--":
			return false
		}
	}
	return false
}

func (a *app) rootCommand() *cobra.Command {
	var session string
	var o resumeOptions
	cmd := &cobra.Command{
		Use:   "wake",
		Short: "Run AI agents durably, and wake any run again",
		Long: `wake runs workflows of AI agents, records every step of every agent in a log on
NATS JetStream, and can wake any run again: replay it, resume it, fork it, steer it.

    wake up                      the server and all services, in one process
    wake run flows/review.yaml   a run, followed until it is complete
    wake status @last            what has come of it
    wake resume @last            go on with it
    wake --resume SESSION        the same, by the session of one of its agents

Every flag can be set in the environment: --nats-url is WAKE_NATS_URL.
Exit codes: 0 done, 1 failed, 2 wrong use, 3 server not reachable, 4 the run failed,
130 interrupted (Ctrl-C).`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepareSettings(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if session == "" {
				return cmd.Help()
			}
			if err := o.checkFlags(cmd.Flags()); err != nil {
				return err
			}
			return orderVerbs{a}.resumeRun(cmd.Context(), o, func(s *verbSession) (string, error) { return s.FindSession(cmd.Context(), session) })
		},
	}
	cmd.Flags().StringVar(&session, "resume", "", "wake the run of this `session` of an agent, or of the beginning of one; takes the flags of wake resume")
	o.addFlags(cmd)
	cmd.SetIn(a.in)
	cmd.SetOut(a.out)
	cmd.SetErr(a.errOut)
	cmd.SetFlagErrorFunc(func(of *cobra.Command, err error) error {
		a.wrongVerb = of.CommandPath()
		return err
	})
	flags := cmd.PersistentFlags()
	flags.SortFlags = false
	a.server.Flags(flags)
	flags.StringVar(&a.keys, "encryption-keys", "", "`file` of the keys that encrypt what is stored of runs, see wake auth key (default: nothing is encrypted)")
	flags.StringVar(&a.prefix, "prefix", subjects.DefaultPrefix, "first `token` of all subjects")
	flags.StringVar(&a.level, "log-level", "", "debug, info, warn or error (default: info for services, warn for the other verbs)")
	flags.BoolVar(&a.json, "json", false, "write JSON, for programs")
	a.addVerbs(cmd)
	return cmd
}

// addVerbs adds the verbs by what they are about.
func (a *app) addVerbs(root *cobra.Command) {
	views, orders, runs, files, alerts, host := viewVerbs{a}, orderVerbs{a}, runVerbs{a}, fileVerbs{a}, alertVerbs{a}, hostVerbs{a}
	add := func(id, title string, verbs ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, v := range verbs {
			v.GroupID = id
		}
		root.AddCommand(verbs...)
	}
	add("runs", "Runs:",
		runs.runCommand(), runs.scheduleCommand(), runs.budgetCommand(), views.attachCommand(), views.runsCommand(), views.topCommand(), views.searchCommand(), views.statsCommand(), views.statusCommand(), views.logCommand(), views.tailCommand(),
		views.replayCommand(), views.snapshotCommand(), views.stateCommand(), views.diffCommand(), views.workspaceCommand(), alerts.alertsCommand(),
		files.ingestCommand(), files.exportCommand(), files.importCommand(), orders.deleteCommand(), orders.undeleteCommand(), runs.recordFixturesCommand())
	add("steering", "Steering runs:",
		orders.sendCommand(), orders.steerCommand(), orders.replyCommand(), orders.pauseCommand(), orders.resumeCommand(), orders.abortCommand(),
		orders.approvalsCommand(), orders.approveCommand(), orders.denyCommand(),
		orders.bookmarkCommand(), orders.bookmarksCommand(), runs.forkCommand(), runs.adoptCommand(), files.releaseCommand())
	add("servers", "Servers and services:",
		host.upCommand(), host.consoleCommand(), host.shareCommand(), host.initCommand(), host.doctorCommand(), files.rebuildCommand(), files.backupCommand(), files.restoreCommand(), host.authCommand(),
		host.runnerCommand(), host.recorderCommand(), host.snapshotterCommand(), host.alerterCommand(), host.watchCommand(), host.hooksCommand(), host.superviseCommand(), host.mcpCommand())
	add("tools", "Tools:", files.verifyCommand(), files.decodeCommand(), host.benchCommand(), a.versionCommand())
	for _, verb := range root.Commands() {
		a.completeVerb(verb)
	}
	root.SetCompletionCommandGroupID("tools")
	root.SetHelpCommandGroupID("tools")
}

// prepareSettings completes the settings when flags and arguments are known.
func (a *app) prepareSettings(cmd *cobra.Command) error {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	named := given("context") && !given("nats-url")
	if err := service.FromEnv(cmd.Flags(), os.LookupEnv); err != nil {
		return err
	}
	if named { // a flag goes before the environment, also where that has the URL of another server
		a.server.URL = ""
	}
	isService, level := cmd.Annotations[annotationService] != "", slog.LevelWarn
	if isService {
		level = slog.LevelInfo
	}
	if a.level != "" {
		if err := level.UnmarshalText([]byte(a.level)); err != nil {
			return usageError("debug, info, warn and error are known", "--log-level: %q is no level", a.level)
		}
	}
	a.log = a.verbLogger(level)
	a.serves = cmd.Annotations[annotationServer] != ""
	if isService || a.serves {
		a.log = service.NewLogger(a.errOut, level)
	}
	var err error
	if a.names, err = subjects.New(a.prefix); err != nil {
		return usageError("", "--prefix: %w", err)
	}
	a.server.Name, a.server.Role = "wake "+cmd.Name(), roleOf(cmd)
	a.parsed = true
	return a.beginTraces(cmd)
}

// beginTraces has spans sent if the environment asks for that. A verb that runs no
// service is a span itself.
func (a *app) beginTraces(cmd *cobra.Command) (err error) {
	name := "wake"
	if s := cmd.Annotations[annotationService]; s != "" && s != "up" {
		name += "-" + s
	}
	a.traces, err = service.OpenTraces(cmd.Context(), name, versionOfThis().Version, os.LookupEnv, a.log)
	if err != nil || a.traces == nil {
		return err
	}
	a.tracer = a.traces.Tracer()
	if cmd.Annotations[annotationService] == "" {
		ctx, span := a.tracer.Start(cmd.Context(), cmd.CommandPath())
		cmd.SetContext(ctx)
		a.span = span
	}
	return nil
}

// How long the end of a process waits for a collector: a service has as long as
// --stop-timeout leaves it; for the end of any other verb the user waits.
const (
	tracesOfService = 2 * time.Second
	tracesOfVerb    = time.Second
)

// endTraces sends what spans are left.
func (a *app) endTraces(ctx context.Context, err error) {
	wait := tracesOfService
	if a.span != nil {
		tracing.Fail(a.span, err)
		a.span.End()
		wait = tracesOfVerb
	}
	a.traces.Close(ctx, wait)
}
