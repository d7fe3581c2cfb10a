package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Run runs the program until it ends by itself with exit code 0 or 2, or, however it ends then, after
// it was told to end by SIGTERM, SIGINT or SIGHUP, and returns its exit code: 128 and the signal if one
// ended it. These signals, SIGUSR1 and SIGUSR2 are passed on to the program and to nothing that it has
// started. Orphans are left as they are.
func Run(c Config) (int, error) {
	// Process 1 is given the orphans anyway.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("supervisor: become the parent of orphans: %w", err)
	}
	ends, orders := make(chan os.Signal, 1), make(chan os.Signal, 16)
	signal.Notify(ends, syscall.SIGCHLD)
	signal.Notify(orders, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(ends)
	defer signal.Stop(orders)
	s := &supervision{Config: c}
	if err := s.startProgram(); err != nil {
		return 0, err
	}
	for !s.over {
		select {
		case <-ends:
			s.reapChildren()
		case sig := <-orders:
			s.passSignal(sig.(syscall.Signal))
		case <-s.next:
			if err := s.startProgram(); err != nil {
				s.startLater(err.Error())
			}
		}
	}
	return s.code, nil
}

// supervision is one call of [Run].
type supervision struct {
	Config
	pid     int // of the program; 0 when there is none
	started time.Time
	delay   time.Duration    // before the last start
	next    <-chan time.Time // when to start it again
	ending  bool             // it was told to end
	over    bool             // and code is set
	code    int
}

// startProgram starts the program in a process group of its own: what a terminal sends goes to this
// process alone, which passes it on once.
func (s *supervision) startProgram() (err error) {
	s.started = time.Now()
	s.pid, err = syscall.ForkExec(s.Path, s.Argv, &syscall.ProcAttr{
		Env: s.Env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		s.pid = 0
		return fmt.Errorf("supervisor: start %s: %w", s.Path, err)
	}
	return nil
}

// reapChildren takes note of all children that have ended: one SIGCHLD may stand for many.
func (s *supervision) reapChildren() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || pid == 0: // no child, or none that has ended
			return
		case pid == s.pid:
			s.pid = 0
			s.judgeExit(status)
		}
	}
}

// judgeExit decides what follows from the end of the program.
func (s *supervision) judgeExit(status syscall.WaitStatus) {
	code, how := status.ExitStatus(), fmt.Sprintf("exit code %d", status.ExitStatus())
	if status.Signaled() {
		code, how = 128+int(status.Signal()), unix.SignalName(status.Signal())
	}
	if s.ending || code == codeDone || code == codeUsage {
		s.noteEnd(code)
		return
	}
	s.startLater(how)
}

func (s *supervision) startLater(why string) {
	s.delay = nextDelay(s.delay, time.Since(s.started))
	s.next = time.After(s.delay)
	s.Log.Warn("the program ended and is started again", "end", why, "after", s.delay.String())
}

func (s *supervision) passSignal(sig syscall.Signal) {
	s.ending = s.ending || sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2
	switch {
	case s.pid != 0:
		_ = syscall.Kill(s.pid, sig) // it isn't reaped yet, so the pid is its own
	case s.ending:
		s.noteEnd(128 + int(sig))
	}
}

func (s *supervision) noteEnd(code int) { s.over, s.code = true, code }
