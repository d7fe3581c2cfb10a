package deliver

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/subjects"
)

// programGrace is how long a program that took too long may take to end.
const programGrace = time.Second

// program starts a program for each notification and gives it the CloudEvent on
// stdin. Exit code 0 means that it took it.
type program struct {
	argv  []string
	env   []string
	names subjects.Names
}

func newProgram(s *Sink, names subjects.Names) program {
	p := program{argv: s.Command, env: slices.Clone(s.base), names: names}
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		p.env = append(p.env, k+"="+s.Env[k])
	}
	return p
}

func (program) closeSender() {}

func (p program) sendNotification(ctx context.Context, n Notification) error {
	event, err := n.cloudEvent(p.names)
	if err != nil {
		return finalError("encode: %w", err)
	}
	started, err := process.Start(process.Config{Argv: p.argv, Env: p.env, KeepStderr: true})
	if err != nil {
		return err
	}
	var pipes sync.WaitGroup
	pipes.Go(func() {
		_, _ = started.Stdin.Write(append(event, '\n')) // it need not read it
		_ = started.Stdin.Close()                       // nor its end
	})
	pipes.Go(func() { _, _ = io.Copy(io.Discard, started.Stdout) })
	exit, err := started.Wait(ctx)
	if ended := started.End(programGrace); err == nil {
		err = ended
	}
	_ = started.Close() // the program has ended
	pipes.Wait()
	switch {
	case err != nil:
		return err
	case exit.Code != 0:
		words := strings.TrimSpace(started.Words())
		if exit.Signal != "" {
			return fmt.Errorf("ended by SIG%s: %s", exit.Signal, timeline.Line(words, maxLine))
		}
		return fmt.Errorf("exit code %d: %s", exit.Code, timeline.Line(words, maxLine))
	}
	return nil
}
