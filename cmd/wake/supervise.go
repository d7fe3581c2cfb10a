package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	programs "code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/supervisor"
)

// superviseArgs runs this program with other arguments as process 1 of a container does. It
// reports false if args aren't `-- VERB…`: then there is something to say about that.
func superviseArgs(args []string) (code int, ok bool) {
	if len(args) < 2 || args[0] != "--" {
		return 0, false
	}
	log := service.NewLogger(os.Stderr, slog.LevelInfo)
	code, err := superviseVerb(args[1:], log)
	if err != nil {
		log.Error("supervising", "error", err)
		return exitFailed, true
	}
	return code, true
}

func superviseVerb(args []string, log *slog.Logger) (int, error) {
	if err := programs.Conceal(); err != nil { // it has the environment of the runner, and agents look around
		return 0, err
	}
	path, err := os.Executable()
	if err != nil {
		return 0, err
	}
	return supervisor.Run(supervisor.Config{Path: path, Argv: append(os.Args[:1:1], args...), Env: os.Environ(), Log: log})
}

// superviseCommand is the help of the verb, and what is said of its wrong use. It runs
// without the command line's tree, see mainCode.
func (a hostVerbs) superviseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "supervise -- VERB",
		Short: "Run another verb as process 1 of a container, and start it again if it dies",
		Long: `Run another verb of wake, such as runner with its flags, as process 1 of a container.

It is started again when a signal ended it or it failed (exit codes other than 0 and 2), after 100 ms
and, if that goes on, up to 10 s; meanwhile what it has started lives on. SIGTERM, SIGINT, SIGHUP, SIGUSR1
and SIGUSR2 are passed on to it. After one of the first three, supervise ends when the verb does. Its exit code
is the verb's, or 128 and the number of the signal that ended it.`,
		Example: "  wake supervise -- runner --drain-timeout=35s --stop-timeout=50s",
		Args:    cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError("wake supervise -- runner", "supervise: the verb comes after -- and all its flags behind it")
		},
	}
}
